"""Where runs are trained: by processes of this machine, or by a manager elsewhere."""

from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import ExperimentFailed, SpecError
from downpour.core.spec import Spec
from downpour.experiments import training
from downpour.experiments.client import Asked, Client
from downpour.experiments.studies import (
    Embedded,
    Grid,
    Remote,
    Run,
    Search,
    StudyFolder,
    StudySpec,
    grid_results,
    read_folder,
    run_study,
)
from downpour.experiments.studies.folder import BEST_NAME
from downpour.experiments.studies.search import SearchPlan
from downpour.experiments.studies.study import Measured
from downpour.experiments.surroundings import Surroundings
from downpour.network.rpc.messages import Status
from downpour.record import Result
from tests.experiments.studies.conftest import (
    FakeBackend,
    Silence,
    grid_folder,
    lines_of,
    search_folder,
)
from tests.specs import plain_spec

pytestmark = pytest.mark.usefixtures("forked_clusters")

QUICK_GRID = 'name = "small"\ntrials = 1\nepochs = 1\ntrain_limit = 200\nworkers = 2\n'
QUICK_SEARCH = """\
name = "small"
workers = 2
epochs = 12
train_limit = 300

[search]
trials = 4
pruner = { name = "halving", factor = 2 }
learning_rate = { low = 0.0001, high = 0.3, log = true }
split = ["random", "class"]
"""
RUN = Run(plain_spec(name="small", epochs=4, shards=2), 2, number=1)


class FakeClient(Client):
    """A client whose manager tells a line of the record with each look, until it is cancelled."""

    def __init__(self, end: BaseException | None = None) -> None:
        self.lines = lines_of(RUN, failed=isinstance(end, ExperimentFailed))
        self.end = end
        self.told = 0
        self.asked_for_lines = 0
        self.cancelled: list[str] = []

    def submit(self, spec: Asked, request: str = "", **_: object) -> str:
        assert request
        assert isinstance(spec, Spec)
        self.spec = spec
        return "small-1"

    def wait(
        self,
        experiment: str,
        *,
        on_status: Callable[[Status], None] | None = None,
        check: Callable[[], None] | None = None,
    ) -> Result:
        """Go on until the end of the record, or until called off."""
        assert (experiment, check) == ("small-1", None)
        while self.told < len(self.lines) and not self.cancelled:
            self.told += 1
            if on_status is not None:
                on_status(Status(change=self.told))
        if self.end is not None:
            raise self.end
        if self.cancelled:
            raise ExperimentFailed(experiment, "it was cancelled")
        return Result.from_lines(self.lines)

    def record(
        self, experiment: str, from_line: int = 0, *, check: Callable[[], None] | None = None
    ) -> list[str]:
        """Return what was told since; this manager never dies, so no one needs to look."""
        assert check is None or callable(check)
        assert experiment == "small-1"
        self.asked_for_lines += 1
        return self.lines[from_line : self.told]

    def cancel(self, experiment: str) -> None:
        self.cancelled.append(experiment)


def some_study() -> StudySpec:
    """Return a study; what a manager trains does not depend on it."""
    return Grid.from_toml(QUICK_GRID)


def train(client: FakeClient, enough: float | None = 1.0) -> tuple[bytes, list[int]]:
    """Have a run trained until it is good enough; returns its record and the epochs heard."""
    heard: list[int] = []

    def on_epoch(epoch: int, measured: Measured) -> bool:
        heard.append(epoch)
        return enough is not None and (measured["accuracy"] or 0.0) > enough

    with Remote(client).start(some_study()) as trained:
        return trained(RUN, lambda _: None, None if enough is None else on_epoch), heard


def test_a_manager_is_given_the_spec_and_gives_the_record() -> None:
    """Each accuracy is heard once, in order; the record comes as the manager wrote it."""
    client = FakeClient()
    record, heard = train(client)
    assert record.decode().splitlines() == client.lines
    assert heard == [1, 2, 3, 4]
    assert (client.spec, client.cancelled) == (RUN.spec, [])


def test_a_record_that_is_not_listened_to_is_asked_for_once() -> None:
    """A manager that is away for a moment then costs a grid nothing."""
    client = FakeClient()
    record, _ = train(client, enough=None)
    assert record.decode().splitlines() == client.lines
    assert client.asked_for_lines == 1


