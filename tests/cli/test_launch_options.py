"""Where workers run, from the command line and from the table `[launch]` of a file."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.cluster.launchers import Launching, checked_table
from downpour.experiments.studies import Grid
from downpour.files.spec_file import read_spec

pytestmark = pytest.mark.usefixtures("forked_clusters")

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


def test_hosts_without_what_a_run_needs_get_no_worker(
    downpour: Downpour, refused: Refused, spec: Callable[[str], Path], tmp_path: Path
) -> None:
    """Their workers would train nothing; a need that no host meets is told before the start."""
    lab = "n1\nn2 label=gpu=a40 slots=2\nn3 label=gpu=t4 label=site=b\n"
    (spec(SSH).parent / "lab.txt").write_text(lab)
    words = ("run", spec(SSH), "--dry-run", "--shared", tmp_path / "lab", "--workers", 3)
    shown = downpour(*words, "--needs", "gpu")
    hosts = [line.split()[-2] for line in shown.out.splitlines() if line.startswith("# ssh")]
    assert sorted(hosts) == ["n2", "n2", "n3"]
    shard_needs = ("--shards", 2, "--needs", "gpu=a40", "--shard-needs", "1=['site=b']")
    assert "shard_needs.1 = 'site=b'" in refused(*words, *shard_needs)
    assert "needs = 'gpu=h100'" in refused(*words, "--needs", "gpu=h100")


def test_workers_have_the_labels_by_which_their_engine_placed_them(
    downpour: Downpour, tmp_path: Path
) -> None:
    """So what a spec needs is met by what the engine was asked for, and by no second option."""
    needs = ("--place", "gpu=a40", "--place", "site=b", "--needs", "gpu=a40,site")
    shown = downpour(
        "run", "--on", "slurm", *needs, "--dry-run", "--workers", 1, "--shared", tmp_path
    )
    assert shown.status == 0, shown
    assert "#SBATCH '--constraint=a40&b'" in shown.out
    assert "--label gpu=a40 --label site=b --accept-code --name" in shown.out


def test_a_run_whose_workers_have_what_it_needs_trains(downpour: Downpour, tmp_path: Path) -> None:
    """Two workers of this machine, with a label that one shard needs."""
    words = ("--needs", "gpu", "--shard-needs", "1=['gpu=a40']", "--label", "gpu=a40")
    ran = downpour("run", *words, "--shards", 2, "--epochs", 1, "--shared", tmp_path / "lab")
    assert ran.status == 0, ran


def test_the_launch_table_does_not_change_the_spec(spec: Callable[[str], Path]) -> None:
    """The spec, and so every byte, is the same without the table; so is a grid."""
    assert read_spec(spec(SSH)) == read_spec(spec(""))
    grid = 'name = "g"\nworkers = 1\n'
    assert Grid.from_file(spec(grid + SSH)) == Grid.from_file(spec(grid))


@pytest.mark.parametrize("value", ["2", '"2"', '"auto"'])
def test_a_table_gives_a_count_as_a_number_or_as_text(
    spec: Callable[[str], Path], value: str
) -> None:
    """The command line gives it as text."""
    table = checked_table(tomllib.loads(f"loaders = {value}"), spec(""), takes_workers=True)
    assert table["loaders"] == value.strip('"')


@pytest.mark.parametrize(
    ("launch", "reasons"),
    [
        ("launch = 3\n", ("launch = 3", "must be a table")),
        ('[launch]\nhots = "x"\n', ("launch.hots = 'x'", "did you mean hosts?")),
        ("[launch]\nzzz = 1\n", ("launch.zzz = 1", "there are on, workers, idle_seconds")),
        ("[launch]\non = 3\n", ("launch.on = 3", "must be text")),
        ('[launch]\non = "ss"\n', ("on = 'ss'", "must be local")),
        ("[launch]\nworkers = 1.5\n", ("launch.workers = 1.5", "must be a whole number")),
        ("[launch]\nloaders = -1\n", ("loaders = '-1'", "auto or a whole number from 0 to")),
        ("[launch]\nloaders = 1.5\n", ("loaders = '1.5'", "auto or a whole number from 0 to")),
        ("[launch]\nworkers = 0\n", ("workers = 0", "at least 1")),
        ('[launch]\npartition = "all"\n', ("partition = 'all'", "needs --on slurm")),
        (
            '[launch]\non = "slurm"\nsbatch = "--x"\n',
            ("launch.sbatch", "must be a list of strings"),
        ),
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
        assert line.startswith("on = 'slurm': cannot go with --manager")
        assert refused(study, file, "--gres", "gpu:1").startswith("gres = 'gpu:1': needs --on")
    assert "no such option" in refused("grid", spec('[launch]\nworkers = 3\non = "local"\n'))


@pytest.mark.parametrize("study", ["grid", "tune"])
def test_a_study_whose_workers_lack_what_a_run_needs_is_refused(
    refused: Refused, spec: Callable[[str], Path], tmp_path: Path, study: str
) -> None:
    """Before a folder is made; a run in the middle would wait for ever. Progress is still shown."""
    axis = {
        "grid": 'name = "g"\nworkers = 1\nneeds = [["site"], ["gpu=a40"]]\n',
        "tune": 'name = "g"\nworkers = 1\nneeds = ["gpu=a40"]\n[search]\nlearning_rate = [0.1]\n',
    }
    words = ("--shared", tmp_path / "shared", "--out", tmp_path / "out", "--label", "site=b")
    file = spec(axis[study])
    for how in ((), ("--detach",)):
        assert "needs = 'gpu=a40': the workers" in refused(study, file, *words, *how)
    assert "needs = 'gpu=a40'" in refused(study, file, *words, "--label", "gpu=t4")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "shared").exists()


def test_a_table_has_labels_and_places(downpour: Downpour, spec: Callable[[str], Path]) -> None:
    """Of all workers; those of the command line take their place."""
    table = '[launch]\non = "slurm"\nlabel = ["site=b"]\nplace = ["gpu=a40"]\nworkers = 1\n'
    file = spec(f'needs = ["site=b", "gpu=a40"]\n{table}')
    shown = downpour("run", file, "--dry-run", "--shared", "none")
    assert "--label site=b --label gpu=a40 " in shown.out
    shown = downpour("run", file, "--dry-run", "--shared", "none", "--label", "site=c")
    assert "needs = 'site=b'" in shown.err


def test_a_detached_study_is_started_with_the_same_options() -> None:
    """As words of a command line; an option that may be repeated is."""
    options = {"partition": "all", "sbatch": ["--qos=low", "--mem=1G"], "drain_seconds": 3.0}
    launching = Launching.of({"on": "slurm", "idle_seconds": 9.0, "labels": ["a=b"]}, options)
    words = "--on slurm --idle-seconds 9.0 --label a=b --partition all "
    words += "--sbatch=--qos=low --sbatch=--mem=1G --drain-seconds 3.0"
    assert launching.words() == words.split()


@pytest.mark.slow
def test_a_grid_trains_where_its_file_says(
    downpour: Downpour, spec: Callable[[str], Path], tmp_path: Path
) -> None:
    """Here in threads of this process."""
    file = spec('name = "g"\nworkers = 1\nseed = 1\n[launch]\non = "inline"\n')
    done = downpour("grid", file, "--shared", tmp_path / "shared", "--out", tmp_path / "out")
    assert done.status == 0, done
    assert "launch" not in (tmp_path / "out" / "grid.toml").read_text()
