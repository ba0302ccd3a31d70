"""What a search may ask for, and that it goes on as it would have gone on anyway."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.base.errors import ExperimentFailed, SpecError
from downpour.base.states import Goal
from downpour.core.resolve import resolve
from downpour.core.spec import Spec
from downpour.experiments.studies import Search, StudyFolder
from downpour.experiments.studies.folder import BEST_NAME
from downpour.experiments.studies.running import measured_in, run_study
from downpour.experiments.studies.sampler import Pruner
from downpour.experiments.studies.search import SearchPlan
from downpour.record.record import line_text
from downpour.record.record_lines import SubmittedLine
from downpour.record.study_result import Choices, Range, SearchResult, SearchRun
from downpour.record.tables import Tables
from tests.experiments.studies.conftest import (
    SEARCH,
    FakeBackend,
    Interruption,
    Silence,
    search_folder,
)
from tests.record.lines import measured, prepared

PLAIN = 'name = "s"\nworkers = 2\n'
RATE = "learning_rate = { low = 0.1, high = 0.2 }\n"


def test_ranges_lists_and_options_are_read() -> None:
    """A range is whole where its field is; an option stands with or without quotes."""
    search = Search.from_toml(SEARCH)
    assert search.axes == {
        "learning_rate": Range(0.0001, 1.0, log=True, whole=False),
        "batch_size": Choices((16, 32)),
        "local_steps": Range(1, 50, log=False, whole=True),
        "model_options.dropout": Range(0.0, 0.5, log=False, whole=False),
        "model_options.width": Choices(([8], [8, 8])),
    }
    assert (search.asked, search.seed) == (12, 0)
    assert search.pruner == Pruner(name="median", startup_trials=3)


def test_a_search_is_written_as_it_is_read() -> None:
    """With every field; so what lies in the folder can itself be run."""
    for pruner in ("median", "halving", "none"):
        search = Search.from_toml(
            SEARCH.replace("median", pruner).replace(", startup_trials = 3", "")
        )
        assert Search.from_toml(search.to_toml()) == search
        assert "momentum = 0.9" in search.to_toml()
        assert "learning_rate" not in search.fields  # the spec's own is not used


@pytest.mark.parametrize("objective", ["loss", "accuracy", "max:loss"])
def test_what_is_searched_for_is_written_as_it_is_read(objective: str) -> None:
    """Accuracy, unless another is named; the direction only where the name does not say it."""
    search = Search.from_toml(PLAIN + f'[search]\n{RATE}objective = "{objective}"')
    assert str(search.goal) == objective
    assert Search.from_toml(search.to_toml()) == search
    assert str(Search.from_toml(PLAIN + f"[search]\n{RATE}").goal) == "accuracy"


def test_a_runs_values_can_be_read_from_its_spec() -> None:
    """Numbers come back exactly, options too; the spec keeps what is not searched."""
    search = Search.from_toml(SEARCH.replace("[search]", "[model_options]\ndepth = 3\n\n[search]"))
    values = {
        "learning_rate": 0.1 + 0.2,
        "batch_size": 32,
        "local_steps": 7,
        "model_options.dropout": 0.0,
        "model_options.width": [8, 8],
    }
    spec = search.run(values).spec
    assert search.values_of(spec) == values
    assert search.allows(values)
    assert spec.model_options["depth"] == 3
    assert not search.allows({**values, "batch_size": 64})
    assert not search.allows({**values, "learning_rate": 2.0})
    assert not search.allows({})


def test_any_field_that_changes_what_is_learned_may_be_searched() -> None:
    """Also texts, yes and no, tables, and numbers of shards."""
    text = (
        '[search]\nsplit = ["random", "class"]\nnesterov = [true, false]\nshards = [2, 4]\n'
        "betas = [[0.9, 0.99], [0.8, 0.99]]\nmodel_options = [{ hidden = [8] }, {}]\n"
        "epochs = { low = 1, high = 64, log = true }\n"
    )
    search = Search.from_toml('name = "s"\n' + text)
    assert len(list(search.samples())) == 2**6
    assert search.axes["epochs"] == Range(1, 64, log=True, whole=True)


def test_processes_inside_a_worker_may_be_searched() -> None:
    """Each field of the table alone, or tables as a whole, of which a run's spec has all fields."""
    alone = (
        '[search]\n"inside.processes" = { low = 2, high = 4 }\ninside.how = ["data", "hybrid"]\n'
    )
    search = Search.from_toml(PLAIN + alone)
    assert search.axes == {
        "inside.how": Choices(("data", "hybrid")),
        "inside.processes": Range(2, 4, log=False, whole=True),
    }
    whole = '[search]\ninside = [{}, { processes = 2, how = "hybrid" }]\n'
    search = Search.from_toml(PLAIN + whole)
    assert [run.spec.inside.processes for run in search.samples()] == [1, 2]
    assert Search.from_toml(search.to_toml()) == search
    for run in search.samples():
        assert search.run_of("0003", run.spec) == replace(run, number=3)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (PLAIN, "search = None: must be a table"),
        (PLAIN + "[search]", "search = {}: must name a field"),
        (PLAIN + "[search]\ntrials = 3", "search = {}: must name a field"),
        (PLAIN + "trials = 3\n[search]", "trials = 3: must come below [search]"),
        (PLAIN + "worker = 3\n[search]", "worker = 3: no such field; did you mean workers?"),
        (PLAIN + "[search]\ntrial = 3", "trial = 3: no such field; did you mean trials?"),
        (PLAIN + "[[experiment]]\n[search]", "experiment = [{}]: is for `downpour grid`"),
        (PLAIN + "[search]\nbatch_size = []", "search.batch_size = []: must not be an empty list"),
        (PLAIN + "[search]\nbatch_size = [1, 1]", "names a value twice"),
        (PLAIN + "[search]\nbatch_size = 4", "search.batch_size = 4: must be a list of values, or"),
        (PLAIN + "[search]\nbatch_size = { low = 1 }", "must be a list of values, or"),
        (PLAIN + "[search]\nbatch_size = { low = 9, high = 1 }", "low must be below high"),
        (PLAIN + '[search]\nbatch_size = { low = "a", high = 1 }', "batch_size.low = 'a': must be"),
        (PLAIN + "[search]\nbatch_size = { low = 1.5, high = 9 }", "batch_size = 1.5: must be a"),
        (PLAIN + "[search]\nbatch_size = { low = 1, high = 9, step = 2 }", "step = 2: no such set"),
        (PLAIN + "[search]\nmomentum = { low = 0, high = 0.9, log = true }", "must be above 0"),
        (PLAIN + "[search]\nmomentum = { low = 0.5, high = 0.9, log = 1 }", "must be true or fal"),
        (PLAIN + "[search]\nmomentum = { low = 0.5, high = 1.0 }", "momentum = 1.0: must be a num"),
        (PLAIN + "[search]\nmomentum = { low = nan, high = 1.0 }", "low = nan: must be a number"),
        (PLAIN + '[search]\nsplit = ["random", "odd"]', "split = 'odd': must be random, class"),
        (
            PLAIN + "[search]\nlearning = { low = 1, high = 2 }",
            "learning = {'low': 1, 'high': 2}: no such field; did",
        ),
        (PLAIN + '[search]\n"model.dropout" = [1]', "no such field; options are task_options.NAME"),
        (PLAIN + '[search]\nmodel_options = [{}]\n"model_options.a" = [1]', "as a whole"),
        (
            PLAIN + '[search]\n"inside.how" = ["fast"]',
            "inside.how = 'fast': must be data, pipeline",
        ),
        (
            PLAIN + '[search]\ninside = [{ how = "hybrid" }]',
            "how = 'hybrid': needs processes above",
        ),
        (
            PLAIN + "[search]\ninside = [2]",
            "inside = 2: must be a table (processes, how, cut) or just how",
        ),
        (PLAIN + "[search]\ninside = [{}, { processes = 1 }]", "names a value twice"),
        (PLAIN + "[search]\nworkers = [1, 2]", "search.workers = [1, 2]: cannot be searched"),
        (PLAIN + '[search]\nname = ["a"]', "cannot be searched"),
        (PLAIN + "[search]\nnesterov = [true]\nmomentum = [0.0]", "needs a momentum above 0"),
        (PLAIN + f"[search]\n{RATE}trials = 0", "search.trials = 0: must be a whole number from 1"),
        (PLAIN + f"[search]\n{RATE}seed = -1", "search.seed = -1: must be a whole number from 0"),
        (PLAIN + f'[search]\n{RATE}objective = "bleu"', "objective = 'bleu': must be accuracy"),
        (PLAIN + f"[search]\n{RATE}objective = 1", "objective = 1: must be accuracy or loss"),
        (PLAIN + f'[search]\n{RATE}pruner = "odd"', "search.pruner = 'odd': must be median"),
        (
            PLAIN + f"[search]\n{RATE}pruner = {{ factor = 3 }}",
            "factor = 3: no such setting; median",
        ),
        (PLAIN + f'[search]\n{RATE}pruner = {{ name = "halving", factor = 1 }}', "from 2 to"),
        (f'name = "s"\n[search]\n{RATE}', "workers = None: is required, unless shards is given"),
        (PLAIN + f"evaluate_every = 0\n[search]\n{RATE}", "evaluate_every = 0: must be at least 1"),
        (PLAIN + f"epoch = 3\n[search]\n{RATE}", "epoch = 3: no such field; did you mean epochs?"),
        (f"workers = 2\n[search]\n{RATE}", "name = None: must be given, as in name = "),
        ("[search", "TOML = '[search': cannot be read"),
    ],
)
def test_a_mistake_is_told_in_a_line_that_names_the_field(text: str, line: str) -> None:
    """With its value, and what would be accepted."""
    with pytest.raises(SpecError) as told:
        Search.from_toml(text)
    assert line in str(told.value)
    assert "\n" not in str(told.value)


