"""`downpour run --on slurm` as a user of Slurm calls it, on three nodes of a real one."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import downpour
from downpour import Client
from downpour.base.errors import DownpourError, ProtocolError
from downpour.core.spec import Spec
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.files.store import SharedDirectory
from downpour.host.paths import Credentials
from downpour.launchers import SlurmOptions, on_slurm
from downpour.network.discovery import Managers
from downpour.network.rpc.messages import Status
from downpour.network.rpc.trust import OPEN
from tests.cluster.slurm.lab import NODES, Lab
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPTS = Path(__file__).parents[3] / "examples" / "slurm"

RUN = (sys.executable, "-m", "downpour", "run", "--on", "slurm")


def test_slurms_refusal_is_told_in_its_own_words(slurm: Lab, tmp_path: Path) -> None:
    """In one line, with status 2, and no job stays; sbatch itself takes a limit too long."""
    refused = run(tmp_path, "--partition", "none")
    assert refused.stderr.startswith("downpour: sbatch: invalid partition specified: none; ")
    assert refused.stderr.count("\n") == 1
    assert refused.returncode == 2
    refused = run(tmp_path, "--time", "2:00:00", "--workers", "1")
    assert "worker-1: Slurm will not start it: PartitionTimeLimit; see " in refused.stderr
    assert refused.returncode == 2
    assert slurm.tasks() == []


def test_workers_run_on_the_nodes_whose_feature_was_asked_for(slurm: Lab, tmp_path: Path) -> None:
    """And have it as a label, so that what the spec needs is met; others are refused by Slurm."""
    words = [*RUN, "--shared", str(tmp_path), "--workers", "2", "--needs", "rack=n2"]
    words += ["--place", "rack=n2", "--place", "site=all", "--shards", "2", "--epochs", "500"]
    with subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 - no threads here yet
    ) as running:
        until(lambda: [state for _, state, _ in slurm.tasks()] == ["RUNNING"] * 2)
        assert {node for _, _, node in slurm.tasks()} == {"n2"}
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    refused = run(tmp_path, "--place", "rack=n9", "--workers", "1")
    assert refused.stderr.startswith("downpour: sbatch: ")
    assert "feature" in refused.stderr.lower()
    assert refused.returncode == 2
    assert slurm.tasks() == []


def _hear_ctrl_c() -> None:
    """Take the signal, also where the tests run in the background of a shell, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_leaves_no_job(slurm: Lab, tmp_path: Path) -> None:
    """Also of workers that have not registered yet."""
    words = [*RUN, "--shared", str(tmp_path), "--workers", "2", "--epochs", "500"]
    with subprocess.Popen(
        words,
        stderr=subprocess.PIPE,
        preexec_fn=_hear_ctrl_c,  # noqa: PLW1509 - no threads here yet
    ) as running:
        until(lambda: [state for _, state, _ in slurm.tasks()] == ["RUNNING"] * 2)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert running.returncode == 130
    assert slurm.tasks() == []


def test_a_manager_as_a_job_and_workers_that_find_it(
    slurm: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers may be first; one that gets the signal before its limit comes back by itself."""
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("DOWNPOUR_SHARED", str(shared))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    usual = ["sbatch", "--parsable", f"--chdir={tmp_path}", "--time=5", "--exclusive"]
    workers = slurm.run(*usual, "--array=1-2", str(SCRIPTS / "workers.sbatch"))
    manager = slurm.run(*usual, str(SCRIPTS / "manager.sbatch"))
    credentials = Credentials(token_file=str(shared / "token"))
    until(lambda: leads(shared))
    with Client(shared=shared, credentials=credentials) as client:
        until(lambda: len(names(client)) == 2)
        experiment = client.submit(Spec(shards=2, epochs=2))
        client.wait(experiment)
        slurm.run("scancel", "--batch", "--signal=USR2", f"{workers}_1")
        until(lambda: names(client) == ["worker-2"])
        until(lambda: len(names(client)) == 2)
    slurm.run("scancel", manager, workers)
    until(lambda: slurm.tasks() == [])


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command that ends by itself."""
    command = [*RUN, "--shared", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def names(client: Client) -> list[str]:
    """Return the names of the workers; none while a manager that has just begun does not answer."""
    with suppress(DownpourError):
        return sorted(one.worker for one in client.status().workers)
    return []


def leads(shared: Path) -> bool:
    """Whether a manager has begun its term in a folder, and made its token."""
    try:
        Managers(SharedDirectory(shared), None, OPEN).first()
    except DownpourError:
        return False
    return (shared / "token").exists()


OPTIONS = SlurmOptions(partition="all", time="5", sbatch=("--exclusive",))

SPEC = Spec(shards=3, epochs=10, batch_size=32, learning_rate=0.05)


def test_a_run_goes_on_when_slurm_takes_workers_away(slurm: Lab, tmp_path: Path) -> None:
    """A node is lost, and another worker gets the signal that Slurm sends before a time limit.

    Others do their shards meanwhile, the bytes are those of a run here, and both are replaced: the
    one by another job, the other by Slurm's own requeueing.
    """
    with embed(SPEC, 3, Surroundings(tmp_path / "there", on=on_slurm(OPTIONS))) as (
        cluster,
        client,
    ):

        def reach(holds: Callable[[Status], bool]) -> None:
            def look() -> bool:
                cluster.check()
                with suppress(ProtocolError):  # this machine is busy
                    return holds(client.status())
                return False

            until(look)

        reach(lambda status: len(status.workers) == 3)
        at = {node: task for task, _, node in slurm.tasks()}
        assert set(at) == set(NODES)
        experiment = client.submit(SPEC)
        reach(lambda status: rounds(status) >= 2)
        slurm.lose_node("n3")
        reach(lambda status: rounds(status) >= 5)
        slurm.run("scancel", "--batch", "--signal=USR2", at["n1"])
        there = client.wait(experiment, check=cluster.check)
        slurm.start_node("n3")
        reach(lambda status: "worker-1" in {one.worker for one in status.workers})
        assert at["n1"] not in {task for task, _, _ in slurm.tasks()}
        until(lambda: slurm.restarts(at["n3"]) == 1)
    assert slurm.tasks() == []
    here = downpour.run(SPEC, workers=3, shared=tmp_path / "here", on="inline", progress=False)
    assert there.model_file is not None
    assert here.model_file is not None
    assert there.model_file.read_bytes() == here.model_file.read_bytes()


def rounds(status: Status) -> int:
    """Return how many rounds are done of the experiment that is active, if one is."""
    return status.experiment.rounds_done if status.experiment is not None else 0
