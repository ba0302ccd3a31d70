"""Runs workers on a tether, on other machines by ssh or here.

Each worker is the child of a shell whose input we hold open; by ssh, its connection is the tether.
"""

import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Lock, Thread

from downpour.base.errors import LaunchError, last_line, one_line
from downpour.base.values import merged, missing
from downpour.cluster.launchers import Ended, Launcher, LauncherKind, LaunchPlan, ssh_script
from downpour.cluster.launchers.cluster import PlacedCluster
from downpour.cluster.launchers.slurm import reachable_host
from downpour.cluster.launchers.ssh_script import SshOptions
from downpour.cluster.options import WorkerOptions, training_environment
from downpour.host.process import signal_group
from downpour.learning.auto import devices_for

_CLOSE_SECONDS = 75.0
"""A worker leaves within seconds, and after a minute if it hangs; one whose host is gone never says
so."""
_READ_SECONDS = 5.0
_KEPT_LINES = 20


class TetheredWorkers:
    """Starts each worker in a free slot of some hosts; `words` returns a script's command there."""

    def __init__(
        self,
        hosts: Sequence[ssh_script.Host],
        words: Callable[[ssh_script.Host, str], Sequence[str]],
    ) -> None:
        self.hosts = tuple(hosts)
        self._words = words
        self._lost_seconds: dict[str, float] = {}
        self._running: dict[str, _Connection] = {}

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path | int) -> None:
        """Start a worker in a free slot, preferably of no lost host; `log` may be a descriptor."""
        host = self.free_host([one.host for one in self._running.values()])
        # Take the host's first free slot, so that its workers take its cards in turn.
        taken = {one.worker.place for one in self._running.values() if one.host == host}
        worker = replace(worker, place=next(slot for slot in count() if slot not in taken))
        words = self._words(host, ssh_script.worker_script(worker, host, environment))
        self._running[worker.name] = _Connection(host, worker, words, log)

    def ended(self) -> Mapping[str, Ended]:
        """Return the workers whose connections have ended, and how they ended."""
        over = {name: one.ended for name, one in self._running.items() if one.ended is not None}
        for name, ended in over.items():
            if ended.status is None:
                self._lost_seconds[self._running[name].host.name] = time.monotonic()
            del self._running[name]
        return over

    def stop(self, name: str) -> None:
        """Let go of a worker's tether, which tells it to leave."""
        if name in self._running:
            self._running[name].let_go()

    def close(self) -> None:
        """Let go of all workers, and wait for their end; kills the ssh of a host that is gone."""
        connections = list(self._running.values())
        for connection in connections:
            connection.let_go()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for connection in connections:
            connection.wait(max(deadline - time.monotonic(), 0.0))

    def free_host(self, taken: Iterable[ssh_script.Host]) -> ssh_script.Host:
        """Return the host with the most free slots by share; hosts lost most recently come last."""
        used = [host.name for host in taken]
        free = [host for host in self.hosts if used.count(host.name) < host.slots]
        if not free:
            raise LaunchError("no host has a free slot for another worker", asked_wrongly=True)

        def order(host: ssh_script.Host) -> tuple[float, float]:
            return self._lost_seconds.get(host.name, 0.0), used.count(host.name) / host.slots

        return min(free, key=order)


class _Connection:
    """One shell: its worker runs while its input is open, and we copy its output to the log."""

    def __init__(
        self, host: ssh_script.Host, worker: WorkerOptions, words: Sequence[str], log: Path | int
    ) -> None:
        self.host = host
        self.worker = worker
        self.ended: Ended | None = None
        self._prefix = f"{host.name} {worker.name}: "
        self._letting_go = Lock()
        self._shell = subprocess.Popen(  # noqa: S603 - words of this package
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C does not reach it
        )
        if self._shell.stdin is not None and worker.credentials.token:
            with suppress(BrokenPipeError):
                self._shell.stdin.write(f"{worker.credentials.token}\n".encode())
                self._shell.stdin.flush()
        self._reader = Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def let_go(self) -> None:
        """End the input, so that the guard there tells the worker to leave."""
        with self._letting_go:
            if self._shell.stdin is not None and not self._shell.stdin.closed:
                with suppress(BrokenPipeError):
                    self._shell.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait until the reader has read all output; kill the shell if that takes longer."""
        self._reader.join(seconds)
        if self._reader.is_alive():
            signal_group(self._shell.pid, signal.SIGKILL)
            self._reader.join(_READ_SECONDS)  # another group may hold the output open

    def _read(self, log: Path | int) -> None:
        status, lines = None, deque[str](maxlen=_KEPT_LINES)
        if self._shell.stdout is not None:
            with self._shell.stdout as output, open(log, "ab", buffering=0) as written:
                for raw in output:
                    line = one_line(raw.decode(errors="replace").rstrip("\r\n"))
                    found = ssh_script.status_in(line)
                    if found is not None:
                        status = found
                    elif line:
                        lines.append(line)
                        written.write(f"{self._prefix}{line}\n".encode())
        shell_status = self._shell.wait()
        self.let_go()
        self.ended = _end(self.host, status, shell_status, last_line("\n".join(lines)))


def _end(host: ssh_script.Host, status: int | None, shell_status: int, words: str) -> Ended:
    """Return how a worker has ended: with its own status, or because its connection ended."""
    if status is None:
        return Ended(None, f"{host.name}: the connection has ended ({words or shell_status})")
    if status in ssh_script.CANNOT_RUN:
        return Ended(2, f"{host.name}: cannot run {host.python}")
    return Ended(status, f"{host.name}: {words}" if words else "")


class LocalEngine(TetheredWorkers):
    """Starts each worker with a separate shell; the manager listens at `manager_host`.

    Each worker imports torch for itself, so a fork server (`forkserver.py`) starts them sooner. But
    that one restarts no worker that has ended on its own.
    """

    def __init__(self, manager_host: str) -> None:
        self.manager_host = manager_host
        here = ssh_script.Host(socket.gethostname(), slots=ssh_script.SLOTS_MAX)
        super().__init__([here], lambda _, script: ["/bin/sh", "-c", script])

    def check(self, plan: LaunchPlan) -> None:
        """Refuse nothing, because this machine is always available."""


_LOOK_SECONDS = 0.2


def run_group(
    worker: WorkerOptions, log: Path | None, wait: Callable[[float], bool]
) -> Mapping[str, Ended]:
    """Run workers of these options until all have ended; returns how each one ended, by name.

    Without a `log`, their output goes to standard error, each line with the worker's name. `wait`
    waits some seconds; it returns true early when a signal tells the workers to leave.
    """
    engine = LocalEngine(worker.manager)
    over: dict[str, Ended] = {}
    names = []
    try:
        for number in range(1, worker.count + 1):
            one = on_a_card(numbered(worker, number))
            engine.start(one, {}, log or os.dup(2))  # which may be a socket, without a path
            names.append(one.name)
        while len(over) < worker.count:
            if wait(_LOOK_SECONDS):
                for name in names:
                    engine.stop(name)
            over |= engine.ended()
    finally:
        engine.close()
    return over


def numbered(worker: WorkerOptions, number: int) -> WorkerOptions:
    """Return one worker's options out of several: its name ends with its number; ports count up."""
    ports = {name: getattr(worker, name) for name in ("port", "metrics_port")}
    return replace(
        worker,
        name=f"{worker.name}-{number}",
        count=1,
        place=number - 1,
        ready_file=f"{worker.ready_file}-{number}" if worker.ready_file else "",
        **{name: port + number - 1 for name, port in ports.items() if port},
    )


