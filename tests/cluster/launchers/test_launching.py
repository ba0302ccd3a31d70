"""The table `[launch]` of a file, as `downpour.run` reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest

import downpour
from downpour.base.errors import SpecError
from downpour.cluster.launchers import launch_of, owners


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str], Path]:
    """Write a file with a table."""

    def write(table: str) -> Path:
        path = tmp_path / "spec.toml"
        path.write_text(f"epochs = 1\nshards = 2\n{table}")
        return path

    return write


def test_a_file_without_a_table_is_trained_here(file: Callable[[str], Path]) -> None:
    """As one that is given no launcher."""
    table = launch_of(file(""))
    assert (table.on, table.options, table.settings, table.workers) == ("local", {}, {}, None)


def test_a_table_names_a_launcher_its_options_and_workers(
    file: Callable[[str], Path], tmp_path: Path
) -> None:
    """Paths are beside the file; what is left out is the launcher's own default."""
    (tmp_path / "lab.txt").write_text("host-1\n")
    table = launch_of(file('[launch]\non = "ssh"\nhosts = "lab.txt"\nworkers = 2\n'))
    assert (table.on, table.workers) == ("ssh", 2)
    assert table.options == {"hosts": str(tmp_path / "lab.txt")}


def test_an_option_of_another_launcher_is_refused(file: Callable[[str], Path]) -> None:
    """In a line that names the launchers that have it."""
    path = file('[launch]\non = "ssh"\npartition = "all"\n')
    with pytest.raises(SpecError, match=r"launch\.partition = 'all': needs on = slurm"):
        launch_of(path)
    assert owners()["manager_host"] == ["slurm", "ssh"]


def test_a_run_from_python_goes_where_the_file_says(
    file: Callable[[str], Path], tmp_path: Path
) -> None:
    """It used to train on this machine, and to say nothing of it; a launcher that is given wins."""
    path, shared = file('[launch]\non = "ssh"\nhosts = "none.txt"\n'), tmp_path / "shared"
    with pytest.raises(SpecError, match=r"hosts = .*none\.txt"):
        downpour.run(path, shared=shared, progress=False)
    result = downpour.run(path, shared=shared, progress=False, on="inline", workers=1)
    assert result.model_file is not None


def test_a_run_from_python_whose_workers_lack_a_label_is_refused(
    file: Callable[[str], Path], tmp_path: Path
) -> None:
    """It would wait for ever; labels of all workers stand in the table."""
    needy, shared = 'needs = ["gpu=a40", "site"]\n', tmp_path / "shared"
    with pytest.raises(SpecError, match=r"needs = 'gpu=a40': the workers to start lack this label"):
        downpour.run(downpour.Spec(needs=("gpu=a40",)), shared=shared, workers=1)
    with pytest.raises(SpecError, match=r"needs = 'site': the workers"):
        downpour.run(file(f'{needy}[launch]\nlabel = ["gpu=a40"]\n'), shared=shared, workers=1)
    assert not shared.exists()
    table = '[launch]\non = "inline"\nlabel = ["gpu=a40", "site=b"]\n'
    result = downpour.run(file(f"{needy}{table}"), shared=shared, workers=2, progress=False)
    assert result.state == "finished"