def test_which_search_goes_on_with_which() -> None:
    """More runs or workers change nothing; values, seed and pruner do."""
    search = Search.from_toml(SEARCH)
    assert Search.from_toml(SEARCH.replace("trials = 12", "trials = 3")).keeps_runs_of(search)
    for old, new in [("16, 32", "16"), ('"median"', '"median", min_epochs = 2'), ("0.5", "0.6")]:
        assert not Search.from_toml(SEARCH.replace(old, new)).keeps_runs_of(search)
    more = SEARCH.replace("workers = 2", "workers = 3")
    assert not Search.from_toml(more).keeps_runs_of(search)  # for the workers are the shards
    shards = "epochs = 4\nshards = 2"
    fixed = Search.from_toml(SEARCH.replace("epochs = 4", shards))
    assert fixed.keeps_runs_of(Search.from_toml(more.replace("epochs = 4", shards)))


RUNS = 12
HALVING = SEARCH.replace('"median", startup_trials = 3', '"halving", factor = 2')


def result_of(folder: StudyFolder[Search]) -> SearchResult:
    """Return the runs that have ended."""
    return SearchPlan(folder.study, folder.ended()).result


def searched(folder: StudyFolder[Search], backend: FakeBackend) -> SearchResult:
    """Run a search; returns its runs."""
    run_study(folder, backend, Silence())
    return result_of(folder)


