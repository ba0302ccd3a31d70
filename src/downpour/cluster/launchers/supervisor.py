"""Keeps a cluster running: a supervisor starts, repairs and ends it, or systemd does.

The manager runs beside the supervisor, which holds the workers' tethers. So all of them end with
the supervisor, even if someone kills it. It reads its plan as JSON from standard input.

Systemd runs a manager and workers as a user's services, which outlive a login and a reboot. Units
are text that follows from the plan alone. The workers are instances of one template.
"""

import hashlib
import logging
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

from pydantic import TypeAdapter
from setproctitle import setproctitle

from downpour.base.errors import DownpourError, LaunchError, MachineTaken, SpecError
from downpour.cluster.launchers import Launcher, LaunchPlan, RunningCluster, kind_of
from downpour.cluster.launchers.cluster import PlacedCluster, Restarts
from downpour.cluster.launchers.cluster_files import ClusterFiles, ClusterInfo, StopRequest
from downpour.cluster.launchers.ssh import LocalEngine
from downpour.cluster.options import ONE_HASH_SEED, training_environment
from downpour.host.child import NOTICE_SECONDS, Child, notice_stands
from downpour.host.process import set_up_log, waiting_for_leave
from downpour.learning import allowlist
from downpour.network.rpc import ManagerClient, Trust, WorkerClient, parse_address
from downpour.network.rpc.messages import Status

RUNNING = Path("/run/systemd/system")
"""It exists if systemd is the system's first process (sd_booted(3))."""
_WORKER_NUMBER = "%i"
_WORKER_NAME = f"%H-{_WORKER_NUMBER}"
"""The machine's name and the instance's, which systemd fills in."""
_PLAIN = re.compile(r"[\w@%+=:,./-]+", re.ASCII)
_UNIT = """\
[Unit]
Description=Downpour {role} of {shared}
StartLimitIntervalSec=0

[Service]
{environment}ExecStart={command}
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=5
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""


def units(plan: LaunchPlan, *, with_manager: bool = True) -> dict[str, str]:
    """Return the text of each unit by its file's name."""
    if plan.manager.credentials.token and not plan.manager.credentials.token_file:
        raise SpecError("service", value=True, accepted="needs --token-file, not DOWNPOUR_TOKEN")
    manager = plan.reached_at(plan.manager.host).manager
    files = replace(manager.credentials, token="").to_environment()
    tag = _tag(manager.shared)
    worker = replace(plan.worker(1, ""), name=_WORKER_NAME, credentials=manager.credentials)
    common = {**ONE_HASH_SEED, **allowlist.environment(), **files}
    made = {}
    if with_manager:
        name = f"downpour-{tag}-manager.service"
        made[name] = _unit("manager", manager.shared, manager.arguments(), common)
    environment = {**training_environment(plan.threads), **common}
    name = f"downpour-{tag}-worker@.service"
    words = [*worker.arguments(), "--place", _WORKER_NUMBER]
    made[name] = _unit("worker", manager.shared, words, environment)
    return made


def enable(plan: LaunchPlan, texts: Mapping[str, str]) -> list[str]:
    """Write units, start them now and at each boot, with a token if needed; returns their names."""
    from downpour.files.store import SharedDirectory
    from downpour.files.store.shared_directory import make_token

    _check_running()
    has_manager = any("-manager." in name for name in texts)
    SharedDirectory.open(Path(plan.manager.shared), create=has_manager)
    credentials = plan.reached_at(plan.manager.host).manager.credentials
    if credentials.token_file:
        make_token(Path(credentials.token_file))
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text)
    numbers = range(1, plan.workers + 1)
    instances = {name: numbers if "@." in name else range(1) for name in texts}
    names = [name.replace("@.", f"@{n}.") for name, many in instances.items() for n in many]
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", *names)
    return names


def disable(shared: str) -> list[str]:
    """Stop the units of a shared directory and remove them; returns their names."""
    _check_running()
    files = sorted(_folder().glob(f"downpour-{_tag(shared)}-*.service"))
    if not files:
        return []
    # Stop the workers first, so that they can unregister from their manager.
    names = [file.name.replace("@.", "@*.") for file in reversed(files)]
    _systemctl("stop", *names)
    _systemctl("disable", *(file.name for file in files))
    for file in files:
        file.unlink()
    _systemctl("daemon-reload")
    return names


def linger() -> bool:
    """Let this user's services run without a login; returns whether systemd allowed it."""
    words = ["loginctl", "enable-linger"]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0  # noqa: S603


def _check_running() -> None:
    if not RUNNING.is_dir():
        reason = "systemd does not run here, so it cannot keep services; leave out --service"
        raise LaunchError(reason, asked_wrongly=True)