def on_a_card(worker: WorkerOptions) -> WorkerOptions:
    """Return the options with the device of this machine that this worker should take."""
    devices = devices_for(worker.device)
    return replace(worker, device=devices.spread(worker.device, worker.place))


def on_ssh(options: SshOptions | None = None) -> Launcher:
    """Return a launcher that uses ssh, for `downpour.run(spec, on=on_ssh(options))`."""
    return lambda plan: PlacedCluster(plan, SshEngine(options or SshOptions()))


class SshEngine(TetheredWorkers):
    """Starts each worker with a separate ssh, whose input it holds open for as long as it runs."""

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        hosts = ssh_script.read_hosts(options.hosts)
        super().__init__(hosts, lambda host, script: ssh_script.command(host, options, script))
        self.manager_host = options.manager_host or "127.0.0.1"

    def check(self, plan: LaunchPlan) -> None:
        """Look at the hosts that meet the plan's needs, and learn how they reach this machine."""
        from downpour.files.store import SharedDirectory

        self._leave_out_unfit(plan)
        slots = sum(host.slots for host in self.hosts)
        if plan.workers > slots:
            where = f" on hosts with {' and '.join(plan.needs)}" if plan.needs else ""
            reason = f"{plan.workers} workers, but {self._options.hosts} has slots for {slots}"
            raise LaunchError(reason + where, asked_wrongly=True)
        shared = Path(plan.manager.shared)
        SharedDirectory.open(shared, create=True)
        looks = ssh_script.look_at(self.hosts, self._options, shared)
        ssh_script.refuse_unfit(looks)
        if not self._options.manager_host:
            self.manager_host = address_seen(look.caller for look in looks)

    def planned(self, plan: LaunchPlan) -> str:
        """Return the commands of a plan's workers; the manager's address is not known yet."""
        self._leave_out_unfit(plan)
        placed: list[ssh_script.Host] = []
        for _ in range(plan.workers):
            placed.append(self.free_host(placed))
        address = f"{self._options.manager_host or 'ADDRESS'}:PORT"
        environment = training_environment(plan.threads)
        texts = []
        for number, host in enumerate(placed, start=1):
            words = ssh_script.command(host, self._options, "")[:-1]
            slot = placed[: number - 1].count(host)
            worker = replace(plan.worker(number, address), place=slot)
            script = ssh_script.worker_script(worker, host, environment)
            texts.append(f"# {' '.join(words)} /bin/sh\n{script}")
        return "\n".join(texts)

    def _leave_out_unfit(self, plan: LaunchPlan) -> None:
        """Keep the hosts whose workers meet all needs; every worker also has the plan's labels."""
        fit = (
            one for one in self.hosts if not missing(merged(plan.labels, one.labels), plan.needs)
        )
        self.hosts = tuple(fit)


def address_seen(callers: Iterable[str]) -> str:
    """Return the address at which hosts reach this machine, out of the addresses that they see.

    A host behind a jump host sees the jump host's address, so only this machine's addresses count.
    """
    seen = [caller for caller in callers if _is_ours(caller)]
    elsewhere = [caller for caller in seen if caller not in {"127.0.0.1", "::1"}]
    return next(iter([*elsewhere, *seen]), "") or reachable_host()


def _is_ours(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as one:
        one.bind((address, 0))
        return bool(address)
    return False


def _make(options: SshOptions) -> Launcher:
    ssh_script.read_hosts(options.hosts)  # now, before a shared directory is made
    return on_ssh(options)


KIND = LauncherKind(
    title="SSH",
    options=SshOptions,
    make=_make,
    planned=lambda options, plan: SshEngine(options).planned(plan),
    labels=lambda options: [host.labels for host in ssh_script.read_hosts(options.hosts)],
)
