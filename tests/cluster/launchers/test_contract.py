"""What each launcher promises, and how a file or a call chooses one."""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from socket import create_server

import psutil
import pytest

import downpour
from downpour import Result
from downpour.base.errors import LaunchError, SpecError
from downpour.cluster.launchers import launch_of, owners
from downpour.cluster.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.launchers import (
    ComposeOptions,
    InlineCluster,
    Launcher,
    LaunchPlan,
    LocalCluster,
    PlacedCluster,
    RayOptions,
    RunningCluster,
    SlurmOptions,
    SshOptions,
    on_compose,
    on_ray,
    on_slurm,
    on_ssh,
)
from tests.cluster.docker.conftest import ROOT, compose_command, engine, image  # noqa: F401 - fixtures
from tests.cluster.launchers.processes import Processes
from tests.cluster.ray_cluster.conftest import lasting_nodes  # noqa: F401 - a fixture
from tests.cluster.slurm.conftest import slurm  # noqa: F401 - a fixture
from tests.cluster.ssh.conftest import ssh  # noqa: F401 - a fixture
from tests.cluster.ssh.lab import HOSTS
from tests.specs import model_of

SPEC = Spec(shards=3, epochs=2, batch_size=32, task_options={}, learning_rate=0.05)


def placed(plan: LaunchPlan) -> RunningCluster:
    """Place the workers by an engine of processes."""
    return PlacedCluster(plan, Processes())


LAUNCHERS: dict[str, Launcher] = {"local": LocalCluster, "inline": InlineCluster, "placed": placed}
_LONG = [pytest.mark.slow, pytest.mark.timeout(900)]
"""An image may have to be built first, or a Slurm be installed."""
ELSEWHERE = [pytest.param(name, marks=_LONG) for name in ("ssh", "compose", "slurm", "ray")]


@pytest.fixture(params=[*LAUNCHERS, *ELSEWHERE])
def launcher(request: pytest.FixtureRequest) -> Launcher:
    """Each launcher."""
    match request.param:
        case "compose":
            request.getfixturevalue("compose_command")
            built, file = request.getfixturevalue("image"), str(ROOT / "docker/compose.yaml")
            return on_compose(ComposeOptions(compose_file=file, image=built))
        case "ssh":
            lab = request.getfixturevalue("ssh")
            return on_ssh(SshOptions(hosts=lab.hosts(*HOSTS), ssh_config=str(lab.config)))
        case "slurm":
            request.getfixturevalue("slurm")
            return on_slurm(SlurmOptions(partition="all", time="5"))
        case "ray":
            nodes = request.getfixturevalue("lasting_nodes")
            return on_ray(RayOptions(ray_address=nodes.address))
    return LAUNCHERS[request.param]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """The result of this machine's processes."""
    return trained(LocalCluster, tmp_path_factory.mktemp("usual"))


def trained(launcher: Launcher, shared: Path) -> Result:
    """Train with three workers."""
    return downpour.run(SPEC, workers=3, shared=shared, on=launcher, progress=False)


def started() -> set[psutil.Process]:
    """Return the processes that come from this one, without those that Ray keeps for later."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if not process.name().startswith("ray::"):
                found.add(process)
    return found


@pytest.mark.slow
def test_the_model_has_the_bytes_that_it_has_everywhere(
    launcher: Launcher, usual: Result, tmp_path: Path
) -> None:
    """Wherever workers run; with another build of torch, those of another run there."""
    result = trained(launcher, tmp_path)
    if result.numeric_classes.keys() != usual.numeric_classes.keys():
        usual = trained(launcher, tmp_path)
    assert model_of(result) == model_of(usual)


@pytest.mark.slow
def test_nothing_is_left_of_a_cluster_not_even_after_an_error(
    launcher: Launcher, tmp_path: Path
) -> None:
    """Every process and every thread that it has started ends with the block."""
    before = set(threading.enumerate())
    processes = started()
    with (
        suppress(KeyboardInterrupt),
        embed(SPEC, 2, Surroundings(tmp_path, on=launcher)) as running,
    ):
        cluster, client = running
        next(status for status in client.watch() if len(status.workers) == 2)
        cluster.check()
        raise KeyboardInterrupt
    assert not started() - processes
    left = set(threading.enumerate()) - before
    for thread in left:  # an import that a worker has begun cannot be stopped
        thread.join(60)
    assert not any(thread.is_alive() for thread in left)


@pytest.mark.slow
def test_a_port_that_is_taken_is_told_in_one_line(launcher: Launcher, tmp_path: Path) -> None:
    """The user can correct it, so the exit status is 2."""
    with create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        plan = LaunchPlan(ManagerOptions(shared=str(tmp_path), port=port), 1)
        with pytest.raises(LaunchError, match=f"port = {port}") as told, launcher(plan):
            pass
    assert told.value.exit_status == 2


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
