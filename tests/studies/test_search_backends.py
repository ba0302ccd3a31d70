"""Who trains a trial: processes of this machine, or a manager elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from downpour import api
from downpour.api import Asked, Client
from downpour.errors import ExperimentFailed, SpecError
from downpour.reports import Result
from downpour.rpc.messages import Status
from downpour.spec import Spec
from downpour.studies.grid import Cell
from downpour.studies.search import Search
from downpour.studies.search_backends import Embedded, Remote
from downpour.studies.search_runner import run_search
from tests.studies.conftest import Interruption
from tests.studies.searching import FakeTrainer, Silence, folder_in, search_of, told_by

QUICK = """\
name = "quick"
workers = 2
epochs = 12
train_limit = 300

[search]
trials = 4
pruner = { name = "halving", factor = 2 }
learning_rate = { low = 0.0001, high = 0.3, log = true }
split = ["random", "class"]
"""


class FakeClient(Client):
    """A client whose manager tells a line of the record with each look, until it is cancelled."""

    def __init__(self, cell: Cell, end: BaseException | None = None) -> None:
        self.lines = told_by(cell, failed=isinstance(end, ExperimentFailed))
        self.end = end
        self.told = 0
        self.cancelled: list[str] = []

    def submit(self, spec: Asked, request: str = "") -> str:
        """Take it."""
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

    def record(self, experiment: str, from_line: int = 0) -> list[str]:
        """Return what was told since."""
        assert experiment == "small-1"
        return self.lines[from_line : self.told]

    def cancel(self, experiment: str) -> None:
        """Note it."""
        self.cancelled.append(experiment)


def some_cell() -> Cell:
    """Return one of the runs that the small search may try."""
    return next(search_of().corners())


def train(client: FakeClient, enough: float = 1.0) -> tuple[bytes, list[int]]:
    """Have a trial trained until it is good enough; returns its record and the epochs heard."""
    heard: list[int] = []

    def on_epoch(epoch: int, accuracy: float) -> bool:
        heard.append(epoch)
        return accuracy > enough

    with Remote(client).start(search_of()) as trained:
        return trained(some_cell(), lambda _: None, on_epoch), heard


def test_a_manager_is_given_the_spec_and_gives_the_record() -> None:
    """Each accuracy is heard once, in order; the record comes as the manager wrote it."""
    client = FakeClient(some_cell())
    record, heard = train(client)
    assert record.decode().splitlines() == client.lines
    assert heard == [1, 2, 3, 4]
    assert (client.spec, client.cancelled) == (some_cell().spec, [])


def test_what_a_manager_trains_is_written_down_until_it_has_ended(tmp_path: Path) -> None:
    """So that a search that is killed finds its trial again."""
    note = tmp_path / "request.json"
    noted: list[str] = []
    client = FakeClient(some_cell())
    with Remote(client, note).start(search_of()) as trained:
        trained(some_cell(), lambda _: noted.append(note.read_text()), lambda *_: False)
    assert some_cell().id in noted[0]
    assert not note.exists()


def test_a_trial_that_should_end_is_cancelled() -> None:
    """Once; nothing more is heard of it, and its record is as long as it came."""
    client = FakeClient(some_cell())
    record, heard = train(client, enough=0.0)
    assert heard == [1]
    assert client.cancelled == ["small-1"]
    assert record.decode().splitlines() == client.lines[: client.told]


def test_a_trial_that_failed_gives_its_record() -> None:
    """The record tells why."""
    client = FakeClient(some_cell(), ExperimentFailed("small-1", "no luck"))
    record, _ = train(client)
    assert b"no luck" in record
    assert client.cancelled == []


def test_who_stops_waiting_cancels() -> None:
    """So the manager's workers are free again when the search is run anew."""
    client = FakeClient(some_cell(), Interruption())
    with pytest.raises(Interruption):
        train(client)
    assert client.cancelled == ["small-1"]


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("[search]", '[search]\ndataset = ["digits", "nowhere"]', "dataset = 'nowhere'"),
        ("[search]", 'policy = "replace"\nstandbys = 2\n[search]', "standbys = 2"),
    ],
)
def test_what_cannot_be_trained_here_is_refused_before_anything_is_written(
    tmp_path: Path, old: str, new: str, line: str
) -> None:
    """Every dataset of the search is looked for, not only the first trial's."""
    folder = folder_in(tmp_path, QUICK.replace(old, new))
    with pytest.raises(SpecError, match=line):
        run_search(folder, Embedded(tmp_path / "shared"), Silence())
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_search_is_trained_here(tmp_path: Path) -> None:
    """By real processes; what was pruned was cancelled, and the best spec gives the best again."""
    folder = folder_in(tmp_path, QUICK)
    shared = tmp_path / "shared"
    tuned = run_search(folder, Embedded(shared), Silence())
    assert {"finished", "pruned"} >= {trial.state for trial in tuned.trials}
    pruned = [trial for trial in tuned.trials if trial.state == "pruned"]
    states = {Result.read(shared / "experiments" / t.experiment).state for t in pruned}
    assert "cancelled" in states
    best = tuned.best
    assert best is not None
    spec = Spec.from_toml(folder.best.read_text())
    assert api.run(spec, shared=shared).accuracy == best.accuracy
    assert run_search(folder, FakeTrainer(), Silence()) == tuned
    assert Search.from_toml((folder.path / "tune.toml").read_text()) == folder.search