def _systemctl(*words: str) -> None:
    asked = ["systemctl", "--user", *words]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode != 0:
        reason = " ".join(done.stderr.split()) or f"status {done.returncode}"
        raise LaunchError(f"systemctl --user {words[0]}: {reason}", asked_wrongly=True)


def _folder() -> Path:
    return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "systemd" / "user"


def _tag(shared: str) -> str:
    """Return a tag that tells the units of one shared directory from those of another."""
    readable = re.sub(r"[^A-Za-z0-9]+", "-", shared)[-32:].strip("-").lower()
    return f"{readable}-{hashlib.sha256(shared.encode()).hexdigest()[:6]}"


def _unit(role: str, shared: str, words: Sequence[str], environment: Mapping[str, str]) -> str:
    command = [sys.executable, "-m", "downpour", *words]
    lines = [f"Environment={_word(f'{name}={value}')}\n" for name, value in environment.items()]
    return _UNIT.format(
        role=role,
        shared=shared.replace("%", "%%"),
        environment="".join(lines),
        command=" ".join(_word(word).replace("$", "$$") for word in command),
    )


def _word(word: str) -> str:
    """Return a word as systemd reads it (systemd.syntax(7)); only our own words have specifiers."""
    text = word if word in {_WORKER_NAME, _WORKER_NUMBER} else word.replace("%", "%%")
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedPlan:
    """A supervisor's orders: a plan, and the launcher `on` with its options."""

    on: str
    options: Mapping[str, Any]
    plan: LaunchPlan

    @property
    def launcher(self) -> Launcher:
        """The launcher of the plan; on this machine, one that restarts workers."""
        if self.on == "local":
            return lambda plan: PlacedCluster(plan, LocalEngine(plan.manager.host))
        return kind_of(self.on).launcher(self.options)


class Supervisor:
    """Keeps one cluster running until its end; `wait` returns true early when a signal comes."""

    def __init__(
        self, on: str, plan: LaunchPlan, launcher: Launcher, wait: Callable[[float], bool]
    ) -> None:
        self._plan = plan
        self._launcher = launcher
        self._wait = wait
        self._folder = ClusterFiles(Path(plan.manager.shared))
        self._told = ClusterInfo(on=on, hostname=socket.gethostname(), pid=os.getpid())
        self._written: ClusterInfo | None = None

    def keep(self) -> None:
        """Start the cluster, and restart it whenever it ends on its own and no notice stands."""
        with self._folder.kept():
            self._tell(state="starting")
            restarts = Restarts(time.monotonic)
            while True:
                try:
                    return self._serve()
                except LaunchError as error:
                    if not self._told.manager:  # it has never been up, so its user still waits
                        raise
                    trouble, waits = str(error), isinstance(error, MachineTaken)
                log.warning("%s; the supervisor restarts it", trouble)
                self._tell(state="waiting" if waits else "starting", trouble=trouble)
                while not restarts.is_due() or notice_stands(self._plan.notice):
                    seconds = NOTICE_SECONDS if restarts.is_due() else LOOK_SECONDS
                    if self._wait_for_stop(seconds) is not None:
                        return None
                restarts.begin()
                self._tell(state="starting", trouble=trouble)

    def _serve(self) -> None:
        """Run the cluster until its orderly end; raises LaunchError if it ends on its own."""
        with self._launcher(self._plan) as cluster:
            trust = Trust.load(cluster.credentials)
            with ManagerClient(parse_address(cluster.address), trust=trust) as manager:
                self._tell(
                    state="up",
                    manager=cluster.address,
                    token_file=self._folder.inside(cluster.credentials.token_file),
                    log=str(cluster.log),
                    trouble="",
                )
                stop = self._look_after(cluster, manager)
                self._tell(state="stopping")
                _drain(manager, trust, stop.drain_seconds, self._wait)

    def _look_after(self, cluster: RunningCluster, manager: ManagerClient) -> StopRequest:
        """Restart dead processes, and start workers for policies, until someone asks to stop."""
        while True:
            cluster.check()
            status = _status(manager)
            if status is not None:
                cluster.provide(status.wanted_workers, status.idle_workers)
                ours = [one for one in status.workers if one.worker in cluster.workers]
                self._tell(
                    registered=tuple(sorted(one.worker for one in ours)),
                    devices=tuple(sorted({one.device for one in ours if one.device})),
                )
            self._tell(workers=tuple(cluster.workers))
            stop = self._wait_for_stop(LOOK_SECONDS)
            if stop is not None:
                return stop

    def _wait_for_stop(self, seconds: float) -> StopRequest | None:
        if self._wait(seconds):
            return StopRequest()
        try:
            return self._folder.stop_request()
        except DownpourError as error:  # the directory is away, or a later version wrote this
            log.warning("%s", error)
            return None

    def _tell(self, **changes: Any) -> None:
        """Describe the cluster again, if anything has changed."""
        self._told = replace(self._told, **changes)
        if self._told != self._written:
            with suppress(DownpourError):  # the directory is away; the next time will do
                self._folder.write(self._told)
                self._written = self._told


