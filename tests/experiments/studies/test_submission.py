"""A run at a manager elsewhere is found again after the process that submitted it was killed."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from downpour.base.errors import SpecError, Unreachable
from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.experiments.client import Client
from downpour.experiments.studies import Grid, read_folder
from downpour.experiments.studies.folder import holder
from downpour.experiments.studies.running import submitted
from downpour.launchers import LaunchPlan, LocalCluster
from tests.experiments.studies.conftest import Interruption
from tests.experiments.studies.test_status import COMMAND
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("forked_clusters")

FIRST, SECOND = Grid.from_toml('name = "g"\nshards = 1\nbatch_size = [16, 32]').runs.values()


class Severed(Client):
    """A client whose network is gone when it comes to cancelling; as good as killed."""

    def cancel(self, experiment: str) -> None:
        raise Unreachable(experiment, "the network is gone")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A manager that no worker joins, so nothing ends by itself."""
    manager = start_manager(ManagerOptions(shared=str(tmp_path_factory.mktemp("shared")), port=0))
    yield str(manager.address)
    manager.close()


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    """A client of that manager."""
    with Client(address) as found:
        yield found


def begun_and_killed(address: str, note: Path) -> str:
    """Submit the first run and be gone; returns its experiment, which goes on."""
    with (
        Severed(address) as severed,
        pytest.raises(Interruption),
        submitted(severed, FIRST, note) as experiment,
    ):
        raise Interruption
    return experiment


def states(client: Client) -> dict[str, str]:
    """Say what became of every experiment."""
    return {one.experiment: one.state.value for one in client.experiments()}


def test_what_goes_on_is_found_again(address: str, client: Client, tmp_path: Path) -> None:
    """The same experiment is waited for; nothing is written down once it has ended."""
    note = tmp_path / "request.json"
    first = begun_and_killed(address, note)
    count = len(states(client))
    with submitted(client, FIRST, note) as again:
        assert again == first
        assert note.exists()
    assert len(states(client)) == count
    assert not note.exists()


def test_what_is_interrupted_is_cancelled(client: Client, tmp_path: Path) -> None:
    """So the workers are free, and the next run is another one."""
    note = tmp_path / "request.json"
    with pytest.raises(Interruption), submitted(client, FIRST, note) as experiment:
        raise Interruption
    assert states(client)[experiment] == "cancelled"
    assert not note.exists()


def test_what_ended_without_a_model_begins_anew(
    address: str, client: Client, tmp_path: Path
) -> None:
    """Another client may have cancelled it."""
    note = tmp_path / "request.json"
    first = begun_and_killed(address, note)
    client.cancel(first)
    with submitted(client, FIRST, note) as again:
        assert again != first


def test_what_is_not_wanted_any_more_is_cancelled(
    address: str, client: Client, tmp_path: Path
) -> None:
    """The file of the grid has changed, and another run comes first."""
    note = tmp_path / "request.json"
    first = begun_and_killed(address, note)
    with submitted(client, SECOND, note) as other:
        assert other != first
    assert states(client)[first] == "cancelled"


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"cell": 3}'])
def test_a_torn_note_is_as_good_as_none(client: Client, tmp_path: Path, torn: str) -> None:
    """It is worth one run at most."""
    note = tmp_path / "request.json"
    note.write_text(torn)
    with submitted(client, FIRST, note) as experiment:
        assert experiment in states(client)


def test_a_note_that_cannot_be_written_is_told(client: Client, tmp_path: Path) -> None:
    """Before anything is submitted."""
    before = states(client)
    with (
        pytest.raises(SpecError, match="folder = "),
        submitted(client, FIRST, tmp_path / "gone" / "request.json"),
    ):
        raise AssertionError
    assert states(client) == before


@pytest.mark.slow
def test_a_grid_that_was_killed_goes_on_with_what_its_manager_trains(tmp_path: Path) -> None:
    """Nothing is trained twice, although nothing could cancel it."""
    file, out = tmp_path / "quick.toml", tmp_path / "out"
    file.write_text('name = "quick"\nshards = 2\nepochs = 40\ntrain_limit = 400\n')
    with (
        LocalCluster(
            LaunchPlan(ManagerOptions(shared=str(tmp_path / "shared"), port=0), 1)
        ) as cluster,
        Client(cluster.address) as client,
    ):
        words = [*COMMAND, str(file), "--out", str(out), "--manager", cluster.address]
        with subprocess.Popen(words, stderr=subprocess.DEVNULL) as killed:
            until(lambda: bool(client.experiments()))
            os.kill(killed.pid, signal.SIGKILL)
        until(lambda: holder(out) is None)
        assert not read_folder(out, Grid).ended()
        subprocess.run(words, check=True, capture_output=True)
        ((experiment, state),) = states(client).items()
    (ended,) = read_folder(out, Grid).ended()
    assert (ended.summary.experiment, state) == (experiment, "finished")
