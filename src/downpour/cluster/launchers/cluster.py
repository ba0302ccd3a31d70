"""A manager on this machine, and workers that an engine starts here or elsewhere.

The launcher itself never imports torch: a fork server starts the manager, and on this machine the
workers. All of them end with the launcher: on `close`, on an error, on Ctrl-C, and when someone
kills it, because the fork server then reads the end of its input. The launcher restarts what a
signal kills: a worker, the manager (which continues from its journal), or the whole fork server.

For a debugger and for notebooks, all of them may be threads of this process (`InlineCluster`).
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Self

from downpour.base.errors import DownpourError, LaunchError, MachineTaken, SpecError
from downpour.cluster.launchers import Ended, Engine, LauncherKind, LaunchPlan, forkserver
from downpour.cluster.options import WorkerOptions, training_environment
from downpour.host.child import notice_stands
from downpour.host.paths import Credentials, known_secrets
from downpour.host.process import THREADS, signal_group
from downpour.learning import allowlist

if TYPE_CHECKING:
    from downpour.cluster.manager.process import Manager
    from downpour.cluster.worker.agent import WorkerAgent

log = logging.getLogger(__name__)

PAUSES_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""The pauses before a worker's restarts: a rebooting host is back within minutes."""
LASTING_SECONDS = 60.0
"""A process that has run for this long counts as sound: we count its next restart as the first."""


class Restarts:
    """The restarts of one process; `count` is their number since it last ran for long."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.count = 0
        self._now = now
        self._began_seconds = now()
        self._due_seconds: float | None = None

    def is_due(self) -> bool:
        """Whether it is time to restart the ended process."""
        if self._due_seconds is None:
            if self._now() - self._began_seconds >= LASTING_SECONDS:
                self.count = 0
            pause = PAUSES_SECONDS[min(self.count, len(PAUSES_SECONDS) - 1)]
            self._due_seconds = self._now() + pause
        return self._due_seconds <= self._now()

    def begin(self) -> None:
        """Note a restart of the process."""
        self.count += 1
        self._began_seconds, self._due_seconds = self._now(), None


START_SECONDS = 300.0
"""A manager's time to start: packages on a file server may take minutes to import."""
MANAGER = "manager"
RESTARTS_MAX = 10
"""The restarts of a manager that keeps dying early: its next restart would fail, too."""


class ManagerHost:
    """A fork server and the manager that it forks, until `close`; keeps this process's log, too."""

    def __init__(
        self,
        plan: LaunchPlan,
        now: Callable[[], float],
        server: forkserver.ForkServerProcess | None,
    ) -> None:
        from downpour.files.process_log import kept_log
        from downpour.files.store import SharedDirectory

        self._manager = plan.manager
        self._environment = training_environment(plan.threads)
        self._restarts = Restarts(now)
        self._log_kept = ExitStack()
        shared = Path(plan.manager.shared)
        self.server = server or forkserver.fork_server(shared, plan.threads, plan.imports)
        self.log = self.server.log
        try:
            secrets = known_secrets(plan.manager.credentials)
            kept = kept_log(SharedDirectory(shared), "launcher", secrets, owns_process=False)
            self._log_kept.enter_context(kept)
            self._start()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Stop workers and manager; returns when all have ended or were killed."""
        try:
            self.server.close()
        finally:
            self._log_kept.close()

    def check(self) -> None:
        """Restart what a signal has ended: the manager, or the fork server with its processes."""
        if self.server.is_over:
            line = f"the fork server died; restarting all processes; see {self.log}"
        elif (status := self.server.exit_status(MANAGER)) is None:
            return
        elif status >= 0:
            raise self.server.error_of(MANAGER)
        else:
            line = f"the manager died from signal {-status}; restarting it"
        self._restarts.is_due()  # after a long run, all restarts count from zero
        if self._restarts.count >= RESTARTS_MAX:
            raise self.server.error_of(MANAGER)
        log.warning("%s", line)
        if self.server.is_over:
            self.server.close()
            self.server = forkserver.ForkServerProcess(self.log, self._environment)
        # At the dead one's address, it continues where the dead one ended.
        self._restarts.begin()
        port = int(self.address.rpartition(":")[2])
        self._manager = replace(self._manager, port=port, restarts=self._manager.restarts + 1)
        self.server.forget(MANAGER)
        self._start()

    def _start(self) -> None:
        self.server.request(MANAGER, MANAGER, asdict(self._manager))
        self.address = self.server.answer_of(MANAGER, START_SECONDS)


_LEFT = 0


@dataclass(slots=True)
class _Place:
    """A worker's place and its restarts; a policy asked for an `extra` one, which may go back."""

    number: int
    restarts: Restarts
    last: Ended | None = None
    is_to_restart: bool = False
    extra: bool = False
    idle_since_seconds: float | None = None
    is_given_back: bool = False

    def give_up(self) -> None:
        """Never restart the worker."""
        self.last, self.is_to_restart, self.is_given_back = Ended(None), False, True

    @property
    def is_over(self) -> bool:
        """Whether the worker has ended for good."""
        return self.last is not None and not self.is_to_restart


