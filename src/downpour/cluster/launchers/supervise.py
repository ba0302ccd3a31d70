"""What `downpour up` and `downpour down` do: start a keeper, detached, and tell it to stop."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

from pydantic import TypeAdapter

from downpour.base.errors import LaunchError
from downpour.cluster.launchers.cluster_files import StandingCluster, StandingFolder, StopRequest
from downpour.cluster.launchers.supervisor import KeptPlan

START_SECONDS = 180.0
"""Hosts have a minute to answer, and the manager has two to start."""
JOIN_SECONDS = 60.0
"""Importing torch takes seconds; a busy engine may take hours, which is too long to wait."""
STOP_SECONDS = 150.0
"""More than any engine takes to close: Slurm's has 90 s."""
_LOOK_SECONDS = 0.1
_ASKED_WRONGLY = 2


def start(kept: KeptPlan) -> StandingCluster:
    """Start a keeper in a session of its own; returns once the cluster is up.

    Its workers have registered then, or had `JOIN_SECONDS` to do so: an engine may have them wait
    for a machine.

    Raises:
        LaunchError: there is one already, or it cannot be started; nothing is left then.
    """
    folder = StandingFolder(Path(kept.plan.manager.shared))
    if folder.is_kept():
        raise LaunchError(folder.taken(), asked_wrongly=True)
    log = folder.root / "logs" / "cluster"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as written:
        keeper = subprocess.Popen(
            [sys.executable, "-m", "downpour.cluster.launchers.supervisor"],
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=written,
            start_new_session=True,  # neither Ctrl-C nor a closed terminal reaches it
        )
    try:
        _ask(keeper, kept)
        _wait_until_up(keeper, folder, log)
        cluster = _wait_for_workers(keeper, folder)
    except BaseException:
        keeper.terminate()
        keeper.wait()
        raise
    # A caller may live longer than the cluster, which must not stay as a zombie then.
    Thread(target=keeper.wait, daemon=True).start()
    return cluster


def stop(folder: StandingFolder, drain_seconds: float) -> StandingCluster | None:
    """End a cluster, wherever its keeper is; returns what there was, None if there was none.

    Raises:
        LaunchError: it has not ended in time.
        SharedDirectoryError: the directory cannot be used.
    """
    cluster = folder.read()
    if not folder.is_kept():
        folder.clear()
        return cluster
    folder.ask_to_stop(StopRequest(drain_seconds=drain_seconds))
    deadline = time.monotonic() + drain_seconds + STOP_SECONDS
    while folder.is_kept():
        if time.monotonic() >= deadline:
            who = f"process {cluster.pid} of {cluster.hostname}" if cluster else "its keeper"
            raise LaunchError(f"{who} has not stopped it yet; see {folder.root / 'logs'}")
        time.sleep(_LOOK_SECONDS)
    return cluster


def _ask(keeper: subprocess.Popen[bytes], kept: KeptPlan) -> None:
    with suppress(BrokenPipeError):  # one that has died says why in its log
        if keeper.stdin is not None:
            keeper.stdin.write(TypeAdapter(KeptPlan).dump_json(kept))
            keeper.stdin.close()


def missing(cluster: StandingCluster, workers: int) -> list[str]:
    """Return the names of the workers of a plan that have not registered."""
    planned = [f"worker-{number}" for number in range(1, workers + 1)]
    return [name for name in planned if name not in cluster.registered]


def _wait_for_workers(keeper: subprocess.Popen[bytes], folder: StandingFolder) -> StandingCluster:
    """Wait until every worker has registered, has ended for good, or has had its time."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        cluster = folder.read()
        if cluster is None or keeper.poll() is not None:
            raise LaunchError(f"the cluster has ended again; see {folder.root / 'logs'}")
        all_here = cluster.workers and set(cluster.workers) <= set(cluster.registered)
        if all_here or time.monotonic() >= deadline:
            return cluster
        time.sleep(_LOOK_SECONDS)


def _wait_until_up(
    keeper: subprocess.Popen[bytes], folder: StandingFolder, log: Path
) -> StandingCluster:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if keeper.poll() is not None:
            lines = log.read_text("utf-8", errors="replace").strip().splitlines()
            reason = lines[-1].removeprefix("downpour: ") if lines else f"it ended; see {log}"
            raise LaunchError(reason, asked_wrongly=keeper.returncode == _ASKED_WRONGLY)
        cluster = folder.read()
        if cluster is not None and cluster.pid == keeper.pid and cluster.state == "up":
            return cluster
        time.sleep(_LOOK_SECONDS)
    raise LaunchError(f"the cluster is not up after {START_SECONDS:.0f} s; see {log}")