def test_a_run_that_should_end_is_cancelled() -> None:
    """Once; nothing more is heard of it, and its record is as long as it came."""
    client = FakeClient()
    record, heard = train(client, enough=0.0)
    assert heard == [1]
    assert client.cancelled == ["small-1"]
    assert record.decode().splitlines() == client.lines[: client.told]


def test_a_run_that_failed_gives_its_record() -> None:
    """The record tells why."""
    client = FakeClient(ExperimentFailed("small-1", "no luck"))
    record, _ = train(client)
    assert b"no luck" in record
    assert client.cancelled == []


@pytest.mark.parametrize(
    "text",
    [
        'name = "small"\nworkers = [1, 2]',
        'name = "small"\n[[experiment]]\nworkers = 1\n[[experiment]]\nworkers = 2',
    ],
)
def test_a_managers_workers_are_as_they_are(tmp_path: Path, text: str) -> None:
    """Several numbers of workers are refused before anything is written."""
    folder = grid_folder(tmp_path, text)
    with pytest.raises(
        SpecError, match=r"workers = \[1, 2\]: must be a single number with --manager"
    ):
        run_study(folder, Remote(FakeClient()), Silence())
    assert not folder.path.exists()


STANDBYS = 'policy = "replace"\nstandbys = 2\n'


@pytest.mark.parametrize(
    ("folder_in", "text", "line"),
    [
        (grid_folder, QUICK_GRID + 'dataset = ["digits", "nowhere"]', "dataset = 'nowhere'"),
        (grid_folder, QUICK_GRID + STANDBYS, "standbys = 2"),
        (
            search_folder,
            QUICK_SEARCH.replace("[search]", '[search]\ndataset = ["digits", "nowhere"]'),
            "dataset = 'nowhere'",
        ),
        (search_folder, QUICK_SEARCH.replace("[search]", STANDBYS + "[search]"), "standbys = 2"),
    ],
)
def test_what_cannot_be_trained_here_is_refused_before_anything_is_written(
    tmp_path: Path, folder_in: Callable[..., StudyFolder[StudySpec]], text: str, line: str
) -> None:
    """Every dataset of the study is looked for, not only the first run's."""
    with pytest.raises(SpecError, match=line):
        run_study(folder_in(tmp_path, text), Embedded(Surroundings(tmp_path / "shared")), Silence())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_grid_is_trained_here(tmp_path: Path) -> None:
    """By real processes; a run whose spec does not fit its data fails, and the others are kept."""
    text = QUICK_GRID + 'batches = ["shuffled", "balanced"]\nbatch_size = 4\n'
    folder = grid_folder(tmp_path, text)
    progress = run_study(folder, Embedded(Surroundings(tmp_path / "shared")), Silence())
    (reason,) = progress.fields["failures"].values()
    assert "batches" in reason
    ((values, runs),) = grid_results(folder).subgrids[0].measured
    assert values == ("shuffled",)
    assert runs[0].result.accuracy is not None
    assert {span.shard for span in runs[0].result.spans} == {0, 1}


@pytest.mark.slow
def test_a_search_is_trained_here(tmp_path: Path) -> None:
    """In threads; what was pruned was cancelled, and the best spec gives the best again."""
    folder = search_folder(tmp_path, QUICK_SEARCH)
    shared = tmp_path / "shared"
    run_study(folder, Embedded(Surroundings(shared, on="inline")), Silence())
    result = SearchPlan(folder.study, folder.ended()).result
    assert {"finished", "pruned"} >= {run.state for run in result.runs}
    pruned = [run for run in result.runs if run.state == "pruned"]
    states = {Result.read(shared / "experiments" / run.experiment).state for run in pruned}
    assert "cancelled" in states
    best = result.best
    assert best is not None
    spec = Spec.from_toml((folder.path / BEST_NAME).read_text())
    assert training.run(spec, shared=shared, progress=False, on="inline").accuracy == best.value
    run_study(folder, again := FakeBackend(), Silence())
    assert again.calls == 0
    assert read_folder(folder.path, Search).study == folder.study
