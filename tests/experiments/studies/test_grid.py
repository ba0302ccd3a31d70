"""Which runs a grid makes, and in which order they run, also after a failure."""

import math
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.core.resolve import LocalOptimizer
from downpour.experiments.studies import (
    Grid,
    Search,
    StudyFolder,
    grid_results,
    read_folder,
    run_study,
    study,
)
from tests.experiments.studies.conftest import GRID, FakeBackend, Interruption, Silence, grid_folder

AXES: dict[str, list[Any]] = {
    "workers": [1, 2, 5],
    "split": ["random", "class", "equal", "dirichlet(0.3)"],
    "aggregate": ["average", "weighted", "first"],
    "learning_rate": [0.1, 0.01],
    "betas": [[0.9, 0.99], [0.8, 0.9]],
    "model_options": [{"hidden": [8, 4]}, {"hidden": [16], "dropout": 0.5}],
}


@st.composite
def grids(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a file with any axes, of any lengths."""
    chosen = draw(st.lists(st.sampled_from(sorted(AXES)), unique=True, max_size=4))
    file: dict[str, Any] = {"name": "drawn", "trials": draw(st.integers(1, 3)), "workers": 2}
    for axis in chosen:
        values = st.lists(st.sampled_from(AXES[axis]), min_size=1, unique_by=str)
        file[axis] = draw(values)
    return file


@given(file=grids())
def test_a_grid_has_every_combination_once(file: dict[str, Any]) -> None:
    """As many runs as the lists' lengths and the repetitions multiply to, no two the same."""
    grid = Grid.from_toml(tomli_w.dumps(file))
    lengths = [len(file[axis]) for axis in AXES if isinstance(file.get(axis), list)]
    assert len(grid.places) == file["trials"] * math.prod(lengths)
    assert len(grid.runs) == len(grid.places)
    found = {(run.spec.to_toml(), run.workers) for run in grid.runs.values()}
    assert len(found) == len(grid.runs)


@given(file=grids())
def test_a_full_picture_comes_first(file: dict[str, Any]) -> None:
    """No setting is run again before all have been run, and each repetition has its own seed."""
    places = Grid.from_toml(tomli_w.dumps(file)).places
    assert [place.repetition for place in places] == sorted(place.repetition for place in places)
    assert all(place.run.spec.seed == place.repetition - 1 for place in places)


@given(file=grids())
def test_a_grid_that_was_written_down_is_the_same_grid(file: dict[str, Any]) -> None:
    """What stands in the folder makes the same runs, and is itself a file to run."""
    grid = Grid.from_toml(tomli_w.dumps(file))
    again = Grid.from_toml(grid.to_toml())
    assert again == grid
    assert list(again.runs) == list(grid.runs)


@given(file=grids(), data=st.data())
def test_a_grid_grows_without_losing_runs(file: dict[str, Any], data: st.DataObject) -> None:
    """More repetitions and another axis with the old value on it keep every run that was there."""
    before = Grid.from_toml(tomli_w.dumps(file))
    grown = {**file, "trials": file["trials"] + data.draw(st.integers(0, 2))}
    if "optimizer" not in file:
        grown["optimizer"] = ["adam", "sgd"]
    assert set(before.runs) <= set(Grid.from_toml(tomli_w.dumps(grown)).runs)


def test_subgrids_share_what_both_ask_for() -> None:
    """Two workers with random and average stand in both, and are run once."""
    grid = Grid.from_toml(GRID)
    assert [subgrid.axes for subgrid in grid.subgrids] == [("workers",), ("split", "aggregate")]
    assert len(grid.places) == 12
    assert len(grid.runs) == 10


def test_there_are_as_many_shards_as_workers_where_none_are_named() -> None:
    """As with `downpour run`; a number of shards that is named stays."""
    free = Grid.from_toml('name = "g"\nworkers = [1, 3]\n')
    assert [run.spec.shards for run in free.runs.values()] == [1, 3]
    fixed = Grid.from_toml('name = "g"\nworkers = [1, 3]\nshards = 4\n')
    assert [run.spec.shards for run in fixed.runs.values()] == [4, 4]


def test_lists_by_nature_are_values_until_they_are_lists_of_lists() -> None:
    """`betas` and what stands inside options; a list of tables is an axis."""
    one = Grid.from_toml(
        'name="g"\nworkers=1\nbetas=[0.9, 0.99]\n[model_options]\nhidden = [8, 4]\n'
    )
    assert one.subgrids[0].axes == ()
    (run,) = one.runs.values()
    assert run.spec.betas == (0.9, 0.99)
    assert run.spec.model_options == {"hidden": [8, 4]}
    several = Grid.from_toml('name="g"\nworkers=1\nbetas=[[0.9, 0.99]]\nmodel_options=[{}, {a=1}]')
    assert several.subgrids[0].axes == ("betas", "model_options")


def test_a_task_of_the_user_has_options_as_an_axis() -> None:
    """As the built-in network has, and a search takes each option for one."""
    text = 'name="g"\nworkers=1\ntask="lab:Mine"\ntask_options=[{width=8}, {width=16}]\n'
    grid = Grid.from_toml(text)
    assert [run.spec.task_options for run in grid.runs.values()] == [{"width": 8}, {"width": 16}]
    assert grid.subgrids[0].axes == ("task_options",)
    text = 'name="s"\nworkers=1\ntask="lab:Mine"\n[search]\ntrials=2\ntask_options.width=[8, 16]\n'
    assert list(Search.from_toml(text).axes) == ["task_options.width"]


def test_a_task_says_the_fields_that_a_study_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a single run; the study's own file leaves them open, too."""
    said = LocalOptimizer(momentum=None, settings={"batch_size": 24, "epochs": 7})
    monkeypatch.setattr(study, "trainer_of", lambda *_: said)
    text = 'name="g"\nworkers=1\ntask="lab:Mine"\nepochs=2\n'
    grid = Grid.from_toml(text + "learning_rate=[0.1, 0.2]")
    for one in (grid, Grid.from_toml(grid.to_toml())):
        assert {(run.spec.batch_size, run.spec.epochs) for run in one.runs.values()} == {(24, 2)}
    search = Search.from_toml(text + "[search]\nlearning_rate=[0.1, 0.2]")
    for each in (search, Search.from_toml(search.to_toml())):
        assert {(run.spec.batch_size, run.spec.epochs) for run in each.samples()} == {(24, 2)}
    named = Grid.from_toml(text + "batch_size=[8, 16]")
    assert [run.spec.batch_size for run in named.runs.values()] == [8, 16]


def test_processes_inside_a_worker_are_an_axis() -> None:
    """A list of tables, each of which stands for an arrangement as a whole."""
    tables = '[{}, { processes = 2 }, { processes = 2, how = "hybrid" }]'
    grid = Grid.from_toml(f'name="g"\nworkers=1\ninside = {tables}\nsplit=["random", "class"]\n')
    arranged = [(run.spec.inside.how, run.spec.inside.processes) for run in grid.runs.values()]
    assert arranged == [("data", 1), ("data", 2), ("hybrid", 2)] * 2
    assert list(Grid.from_toml(grid.to_toml()).runs) == list(grid.runs)


def test_axes_of_tables_come_last() -> None:
    """As TOML has them in what was written down, so that it is run and shown in the same order."""
    text = 'name="g"\nworkers=1\nmodel_options=[{a=1}, {a=2}]\nsplit=["random", "class"]\n'
    grid = Grid.from_toml(text)
    again = Grid.from_toml(grid.to_toml())
    assert again.subgrids[0].axes == grid.subgrids[0].axes == ("split", "model_options")
    assert list(again.runs) == list(grid.runs)


def test_a_run_has_a_name_that_a_folder_may_have() -> None:
    """Readable, and a safe folder name for every spec."""
    grid = Grid.from_toml('name = "g"\nworkers = 2\nsplit = "dirichlet(0.3)"\n')
    (name,) = grid.runs
    assert name.startswith("w2-dirichlet-0.3-average-s0-")
    assert name == next(iter(Grid.from_toml(grid.to_toml()).runs))
    without = Grid.from_toml('name = "g"\nshards = 3\n')
    assert next(iter(without.runs)).startswith("n3-random-")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("split = []", "split = []: must not be an empty list; leave the field out instead"),
        ("betas = [[]]", "betas = [[]]: must not be an empty list"),
        ("nonsense = [1]", "nonsense = [1]: no such field"),
        ("[[experiment]]\nspilt = ['random']", "spilt = ['random']: no such field; did you mean"),
        (
            "learning_rates = [1, 2]",
            "learning_rates = [1, 2]: no such field; did you mean learning",
        ),
        ("worker = [1, 2]", "worker = [1, 2]: no such field; did you mean workers?"),
        ("trial = 3", "trial = 3: no such field; did you mean trials?"),
        ("[[experiments]]", "experiments = [{}]: no such field; did you mean experiment?"),
        ("[[experiment]]\ntrials = 3", "trials = 3: must come before the first [[experiment]]"),
        ("[search]", "search = '[search]': is for `downpour tune`"),
        ("split = ['random', 'fair']", "split = 'fair': must be random, class, equal"),
        ("split = ['class', 'class']", "split = ['class', 'class']: names a value twice"),
        ("workers = [1, 0]", "workers = 0: must be a whole number from 1 to 100000"),
        ("workers = true", "workers = True: must be a whole number"),
        ("trials = [1, 2]", "trials = [1, 2]: must be a whole number from 1 to 10000"),
        ("trials = 0", "trials = 0: must be a whole number"),
        ("seed = [1, 2]", "seed = [1, 2]: must be one value; each repetition adds one to the seed"),
        ("experiment = 3", "experiment = 3: must be tables: write [[experiment]] above each"),
        ("[[experiment]]\nname = 'a b'", "name = 'a b': must be 1 to 64 letters"),
        ("[[experiment]]\nname='a'\n[[experiment]]\nname='a'", "experiment.name = ['a', 'a']: "),
        ("seed = 9223372036854775807\ntrials = 2", "seed = 9223372036854775808: must be"),
        ("split =", "TOML = "),
        (f"trials=10000\nepochs={list(range(1, 12))}", "trials = 10000: makes 110000 runs"),
    ],
)
def test_a_mistake_is_one_line(text: str, line: str) -> None:
    """It names the field, the value and what is accepted."""
    head = 'name = "g"\n' + ("" if "workers" in text else "workers = 1\n")
    with pytest.raises(SpecError) as told:
        Grid.from_toml(head + text)
    assert str(told.value).startswith(line)
    assert "\n" not in str(told.value)


