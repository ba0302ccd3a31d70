"""The grids under examples/papers/ are what the papers did."""

import os
import sys
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.experiments.studies import Embedded, Grid, StudyFolder, grid_results, run_study
from downpour.experiments.surroundings import Surroundings
from downpour.learning.datasets import open_prepared, prepare
from tests.experiments.studies.conftest import FakeBackend, Silence

pytestmark = pytest.mark.usefixtures("forked_clusters")

PAPERS = Path(__file__).parents[3] / "examples" / "papers"


def test_both_experiments_of_ece751_are_there() -> None:
    """Four numbers of workers, and three splits by three aggregations with ten; one is in both."""
    grid = Grid.from_toml((PAPERS / "ece751.toml").read_text("utf-8"))
    workers, splits = grid.subgrids
    assert list(workers.settings()) == [(1,), (3,), (7,), (10,)]
    assert len(list(splits.settings())) == 9
    assert len(grid.runs) == 12 * 10
    assert {run.spec.epochs for run in grid.runs.values()} == {5}
    assert all(run.spec.shards == run.workers for run in grid.runs.values())


@pytest.mark.slow
def test_what_was_published_stands_beside_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script runs on a grid that is done: a line for each published number, eight figures."""
    text = (PAPERS / "ece751.toml").read_text("utf-8").replace("trials = 10", "trials = 1")
    folder = StudyFolder(tmp_path / "ece751", Grid.from_toml(text))
    run_study(folder, FakeBackend(), Silence())
    monkeypatch.syspath_prepend(str(PAPERS))
    monkeypatch.setattr(sys, "argv", ["ece751.py", str(folder.path)])
    import ece751  # type: ignore[import-not-found]

    ece751.main()
    said = capsys.readouterr().out
    assert said.count("\n| 10 workers, ") == 6
    assert "| 10 workers, class | 5 | 9.80 | " in said
    assert "| 10 | 396.64 | " in said
    assert said.count("\n| class | ") == 3
    figures = sorted((folder.path / "published").glob("*.svg"))
    assert len(figures) == 8
    shown = ["as published" in figure.read_text("utf-8") for figure in figures]
    assert shown == [True] * 6 + [False] * 2
    study = grid_results(folder)
    for number, drawn in enumerate((ece751.by_workers, ece751.final_accuracies)):
        axis = drawn(study).axes[0]
        low, high = axis.get_ylim()
        marks = [y for line in axis.lines if line.get_marker() == "x" for y in line.get_ydata()]
        assert len(marks) == (4, 3)[number]
        assert all(low < y < high for y in marks)


def test_lerats_setups_are_there() -> None:
    """One process with two threads, two workers with one each, and two processes in one worker.

    These have half of each batch, some of the layers, or one for convolutions and the other for
    dense layers.
    """
    grid = Grid.from_toml((PAPERS / "lerat.toml").read_text("utf-8"))
    asked = [
        (
            run.spec.model,
            run.spec.dataset_options["images"],
            run.workers,
            run.spec.threads,
            run.spec.inside.processes,
            run.spec.inside.how,
            run.spec.parts,
        )
        for run in grid.runs.values()
    ]
    networks = ("alexnet", 192), ("vgg16", 48)
    setups = (
        (1, 2, 1, "data", 1),
        (2, 1, 1, "data", 1),
        (1, 1, 2, "data", 2),
        (1, 1, 2, "pipeline", 4),
        (1, 1, 2, "hybrid", 2),
    )
    assert asked == 3 * [(*network, *setup) for network in networks for setup in setups]
    for run in grid.runs.values():
        assert run.spec.shards == run.workers
        assert (run.spec.batch_size, run.spec.image_size) == (8, 224)


def test_lerats_pictures_are_prepared_as_the_paper_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same ones each time, of three classes, squeezed to 224 pixels a side, normalized."""
    monkeypatch.syspath_prepend(str(PAPERS))
    monkeypatch.setenv("DOWNPOUR_ALLOW", "lerat")
    import lerat  # type: ignore[import-not-found]

    pictures, classes, *_ = lerat.fire_and_smoke(images=6)
    assert (pictures == lerat.fire_and_smoke(images=9)[0][:6]).all()
    assert (pictures != lerat.fire_and_smoke(images=6, seed=1)[0]).any()
    assert list(classes) == [0, 1, 2, 0, 1, 2]
    grid = Grid.from_toml((PAPERS / "lerat.toml").read_text("utf-8"))
    spec = next(iter(grid.runs.values())).spec.replace(dataset_options={"images": 6})
    facts = open_prepared(tmp_path, prepare(spec, tmp_path)).facts
    assert (facts.train_samples, facts.sample_shape, facts.classes) == (6, (3, 224, 224), 3)
    with pytest.raises(SpecError, match="images must be at least 3"):
        prepare(spec.replace(dataset_options={"images": 2}), tmp_path)