class PlacedCluster:
    """A cluster whose manager runs here, and whose workers an engine starts.

    If a worker dies, the launcher restarts it under the same name: the first time at once, then
    after growing pauses. One that left as ordered (status 0), or whose user erred (2), stays away.
    """

    early_server: forkserver.ForkServerProcess | None = None
    """A fork server that runs already, for the manager; set it before entering."""
    is_here = False
    """Whether its workers end with this process: then it gives back none that a policy asked for,
    and restarts a worker only if a signal has killed it."""

    def __init__(
        self, plan: LaunchPlan, engine: Engine, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._now = now
        self._places: dict[str, _Place] = {}
        self._wanted = 0
        self._host: ManagerHost | _InlineHost | None = None
        self._running = ExitStack()

    @property
    def address(self) -> str:
        """The manager's address, as this machine and the workers reach it."""
        return self._host.address if self._host else ""

    @property
    def credentials(self) -> Credentials:
        """The credentials of this cluster's processes."""
        return self._plan.manager.credentials

    @property
    def log(self) -> Path:
        """The file to which manager and workers write their logs."""
        return self._host.log if self._host else Path()

    @property
    def workers(self) -> list[str]:
        """The names of workers that run, or that the launcher will restart."""
        return [name for name, place in self._places.items() if not place.is_over]

    def __enter__(self) -> Self:
        """Check the engine, then start the manager and all workers."""
        self._engine.check(self._plan)
        with ExitStack() as starting:
            try:
                self._plan = self._reachable()
                self._host = self._hosted()
            except BaseException:
                self._engine.close()  # it may have reserved what the workers need
                raise
            starting.callback(self._host.close)
            starting.callback(self._engine.close)  # before the manager ends
            for _ in range(self._plan.workers):
                self._add()
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers, then the manager."""
        self._running.close()

    def provide(self, wanted: int, idle: Collection[str] = ()) -> None:
        """Start further workers, up to `wanted`, but at any time no more than the plan began with.

        A further worker must leave once it has been idle for the plan's `idle_seconds`.
        """
        while self._wanted < wanted:
            self._wanted += 1
            extra = [one for one in self._places.values() if one.extra and not one.is_given_back]
            if len(extra) < self._plan.workers:
                self._add(extra=True)
        if self._plan.idle_seconds and not self.is_here:
            self._give_back(idle)

    def _hosted(self) -> ManagerHost | _InlineHost:
        return ManagerHost(self._plan, self._now, self.early_server)

    def check(self) -> None:
        """Restart dead processes; raise LaunchError if the manager or all workers cannot go on."""
        if self._host is not None:
            self._host.check()
        for name, ended in self._engine.ended().items():
            self._note_end(self._places[name], ended)
        for place in self._places.values():
            if place.is_to_restart and place.restarts.is_due():
                place.restarts.begin()
                self._start(place)
        if self._places and all(place.is_over for place in self._places.values()):
            if notice_stands(self._plan.notice):
                raise MachineTaken(self._plan.notice)
            raise self._error_of_all()

    def _give_back(self, idle: Collection[str]) -> None:
        now = self._now()
        for name, place in self._places.items():
            if not place.extra or place.is_given_back:
                continue
            if name not in idle:
                place.idle_since_seconds = None
            elif place.idle_since_seconds is None:
                place.idle_since_seconds = now
            elif now - place.idle_since_seconds >= self._plan.idle_seconds:
                place.is_given_back = True
                self._engine.stop(name)

    def _add(self, *, extra: bool = False) -> None:
        number = len(self._places) + 1
        place = _Place(number, Restarts(self._now), extra=extra)
        self._places[self._plan.worker(number, "").name] = place
        self._start(place)

    def _start(self, place: _Place) -> None:
        place.last, place.is_to_restart = None, False
        try:
            worker = self._plan.worker(place.number, self.address)
            environment = training_environment(self._plan.threads) | allowlist.environment()
            self._engine.start(worker, environment, self.log)
        except LaunchError as error:
            self._note_end(place, Ended(error.exit_status, str(error)))

    def _note_end(self, place: _Place, ended: Ended) -> None:
        place.last = ended
        finals = {_LEFT, SpecError.exit_status}
        is_final = ended.status is not None if self.is_here else ended.status in finals
        place.is_to_restart = not (is_final or place.is_given_back)
        if place.is_to_restart:
            place.restarts.is_due()  # the pause begins now

    def _error_of_all(self) -> LaunchError:
        """Return the error for when no worker is left: the first reason that a worker gave."""
        for name, place in self._places.items():
            if place.last is not None and place.last.status != _LEFT:
                wrong = place.last.status == SpecError.exit_status
                reason = place.last.reason or f"it exited with status {place.last.status}"
                return LaunchError(f"{name}: {reason}; see {self.log}", asked_wrongly=wrong)
        return LaunchError(f"all workers have left; see {self.log}")

    def _reachable(self) -> LaunchPlan:
        """Return the plan with an address that the workers can reach, and a token."""
        from downpour.files.store.shared_directory import make_token

        plan = self._plan.reached_at(self._engine.manager_host)
        if plan.manager.credentials != self._plan.manager.credentials:
            make_token(Path(plan.manager.credentials.token_file))
        return plan


class LocalCluster(PlacedCluster):
    """A context manager: inside it, a manager and its workers are running."""

    is_here = True

    def __init__(self, plan: LaunchPlan, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(plan, forkserver.ForkEngine(plan.manager.host, lambda: self._server), now)

    @property
    def _server(self) -> forkserver.ForkServerProcess:
        assert isinstance(self._host, ManagerHost)  # noqa: S101 - it is running
        return self._host.server

    def close(self) -> None:
        """Stop workers and manager; returns when all have ended or were killed."""
        self._running.close()

    def process_of(self, name: str) -> int | None:
        """Return the current process of the manager or a worker; None while it has none."""
        return self._server.process_of(name)

    def kill(self, name: str, *, again: bool) -> None:
        """Kill the manager or a worker, as a crash would.

        With `again`, the launcher restarts a worker; otherwise the worker stays away, like a
        machine that died. The launcher always restarts the manager.
        """
        if name in self._places and not again:
            self._places[name].give_up()
        process = self.process_of(name)
        if process is not None:
            signal_group(process, signal.SIGKILL)

    def _error_of_all(self) -> LaunchError:
        return self._server.error_of(min(self._places))


class _Threads:
    """An engine of workers in threads; `reasons` are why one, or the manager, has ended."""

    def __init__(self, manager_host: str) -> None:
        self.manager_host = manager_host
        self.closing = Event()
        self.reasons: list[DownpourError] = []
        self._running: dict[str, Thread] = {}
        self._agents: list[WorkerAgent] = []

    def check(self, plan: LaunchPlan) -> None:
        """Refuse nothing, because this process is always available."""

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Start a worker with this process's environment and log.

        It takes no code from the manager, because both share this process's modules. It has no
        loaders, because each would run the user's script once more.
        """
        del environment, log
        worker = replace(worker, accepts_code=False, loaders="0")
        self._running[worker.name] = THREADS.start(worker.name, self._work, worker)

    def ended(self) -> Mapping[str, Ended]:
        """Return the workers whose threads have ended."""
        over = {name: Ended(0) for name, one in self._running.items() if not one.is_alive()}
        for name in over:
            del self._running[name]
        return over

    def stop(self, name: str) -> None:
        """Do nothing, because workers of this process end with the command."""

    def close(self) -> None:
        """Tell all workers to leave, and wait until they have."""
        self.closing.set()
        for agent in self._agents:
            agent.leave()
        for worker in self._running.values():
            worker.join()

    def _work(self, worker: WorkerOptions) -> None:
        from downpour.cluster.worker.process import run_worker

        try:
            run_worker(worker, lambda *_: None, obey=self._obey)
        except DownpourError as error:
            self.reasons.append(error)
        except Exception as error:
            log.exception("%s died", worker.name)
            self.reasons.append(LaunchError(f"{worker.name}: {type(error).__name__}: {error}"))

    def _obey(self, agent: WorkerAgent) -> None:
        self._agents.append(agent)
        if self.closing.is_set():  # it was still importing when the others got the order to leave
            agent.leave()


class _InlineHost:
    """A manager in a thread of this process, until `close`; also writes this package's log."""

    def __init__(self, plan: LaunchPlan, engine: _Threads) -> None:
        # Imported here, because this imports torch, which the launcher of processes does without.
        from downpour.cluster.manager.process import start_manager
        from downpour.files.process_log import kept_log
        from downpour.files.store import SharedDirectory

        shared = Path(plan.manager.shared)
        self.log, self._engine = forkserver.new_log(shared), engine
        with ExitStack() as starting:
            starting.enter_context(_logging_to(self.log))
            secrets = known_secrets(plan.manager.credentials)
            kept = kept_log(SharedDirectory(shared), "inline", secrets, owns_process=False)
            starting.enter_context(kept)
            try:
                manager = start_manager(replace(plan.manager, loaders="0"), engine.reasons.append)
            except DownpourError as error:
                raise _launch_error(error) from error
            starting.callback(manager.close)
            self.address = str(manager.address)
            THREADS.start("manager", self._look_around, manager)
            self.close = starting.pop_all().close

    def check(self) -> None:
        """Raise LaunchError if the manager or a worker has ended with an error."""
        if self._engine.reasons:
            raise _launch_error(self._engine.reasons[0])

    def _look_around(self, manager: Manager) -> None:
        from downpour.core.node.manager import LOOK_SECONDS

        while not self._engine.closing.wait(LOOK_SECONDS):
            manager.look_around()


class InlineCluster(PlacedCluster):
    """A context manager: inside it, a manager and its workers run in threads of this process.

    A breakpoint in a user's task stops there, with the caller's frames above it. Everything else
    works as with processes, and gives the same bytes of the model: messages go through sockets,
    parameters through files. Workers take turns at each step, because they share the process's
    random generators.
    """

    is_here = True

    def __init__(self, plan: LaunchPlan) -> None:
        self._threads = _Threads(plan.manager.host)
        super().__init__(plan, self._threads)

    def _hosted(self) -> _InlineHost:
        return _InlineHost(self._plan, self._threads)

    def _error_of_all(self) -> LaunchError:
        return _launch_error([*self._threads.reasons, LaunchError("all workers have ended")][0])


def _launch_error(error: DownpourError) -> LaunchError:
    return LaunchError(str(error), asked_wrongly=error.exit_status == SpecError.exit_status)


@contextmanager
def _logging_to(file: Path) -> Iterator[None]:
    """Also write this package's log to a file."""
    handler = logging.FileHandler(file)
    handler.setFormatter(logging.Formatter("%(asctime)s %(threadName)s %(name)s: %(message)s"))
    logger = logging.getLogger("downpour")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


KIND = LauncherKind(title="Local", make=lambda _: LocalCluster)
INLINE = LauncherKind(title="Inline", make=lambda _: InlineCluster)