def test_a_name_and_a_size_must_be_given() -> None:
    """The results need a name; workers or shards say into how many parts to cut."""
    with pytest.raises(SpecError, match="name"):
        Grid.from_toml("workers = 1")
    with pytest.raises(SpecError, match="workers = None: is required, unless shards is given"):
        Grid.from_toml('name = "g"')


RUNS = len(Grid.from_toml(GRID).runs)


def test_a_run_that_failed_is_told_of_and_tried_again(tmp_path: Path) -> None:
    """The others are made all the same; the next time it is tried alone."""
    folder = grid_folder(tmp_path)
    unlucky = list(folder.study.runs)[1]
    progress = run_study(folder, FakeBackend(hopeless={unlucky}), Silence())
    assert progress.fields["failures"] == {unlucky: "no luck"}
    assert not progress.is_successful
    assert [run.result.reason for run in grid_results(folder).failed] == ["no luck"]
    again = FakeBackend()
    assert run_study(folder, again, Silence()).is_successful
    assert again.names == [unlucky]
    assert grid_results(folder).failed == []


def test_what_failed_may_be_left_out(tmp_path: Path) -> None:
    """A run that has not finished is removed once the file does not ask for it."""
    folder = grid_folder(tmp_path)
    first = next(iter(folder.study.runs))
    with pytest.raises(Interruption):
        run_study(folder, FakeBackend(hopeless={first}, interrupted_at={3}), Silence())
    assert folder.record(first).exists()
    text = GRID.replace("workers = [1, 2]", "workers = [2]")
    mended = StudyFolder(folder.path, Grid.from_toml(text))
    assert first not in mended.study.runs
    backend = FakeBackend()
    assert run_study(mended, backend, Silence()).is_successful
    assert len(backend.trained) == len(mended.study.runs) - 1
    assert not folder.record(first).parent.exists()


def test_a_grid_that_has_grown_runs_only_what_is_new(tmp_path: Path) -> None:
    """One more repetition is as many runs as there are settings; all runs are in grid order."""
    folder, backend = grid_folder(tmp_path), FakeBackend()
    run_study(folder, backend, Silence())
    assert backend.names == list(folder.study.runs)
    grown = grid_folder(tmp_path, GRID.replace("trials = 2", "trials = 3"))
    backend = FakeBackend()
    run_study(grown, backend, Silence())
    assert backend.names == list(grown.study.runs)[RUNS:]
    assert read_folder(grown.path, Grid).study == grown.study