def without_clock(result: SearchResult) -> list[SearchRun]:
    """Return the runs but for how long they took."""
    return [replace(run, wall_seconds=0.0, train_seconds=0.0) for run in result.runs]


@pytest.fixture(scope="module", params=[SEARCH, HALVING], ids=["median", "halving"])
def uninterrupted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> StudyFolder[Search]:
    """The small search, run in one go."""
    folder = search_folder(tmp_path_factory.mktemp("uninterrupted"), request.param)
    searched(folder, FakeBackend())
    return folder


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(interrupted_at=st.sets(st.integers(1, RUNS + 6)), late=st.integers(0, 4))
def test_a_resumed_search_equals_an_uninterrupted_one(
    uninterrupted: StudyFolder[Search], interrupted_at: set[int], late: int
) -> None:
    """Cut off in any runs, pruned soon or late: the same runs, and none trained twice."""
    with tempfile.TemporaryDirectory() as path:
        folder = StudyFolder(Path(path) / "small", uninterrupted.study)
        backend = FakeBackend(interrupted_at, late=late)
        while True:
            try:
                result = searched(folder, backend)
                break
            except Interruption:
                assert len(result_of(folder).runs) == len(backend.trained)
        assert len(backend.trained) == RUNS
        assert without_clock(result) == without_clock(result_of(uninterrupted))
        best, other = (each.path / BEST_NAME for each in (folder, uninterrupted))
        assert best.read_text() == other.read_text()