def _status(manager: ManagerClient) -> Status | None:
    """Return a manager's status; None if it does not answer now."""
    with suppress(DownpourError):
        return manager.status()
    return None


def _drain(
    manager: ManagerClient, trust: Trust, seconds: float, wait: Callable[[float], bool]
) -> None:
    deadline = time.monotonic() + seconds
    status = _status(manager) if seconds else None
    for worker in status.workers if status else ():
        with (
            suppress(DownpourError),
            WorkerClient(parse_address(worker.address), trust=trust) as one,
        ):
            one.drain()
    while status and status.workers and time.monotonic() < deadline:
        if wait(LOOK_SECONDS):
            return
        status = _status(manager)


def main() -> int:
    """Keep the requested cluster running; returns the exit status."""
    set_up_log(logging.WARNING, "%(asctime)s %(levelname)s %(name)s: %(message)s")
    setproctitle("downpour: supervisor")
    kept = TypeAdapter(SupervisedPlan).validate_json(sys.stdin.buffer.read())
    try:
        Supervisor(kept.on, kept.plan, kept.launcher, waiting_for_leave()).keep()
    except DownpourError as error:
        sys.stderr.write(f"downpour: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())


START_SECONDS = 180.0
"""Hosts have a minute to answer, and the manager has two to start."""
JOIN_SECONDS = 60.0
"""Importing torch takes seconds; a busy engine may take hours, which is too long to wait."""
STOP_SECONDS = 150.0
"""More than any engine takes to close: Slurm's has 90 s."""
_LOOK_AT_END_SECONDS = 0.1


def start(kept: SupervisedPlan) -> ClusterInfo:
    """Start a supervisor in a separate session; returns once the cluster is up.

    By then its workers have registered, or have had `JOIN_SECONDS` to do so, because an engine may
    let them wait for a machine.
    """
    folder = ClusterFiles(Path(kept.plan.manager.shared))
    if folder.is_kept():
        raise LaunchError(folder.taken(), asked_wrongly=True)
    log = folder.root / "logs" / "cluster"
    log.parent.mkdir(parents=True, exist_ok=True)
    supervisor = Child(__name__, log=log, starts_log=True)
    try:
        supervisor.tell(TypeAdapter(SupervisedPlan).dump_json(kept), is_last=True)
        _wait_until_up(supervisor, folder)
        cluster = _wait_for_workers(supervisor, folder)
    except BaseException:
        supervisor.process.terminate()
        supervisor.process.wait()
        raise
    # A caller may outlive the supervisor, which must not remain as a zombie then.
    Thread(target=supervisor.process.wait, daemon=True).start()
    return cluster


def stop(folder: ClusterFiles, drain_seconds: float) -> ClusterInfo | None:
    """End a cluster, wherever its supervisor is; returns its description, or None without one."""
    cluster = folder.read()
    if not folder.is_kept():
        folder.clear()
        return cluster
    folder.write(StopRequest(drain_seconds=drain_seconds))
    deadline = time.monotonic() + drain_seconds + STOP_SECONDS
    while folder.is_kept():
        if time.monotonic() >= deadline:
            who = f"process {cluster.pid} of {cluster.hostname}" if cluster else "its supervisor"
            raise LaunchError(f"{who} has not stopped it yet; see {folder.root / 'logs'}")
        time.sleep(_LOOK_AT_END_SECONDS)
    return cluster


def _wait_for_workers(supervisor: Child, folder: ClusterFiles) -> ClusterInfo:
    """Wait until every worker has registered or ended for good, or until the time is up."""
    deadline = time.monotonic() + JOIN_SECONDS
    while True:
        cluster = folder.read()
        if cluster is None or supervisor.process.poll() is not None:
            where = folder.root / "logs"
            raise LaunchError(f"the cluster ended right after its start; see {where}")
        all_here = cluster.workers and set(cluster.workers) <= set(cluster.registered)
        if all_here or time.monotonic() >= deadline:
            return cluster
        time.sleep(_LOOK_AT_END_SECONDS)


def _wait_until_up(supervisor: Child, folder: ClusterFiles) -> ClusterInfo:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if supervisor.process.poll() is not None:
            reason = supervisor.last_words or f"it ended; see {supervisor.log}"
            wrong = supervisor.process.returncode == SpecError.exit_status
            raise LaunchError(reason, asked_wrongly=wrong)
        cluster = folder.read()
        if cluster is not None and cluster.pid == supervisor.process.pid and cluster.state == "up":
            return cluster
        time.sleep(_LOOK_AT_END_SECONDS)
    raise LaunchError(f"the cluster is not up after {START_SECONDS:.0f} s; see {supervisor.log}")
