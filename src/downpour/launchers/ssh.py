"""Workers on other machines, by the system's ssh: a connection each, that is also their leash."""

from __future__ import annotations

import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock, Thread

from downpour.errors import LaunchError
from downpour.launchers.base import Ended, Launcher
from downpour.launchers.hosts import Host, read_hosts
from downpour.launchers.placed import PlacedCluster
from downpour.launchers.plan import LaunchPlan
from downpour.launchers.slurm import reachable_host
from downpour.launchers.ssh_looking import look_at, refuse_unfit
from downpour.launchers.ssh_script import (
    CANNOT_RUN,
    SshOptions,
    command,
    last_words,
    status_in,
    worker_script,
)
from downpour.text import one_line
from downpour.worker.environment import thread_environment
from downpour.worker.options import WorkerOptions

CLOSE_SECONDS = 60.0
"""A worker leaves within seconds; one whose host is gone never says so."""
_KEPT_LINES = 20


def on_ssh(options: SshOptions | None = None) -> Launcher:
    """Return what starts workers by ssh, for `downpour.run(spec, on=on_ssh(options))`."""
    return lambda plan: PlacedCluster(plan, SshEngine(options or SshOptions()))


class SshEngine:
    """Starts each worker by an ssh of its own, whose input it holds open for as long as it runs.

    Raises:
        SpecError: the file of hosts cannot be read, or a line of it cannot be meant.
    """

    def __init__(self, options: SshOptions) -> None:
        self._options = options
        self._hosts = read_hosts(options.hosts)
        self._lost_seconds: dict[str, float] = {}
        self._running: dict[str, _Connection] = {}
        self.manager_host = options.manager_host or "127.0.0.1"

    def check(self, plan: LaunchPlan) -> None:
        """Look at all hosts at once, and learn how they reach this machine."""
        # Here, because help texts import this module, and this imports numpy.
        from downpour.store import SharedDirectory

        slots = sum(host.slots for host in self._hosts)
        if plan.workers > slots:
            reason = f"{plan.workers} workers, but {self._options.hosts} has slots for {slots}"
            raise LaunchError(reason, asked_wrongly=True)
        shared = Path(plan.manager.shared)
        SharedDirectory.open(shared, create=True)
        looks = look_at(self._hosts, self._options, shared)
        refuse_unfit(looks)
        if not self._options.manager_host:
            self.manager_host = address_seen(look.caller for look in looks)

    def planned(self, plan: LaunchPlan) -> str:
        """Return the commands of a plan's workers; the manager's address is not known yet."""
        placed: list[Host] = []
        for _ in range(plan.workers):
            placed.append(self._free_host(placed))
        address = f"{self._options.manager_host or 'ADDRESS'}:PORT"
        environment = thread_environment(plan.threads)
        texts = []
        for number, host in enumerate(placed, start=1):
            words = command(host, self._options, "")[:-1]
            script = worker_script(plan.worker(number, address), host, environment)
            texts.append(f"# {' '.join(words)} /bin/sh\n{script}")
        return "\n".join(texts)

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Start a worker in a free slot, rather on hosts that have not been lost."""
        host = self._free_host([one.host for one in self._running.values()])
        words = command(host, self._options, worker_script(worker, host, environment))
        self._running[worker.name] = _Connection(host, worker, words, log)

    def ended(self) -> Mapping[str, Ended]:
        """Return whose connections have ended, and how."""
        over = {name: one.ended for name, one in self._running.items() if one.ended is not None}
        for name, ended in over.items():
            if ended.status is None:
                self._lost_seconds[self._running[name].host.name] = time.monotonic()
            del self._running[name]
        return over

    def stop(self, name: str) -> None:
        """Let go of a worker's leash, which tells it to leave."""
        if name in self._running:
            self._running[name].let_go()

    def close(self) -> None:
        """Let go of all, and wait until they have ended; ends the ssh of a host that is gone."""
        connections = list(self._running.values())
        for connection in connections:
            connection.let_go()
        deadline = time.monotonic() + CLOSE_SECONDS
        for connection in connections:
            connection.wait(max(deadline - time.monotonic(), 0.0))

    def _free_host(self, taken: Iterable[Host]) -> Host:
        """Return the host with the largest share of free slots; the latest that was lost, last."""
        used = [host.name for host in taken]
        free = [host for host in self._hosts if used.count(host.name) < host.slots]
        if not free:
            reason = f"{self._options.hosts} has no free slot for another worker"
            raise LaunchError(reason, asked_wrongly=True)

        def order(host: Host) -> tuple[float, float]:
            return self._lost_seconds.get(host.name, 0.0), used.count(host.name) / host.slots

        return min(free, key=order)


class _Connection:
    """One ssh: its worker runs while its input is open, and its output is copied into the log."""

    def __init__(self, host: Host, worker: WorkerOptions, words: list[str], log: Path) -> None:
        self.host = host
        self.ended: Ended | None = None
        self._prefix = f"{host.name} {worker.name}: "
        self._letting_go = Lock()
        self._ssh = subprocess.Popen(  # noqa: S603 - words of this package
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C does not reach it
        )
        if self._ssh.stdin is not None and worker.credentials.token:
            with suppress(BrokenPipeError):
                self._ssh.stdin.write(f"{worker.credentials.token}\n".encode())
                self._ssh.stdin.flush()
        self._reader = Thread(target=self._read, args=(log,), daemon=True)
        self._reader.start()

    def let_go(self) -> None:
        """End the input: the guard there tells the worker to leave."""
        with self._letting_go:
            if self._ssh.stdin is not None and not self._ssh.stdin.closed:
                with suppress(BrokenPipeError):
                    self._ssh.stdin.close()

    def wait(self, seconds: float) -> None:
        """Wait until all output has been read; after so many seconds, end this side."""
        self._reader.join(seconds)
        if self._reader.is_alive():
            self._ssh.kill()
            self._reader.join()

    def _read(self, log: Path) -> None:
        status, lines = None, deque[str](maxlen=_KEPT_LINES)
        if self._ssh.stdout is not None:
            with self._ssh.stdout as output, log.open("ab", buffering=0) as written:
                for raw in output:
                    line = one_line(raw.decode(errors="replace").rstrip("\r\n"))
                    found = status_in(line)
                    if found is not None:
                        status = found
                    elif line:
                        lines.append(line)
                        written.write(f"{self._prefix}{line}\n".encode())
        ssh_status = self._ssh.wait()
        self.let_go()
        self.ended = _end(self.host, status, ssh_status, last_words(lines))


def _end(host: Host, status: int | None, ssh_status: int, words: str) -> Ended:
    """Return how a worker has ended: by its own status, or with the connection, which is ssh's."""
    if status is None:
        return Ended(None, f"{host.name}: the connection has ended ({words or ssh_status})")
    if status in CANNOT_RUN:
        return Ended(2, f"{host.name}: {host.python} cannot be run")
    return Ended(status, f"{host.name}: {words}" if words else "")


def address_seen(callers: Iterable[str]) -> str:
    """Return the address at which hosts reach this machine, of those that they see it at.

    A host behind another one sees that one's, so only addresses of this machine count.
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
