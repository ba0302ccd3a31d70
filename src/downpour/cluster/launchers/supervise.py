"""The work of `downpour up` and `downpour down`: start a detached supervisor, and stop it."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

from pydantic import TypeAdapter

from downpour.base.errors import LaunchError
from downpour.cluster.launchers.cluster_files import ClusterFiles, ClusterInfo, StopRequest
from downpour.cluster.launchers.supervisor import SupervisedPlan

START_SECONDS = 180.0
"""Hosts have a minute to answer, and the manager has two to start."""
JOIN_SECONDS = 60.0
"""Importing torch takes seconds; a busy engine may take hours, which is too long to wait."""
STOP_SECONDS = 150.0
"""More than any engine takes to close: Slurm's has 90 s."""
_LOOK_SECONDS = 0.1
_ASKED_WRONGLY = 2


def start(kept: SupervisedPlan) -> ClusterInfo:
    """Start a supervisor in a separate session; returns once the cluster is up.

    By then its workers have registered, or have had `JOIN_SECONDS` to do so, because an engine may
    let them wait for a machine.

    Raises:
        LaunchError: the directory has a cluster already, or this one cannot start; then nothing is
            left running.
    """
    folder = ClusterFiles(Path(kept.plan.manager.shared))
    if folder.is_kept():
        raise LaunchError(folder.taken(), asked_wrongly=True)
    log = folder.root / "logs" / "cluster"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as written:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "downpour.cluster.launchers.supervisor"],
            stdin=subprocess.PIPE,
            stdout=written,
            stderr=written,
            start_new_session=True,  # neither Ctrl-C nor a closed terminal reaches it
        )
    try:
        _ask(supervisor, kept)
        _wait_until_up(supervisor, folder, log)
        cluster = _wait_for_workers(supervisor, folder)
    except BaseException:
        supervisor.terminate()
        supervisor.wait()
        raise
    # A caller may outlive the supervisor, which must not remain as a zombie then.
    Thread(target=supervisor.wait, daemon=True).start()
    return cluster


def stop(folder: ClusterFiles, drain_seconds: float) -> ClusterInfo | None:
    """End a cluster, wherever its supervisor is; returns its description, or None without one.

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
            who = f"process {cluster.pid} of {cluster.hostname}" if cluster else "its supervisor"
            raise LaunchError(f"{who} has not stopped it yet; see {folder.root / 'logs'}")
        time.sleep(_LOOK_SECONDS)
    return cluster


def _ask(supervisor: subprocess.Popen[bytes], kept: SupervisedPlan) -> None:
    with suppress(BrokenPipeError):  # one that has died says why in its log
        if supervisor.stdin is not None:
            supervisor.stdin.write(TypeAdapter(SupervisedPlan).dump_json(kept))
            supervisor.stdin.close()


def missing(cluster: ClusterInfo, workers: int) -> list[str]:
    """Return the names of the workers of a plan that have not registered."""
    planned = [f"worker-{number}" for number in range(1, workers + 1)]
    return [name for name in planned if name not in cluster.registered]


def _wait_for_workers(supervisor: subprocess.Popen[bytes], folder: ClusterFiles) -> ClusterInfo:
    """Wait until every worker has registered or ended for good, or until the time is up."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        cluster = folder.read()
        if cluster is None or supervisor.poll() is not None:
            raise LaunchError(
                f"the cluster ended right after its start; see {folder.root / 'logs'}"
            )
        all_here = cluster.workers and set(cluster.workers) <= set(cluster.registered)
        if all_here or time.monotonic() >= deadline:
            return cluster
        time.sleep(_LOOK_SECONDS)


def _wait_until_up(
    supervisor: subprocess.Popen[bytes], folder: ClusterFiles, log: Path
) -> ClusterInfo:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if supervisor.poll() is not None:
            lines = log.read_text("utf-8", errors="replace").strip().splitlines()
            reason = lines[-1].removeprefix("downpour: ") if lines else f"it ended; see {log}"
            raise LaunchError(reason, asked_wrongly=supervisor.returncode == _ASKED_WRONGLY)
        cluster = folder.read()
        if cluster is not None and cluster.pid == supervisor.pid and cluster.state == "up":
            return cluster
        time.sleep(_LOOK_SECONDS)
    raise LaunchError(f"the cluster is not up after {START_SECONDS:.0f} s; see {log}")
