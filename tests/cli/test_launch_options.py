"""Where workers run, from the command line and from the table `[launch]` of a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.cli.launch_options import Launching
from downpour.cluster.launchers import LocalCluster
from downpour.experiments.studies import Grid
from downpour.files.spec_file import read_spec

Downpour = Callable[..., Any]
Refused = Callable[..., str]
SSH = '[launch]\non = "ssh"\nhosts = "lab.txt"\nworkers = 2\n'


@pytest.fixture
def spec(tmp_path: Path) -> Callable[[str], Path]:
    """Write a file of a spec, and one of hosts beside it."""
    folder = tmp_path / "recipes"
    folder.mkdir()
    (folder / "lab.txt").write_text("n1\nn2\n")

    def write(launch: str) -> Path:
        file = folder / "spec.toml"
        file.write_text(f"epochs = 2\n{launch}")
        return file

    return write


def test_a_file_says_where_its_workers_run(
    downpour: Downpour, spec: Callable[[str], Path], tmp_path: Path
) -> None:
    """Files are beside it, and the number of workers is there too."""
    shown = downpour("run", spec(SSH), "--dry-run", "--shared", tmp_path / "lab")
    assert shown.status == 0, shown
    hosts = [line.split()[-2] for line in shown.out.splitlines() if line.startswith("# ssh")]
    assert hosts == ["n1", "n2"]


def test_the_command_line_comes_first(
    downpour: Downpour, spec: Callable[[str], Path], tmp_path: Path
) -> None:
    """Options of the file that are of another launcher count for nothing then."""
    file = spec(f'{SSH}manager_host = "10.0.0.1"\n')
    words = ("run", file, "--dry-run", "--shared", tmp_path / "lab")
    one = downpour(*words, "--workers", 1, "--manager-host", "10.0.0.2")
    assert one.out.count("# ssh") == 1
    assert "--manager 10.0.0.2:PORT" in one.out
    slurm = downpour(*words, "--on", "slurm")
    assert "#SBATCH" in slurm.out
    assert "--manager 10.0.0.1:PORT" in slurm.out


def test_workers_have_the_labels_of_the_command_and_those_of_their_host(
    downpour: Downpour, spec: Callable[[str], Path], tmp_path: Path
) -> None:
    """Of the same key, the host's counts."""
    (spec(SSH).parent / "lab.txt").write_text("n1 label=site=b\nn2\n")
    words = ("run", spec(SSH), "--dry-run", "--shared", tmp_path / "lab")
    shown = downpour(*words, "--label", "site=a", "--label", "gpu=no")
    started = [line for line in shown.out.splitlines() if "--label" in line]
    assert ["site=b" in line for line in started] == [True, False]
    assert ["site=a" in line for line in started] == [False, True]
    assert all("gpu=no" in line for line in started)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--needs", "gpu"), "needs = 'gpu': the workers that are started here lack it"),
        (("--needs", "gpu,site=b", "--label", "gpu=a40"), "needs = 'site=b'"),
        (("--shard-needs", "1=['gpu']", "--shards", 2), "shard_needs.1 = 'gpu'"),
        (("--label", "gpu"), "label = 'gpu': must be KEY=VALUE"),
    ],
)
def test_a_run_whose_workers_lack_what_it_needs_is_refused(
    refused: Refused, words: tuple[str, ...], said: str
) -> None:
    """It would wait for ever."""
    assert said in refused("run", *words)


def test_a_run_whose_workers_have_what_it_needs_trains(downpour: Downpour, tmp_path: Path) -> None:
    """Two workers of this machine, with a label that one shard needs."""
    words = ("--needs", "gpu", "--shard-needs", "1=['gpu=a40']", "--label", "gpu=a40")
    ran = downpour("run", *words, "--shards", 2, "--epochs", 1, "--shared", tmp_path / "lab")
    assert ran.status == 0, ran


def test_what_is_trained_does_not_depend_on_where(spec: Callable[[str], Path]) -> None:
    """The spec, and so every byte, is the same without the table; so is a grid."""
    assert read_spec(spec(SSH)) == read_spec(spec(""))
    grid = 'name = "g"\nworkers = 1\n'
    assert Grid.from_file(spec(grid + SSH)) == Grid.from_file(spec(grid))


@pytest.mark.parametrize(
    ("launch", "reasons"),
    [
        ("launch = 3\n", ("launch = 3", "must be a table")),
        ('[launch]\nhots = "x"\n', ("launch.hots = 'x'", "did you mean hosts?")),
        ("[launch]\nzzz = 1\n", ("launch.zzz = 1", "there are on, idle_seconds, workers")),
        ("[launch]\non = 3\n", ("launch.on = 3", "must be text")),
        ('[launch]\non = "ss"\n', ("on = 'ss'", "must be local")),
        ("[launch]\nworkers = 1.5\n", ("launch.workers = 1.5", "must be a whole number")),
        ("[launch]\nworkers = true\n", ("launch.workers = True", "must be a whole number")),
        ("[launch]\nworkers = 0\n", ("workers = 0", "at least 1")),
        ('[launch]\npartition = "all"\n', ("partition = 'all'", "needs --on slurm")),
        ('[launch]\non = "slurm"\nsbatch = "--x"\n', ("launch.sbatch", "must be a list of texts")),
        ('[launch]\non = "slurm"\ndrain_seconds = "1"\n', ("drain_seconds", "must be a number")),
        ('[launch]\non = "ssh"\nhosts = "no.txt"\n', ("hosts = ", "No such file")),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(
    refused: Refused, spec: Callable[[str], Path], launch: str, reasons: tuple[str, ...]
) -> None:
    """In one line, with what is accepted."""
    line = refused("run", spec(launch), "--shared", "none")
    for reason in reasons:
        assert reason in line


def test_studies_take_the_same(refused: Refused, spec: Callable[[str], Path]) -> None:
    """But the number of workers is a field of theirs, and a manager elsewhere has its own."""
    file = spec("workers = 1\n")
    for study in ("grid", "tune"):
        line = refused(study, file, "--manager", "n1:9090", "--on", "slurm")
        assert line.startswith("on = 'slurm': is for workers of its own")
        assert refused(study, file, "--gres", "gpu:1").startswith("gres = 'gpu:1': needs --on")
    assert "no such option" in refused("grid", spec('[launch]\nworkers = 3\non = "local"\n'))


def test_a_detached_study_is_started_with_the_same_options() -> None:
    """As words of a command line; an option that may be repeated is."""
    options = {"partition": "all", "sbatch": ["--qos=low", "--mem=1G"], "drain_seconds": 3.0}
    assert Launching(LocalCluster, "slurm", options).words() == [
        "--on=slurm",
        "--idle-seconds=0.0",
        "--partition=all",
        "--sbatch=--qos=low",
        "--sbatch=--mem=1G",
        "--drain-seconds=3.0",
    ]


@pytest.mark.slow
def test_a_grid_trains_where_its_file_says(
    downpour: Downpour, spec: Callable[[str], Path], tmp_path: Path
) -> None:
    """Here in threads of this process."""
    file = spec('name = "g"\nworkers = 1\nseed = 1\n[launch]\non = "inline"\n')
    done = downpour("grid", file, "--shared", tmp_path / "shared", "--out", tmp_path / "out")
    assert done.status == 0, done
    assert "launch" not in (tmp_path / "out" / "grid.toml").read_text()