def test_convlstms_questions_are_there() -> None:
    """Both networks by workers, by shards and by batches; what two subgrids ask for is run once."""
    grid = Grid.from_toml((PAPERS / "convlstm.toml").read_text("utf-8"))
    assert [subgrid.name for subgrid in grid.subgrids] == ["workers", "shards", "batches"]
    assert len(grid.runs) == 2 * (4 + 2 + 2) * 3
    assert {run.spec.image_size for run in grid.runs.values()} == {50}
    assert {run.workers for run in grid.runs.values() if run.spec.shards == 32} == {2}


@pytest.mark.slow
def test_measured_and_simulated_times_stand_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script prints a line for each number of workers, though no machine had 32 of them."""
    text = (PAPERS / "convlstm.toml").read_text("utf-8").replace("trials = 3", "trials = 1")
    folder = StudyFolder(tmp_path / "convlstm", Grid.from_toml(text))
    run_study(folder, FakeBackend(), Silence())
    monkeypatch.syspath_prepend(str(PAPERS))
    monkeypatch.setattr(sys, "argv", ["convlstm.py", str(folder.path)])
    import convlstm  # type: ignore[import-not-found]

    convlstm.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum("simulated × one worker" in line for line in lines) == 1
    for network in convlstm.NETWORKS:
        of_32 = next(line for line in lines if line.startswith(f"| {network} | 32 | "))
        measured, simulated = of_32.split(" | ")[3:6], of_32.split(" | ")[6:]
        assert measured == ["–", "–", "–"]
        assert "–" not in "".join(simulated)
    assert (folder.path / "convlstm.png").read_bytes().startswith(b"\x89PNG")
    assert "simulated" in (folder.path / "convlstm.svg").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_threads_and_processes_leave_their_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AlexNet trains on few pictures in three setups; each worker's resources are on record."""
    monkeypatch.setenv("PYTHONPATH", f"{PAPERS}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.syspath_prepend(str(PAPERS))
    monkeypatch.setenv("DOWNPOUR_ALLOW", "lerat")
    text = (PAPERS / "lerat.toml").read_text("utf-8").replace("trials = 3", "trials = 1")
    text = text.replace("epochs = 3", "epochs = 1").replace("images = 192", "images = 16")
    alexnet, _, _ = text.partition('[[experiment]]\nname = "alexnet-pipeline"')
    folder = StudyFolder(tmp_path / "lerat", Grid.from_toml(alexnet))
    run_study(folder, Embedded(Surroundings(tmp_path / "shared")), Silence())
    for subgrid, processes in zip(grid_results(folder).subgrids, (1, 2, 1), strict=True):
        used = subgrid.runs[0].resources
        assert len(used) == processes
        samples = [sample for of_worker in used.values() for sample in of_worker]
        assert all(sample.memory_bytes > 57_000_000 * 4 for sample in samples)
        assert max(sample.cpu_share for sample in samples) > 0