def test_what_falls_behind_is_pruned(uninterrupted: StudyFolder[Search], tmp_path: Path) -> None:
    """It trains fewer epochs, tells when it was ended, and is never the best."""
    result = result_of(uninterrupted)
    pruned = [run for run in result.runs if run.state == "pruned"]
    assert 0 < len(pruned) < RUNS
    for run in pruned:
        epochs = len(run.epoch_values)
        assert epochs < 4
        assert run.reason == f"pruned after epoch {epochs} of 4"
        assert run.value == run.epoch_values[-1]
    assert result.best is not None
    assert result.best.state == "finished"
    backend = FakeBackend()
    searched(StudyFolder(tmp_path / "small", uninterrupted.study), backend)
    assert backend.epochs == sum(len(run.epoch_values) for run in result.runs)


def test_without_a_pruner_all_go_on(tmp_path: Path) -> None:
    """Every run has every epoch."""
    text = SEARCH.replace('{ name = "median", startup_trials = 3 }', '"none"')
    backend = FakeBackend()
    result = searched(search_folder(tmp_path, text), backend)
    assert backend.epochs == 4 * RUNS
    assert {run.state for run in result.runs} == {"finished"}


@pytest.mark.slow
def test_the_search_comes_near_what_is_best(tmp_path: Path) -> None:
    """In sixty runs the sampler has found the learning rate and the batch size."""
    text = SEARCH.replace("trials = 12", "trials = 60")
    best = searched(search_folder(tmp_path, text), FakeBackend()).best
    assert best is not None
    assert 0.01 < best.values["learning_rate"] < 0.1
    assert best.values["batch_size"] == 32
    late = result_of(search_folder(tmp_path, text)).runs[-20:]
    assert sum(0.003 < run.values["learning_rate"] < 0.3 for run in late) >= 12


@pytest.mark.slow
def test_a_search_for_the_loss_looks_for_the_lowest(tmp_path: Path) -> None:
    """It falls where the accuracy rises, so the same settings win; a failed run is no good one."""
    text = SEARCH.replace("trials = 12", 'trials = 60\nobjective = "loss"')
    folder = search_folder(tmp_path, text)
    best = searched(folder, FakeBackend(hopeless={2})).best
    assert best is not None
    assert 0.01 < best.values["learning_rate"] < 0.1
    result = result_of(folder)
    finished = [run.value for run in result.runs if run.state == "finished"]
    assert best.value == min(value for value in finished if value is not None)
    assert result.best_so_far[-1] == (60, best.value)
    told = result.to_dict()
    assert told["objective"] == "loss"
    assert told["trials"][-1]["loss"] == result.runs[-1].value
    assert f"run {best.number} with {best.value:.4f}" in str(result)


def test_a_search_for_what_is_not_measured_ends_at_the_first_epoch(tmp_path: Path) -> None:
    """The line names what is."""
    text = SEARCH.replace("trials = 12", 'trials = 12\nobjective = "loss"')
    study = replace(Search.from_toml(text), goal=Goal.of("bleu"))
    folder = StudyFolder(tmp_path / "small", study)
    with pytest.raises(SpecError, match=r"objective = 'bleu': .* known: accuracy, loss$"):
        searched(folder, FakeBackend())


def test_the_best_spec_is_ready_to_run(uninterrupted: StudyFolder[Search]) -> None:
    """It has the best run's values in full, and the search's name."""
    spec = Spec.from_toml((uninterrupted.path / BEST_NAME).read_text())
    best = result_of(uninterrupted).best
    assert best is not None
    assert uninterrupted.study.values_of(spec) == best.values
    assert (spec.name, spec.shards) == ("small", 2)


def test_a_run_that_fails_costs_only_itself(tmp_path: Path) -> None:
    """It is kept with its reason and not run again; the others are run all the same."""
    folder = search_folder(tmp_path)
    result = searched(folder, FakeBackend(hopeless={1, 4}, wrong={6}))
    failed = {run.number: run.reason for run in result.runs if run.state == "failed"}
    assert failed == {1: "no luck", 4: "no luck", 6: "no luck"}
    assert result.best is not None
    again = FakeBackend()
    assert searched(folder, again) == result
    assert (again.trained, again.starts) == ([], 0)


def test_a_run_of_bad_luck_is_tried_again(tmp_path: Path) -> None:
    """With the same values, in its place, once the search goes on; nothing else is run again."""
    folder = search_folder(tmp_path)
    before = searched(folder, FakeBackend(unlucky={3, 5}, hopeless={7}))
    assert [run.number for run in before.runs if run.to_repeat] == [3, 5]
    assert str(before).startswith("small: 10 of 12 runs")
    assert "1 failed, 2 to repeat (run 3: no luck)" in str(before)
    again = FakeBackend(unlucky={2})
    after = searched(folder, again)
    assert [folder.study.values_of(run.spec) for run in again.trained] == [
        before.runs[2].values,
        before.runs[4].values,
    ]
    assert [run.number for run in after.runs if run.to_repeat] == [5]
    others = [run for run in before.runs if run.number not in (3, 5)]
    assert [run for run in after.runs if run.number not in (3, 5)] == others
    searched(folder, FakeBackend())
    assert result_of(folder).left == 0
    assert [t.number for t in result_of(folder).runs if t.state == "failed"] == [7]


def test_a_run_that_another_client_cancels_is_run_again(tmp_path: Path) -> None:
    """It says nothing about its values, so it counts for nothing."""
    folder = search_folder(tmp_path)
    with pytest.raises(ExperimentFailed, match="cancelled"):
        searched(folder, FakeBackend(stolen={3}))
    assert [run.number for run in result_of(folder).runs] == [1, 2]
    assert len(searched(folder, FakeBackend()).runs) == RUNS


def test_a_search_that_has_grown_runs_only_what_is_new(tmp_path: Path) -> None:
    """More runs go on from those that there are."""
    before = searched(search_folder(tmp_path), FakeBackend())
    grown = search_folder(tmp_path, SEARCH.replace("trials = 12", "trials = 14"))
    backend = FakeBackend()
    after = searched(grown, backend)
    assert len(backend.trained) == 2
    assert after.runs[:RUNS] == before.runs


def test_epochs_are_counted_by_the_resolved_spec() -> None:
    """The spec of a run may leave `meet` open; its record says how many rounds an epoch has."""
    spec = {**resolve(Spec(shards=2, batch_size=16), None).model_dump(mode="json")}
    begun = SubmittedLine(experiment="a-1", name="a", spec=spec, version="", shards=2)
    cut, tables = prepared(32, 32), Tables()
    lines = [line_text(0.0, begun), line_text(1.0, cut), line_text(2.0, measured(3, 0.5))]
    assert list(measured_in(lines[:2], tables)) == []
    assert list(measured_in(lines[2:], tables)) == [(2, {"loss": 0.5})]
