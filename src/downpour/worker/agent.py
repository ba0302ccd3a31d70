"""The worker's side of the conversation: it registers, takes tasks, reports, and says it is alive.

Two threads meet here: calls from the manager arrive on the server's threads, training runs in the
main one. The manager alone decides what a worker does, so a new task supersedes whatever came
before it. An attempt is listed in heartbeats from its acceptance, although it may have to wait for
torch to be imported or for the one before it to stop, until the manager has acknowledged its
report; only then is the worker free. This module imports no torch.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Event, Lock, Thread

from tenacity import Retrying, retry_if_exception, stop_when_event_set, wait_random_exponential

from downpour.blame import told
from downpour.errors import (
    DeadlineExceeded,
    DownpourError,
    IncompatiblePeer,
    NonFinite,
    OtherCode,
    OutOfMemory,
    Refused,
    SpecError,
    StoreError,
    Unreachable,
)
from downpour.rpc import PROTOCOL, Address, ManagerClient
from downpour.rpc.messages import (
    Heartbeat,
    Registration,
    Task,
    WorkerInfo,
)
from downpour.runtime.pace import until_next_beat
from downpour.store import SharedDirectory
from downpour.values import AttemptId, FailureKind, NumericClass, Update
from downpour.version import VERSION
from downpour.worker.control import HandedOver, TaskCancelled, TaskControl
from downpour.worker.system import Samples

log = logging.getLogger(__name__)

_REPEAT_SECONDS = 1.0
"""At most, between two tries at a report: whoever is in office next waits for it."""
_LOOK_AGAIN_SECONDS = 0.25
"""Between heartbeats that are not heard: a manager that was started again waits for them."""

RunTask = Callable[[Task, TaskControl], Update]
FindManager = Callable[[], ManagerClient | None]


class WorkerAgent:
    """Speaks with one manager at a time; implements the Worker service.

    Where that one cannot be reached, `find_manager` says who else might be in office by now.
    """

    def __init__(
        self,
        manager: ManagerClient,
        shared: SharedDirectory,
        name: str,
        numeric_class: NumericClass,
        run_task: RunTask,
        find_manager: FindManager = lambda: None,
    ) -> None:
        self._manager = manager
        self._shared = shared
        self._numeric_class = numeric_class
        self._run_task = run_task
        self._find_manager = find_manager
        self._lock = Lock()
        self._inbox: SimpleQueue[Task | None] = SimpleQueue()
        self._wanted: TaskControl | None = None
        self._running: TaskControl | None = None
        self._leaving = Event()
        self._begun = Event()
        self._where = ("", 0)
        self._heartbeat_seconds = 1.0
        self._term = 0
        self._patience = 1.0
        self._to_hand_over: AttemptId | None = None
        self.name = name

    # The Worker service, called on the server's threads

    def ping(self) -> WorkerInfo:
        """Say who is here and what it is doing."""
        return WorkerInfo(protocol=PROTOCOL, version=VERSION, name=self.name, running=self._attempt)

    def train(self, task: Task) -> None:
        """Take a task; a different one that is running is given up for it.

        A manager that was replaced without its knowledge is refused.
        """
        with self._lock:
            if task.term < self._term:
                reason = f"is {task.term}, and {self.name} works for a manager of term {self._term}"
                raise Refused("term", reason)
            if self._wanted is not None and self._wanted.attempt == task.id:
                return
            self._wanted = TaskControl(task.id, self._patience)
            if self._to_hand_over == task.id:
                self._wanted.leaving.set()
            if self._running is not None:
                self._running.cancelled.set()
        self._inbox.put(task)

    def cancel(self, attempt: AttemptId) -> None:
        """Stop an attempt at its next step, or forget it where it has not begun."""
        with self._lock:
            for control in self._controls:
                if control.attempt == attempt:
                    control.cancelled.set()
            if self._wanted is not None and self._wanted.attempt == attempt:
                self._wanted = None

    def hand_over(self, attempt: AttemptId) -> None:
        """Let an attempt stop at its next step, for another worker to go on with it."""
        with self._lock:
            self._to_hand_over = attempt
            for control in self._controls:
                if control.attempt == attempt:
                    control.leaving.set()

    @property
    def _controls(self) -> list[TaskControl]:
        """What is running and what was accepted last, which may be the same."""
        running, wanted = self._running, self._wanted
        return [one for one in (running, wanted if wanted is not running else None) if one]

    @property
    def _attempt(self) -> AttemptId | None:
        """What it was asked for last, or is still at."""
        return self._controls[-1].attempt if self._controls else None

    def drain(self) -> None:
        """Finish what is running, then leave."""
        self._inbox.put(None)

    # The life of the worker, in the main thread

    def hand_back(self) -> None:
        """Give up what is running and leave; safe to call from a signal handler."""
        self._leaving.set()
        self._begun.set()
        running = self._running
        if running is not None:
            running.cancelled.set()
        self._inbox.put(None)

    def register(self, host: str, port: int) -> Address:
        """Introduce this worker to the manager, to be called back at `host` and `port`.

        Without a host it is the address from which the manager is reached: asked for anew each
        time, because a machine whose network was cut may come back under another one.

        Returns:
            Where it will be called back.

        Raises:
            Untrusted: token or certificates do not fit.
            IncompatiblePeer: the manager speaks another protocol.
            SharedDirectoryError: its shared directory is not this worker's.
            Refused: the manager does not want this worker, and says why.
        """
        self._where = (host, port)
        info = self._manager.describe()
        if info.protocol != PROTOCOL:
            raise IncompatiblePeer(
                f"the manager runs downpour {info.version} (protocol {info.protocol}), this worker "
                f"{VERSION} (protocol {PROTOCOL}): install the same version on both"
            )
        self._heartbeat_seconds = info.heartbeat_seconds
        self._term = max(self._term, info.term)
        self._patience = info.patience
        address = Address(host or self._manager.local_host, port)
        registered = self._manager.register_worker(
            Registration(
                name=self.name,
                host=address.host,
                port=address.port,
                protocol=PROTOCOL,
                version=VERSION,
                presence=self._shared.read_presence(info.presence_file),
                numeric_class=self._numeric_class,
                hostname=socket.gethostname(),
                pid=os.getpid(),
                running=self._attempt,
            )
        )
        self.name = registered.worker
        return address

    def run(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Work until told to leave, then say goodbye.

        `prepare` is called before the first task, and may take long: the worker is heard already.
        """
        Thread(target=self._beat, args=(Samples(),), name="heartbeat", daemon=True).start()
        prepare()
        while (taken := self._next_task()) is not None:
            self._carry_out(*taken)
        self._leaving.set()
        self._begun.set()
        try:
            self._manager.leave(self.name, "told to stop")
        except DownpourError as error:
            log.info("could not say goodbye: %s", error)

    def _next_task(self) -> tuple[Task, TaskControl] | None:
        """Wait for a task that is still wanted; None when it is time to leave."""
        while (task := self._inbox.get()) is not None and not self._leaving.is_set():
            with self._lock:
                if self._wanted is not None and self._wanted.attempt == task.id:
                    self._running = self._wanted
                    self._running.began_at = time.monotonic()
                    self._begun.set()
                    return task, self._running
        return None

    def _carry_out(self, task: Task, control: TaskControl) -> None:
        try:
            update = self._run_task(task, control)
        except TaskCancelled:
            # Who leaves says so next, and that hands it back: told before, the manager would give
            # the worker something else meanwhile.
            if not self._leaving.is_set():
                self._report_failure(task.id, FailureKind.CANCELLED, f"{self.name} handed it back")
        except HandedOver as stopped:
            left = stopped.snapshot
            self._insist(lambda: self._manager.report_hand_over(self.name, task.id, left))
        except Exception as error:
            known = isinstance(error, DownpourError)
            log.warning("%s: %s failed: %s", self.name, task.id, error, exc_info=not known)
            self._report_failure(task.id, _failure_kind(error), _in_one_line(error))
        else:
            self._insist(lambda: self._manager.report_update(self.name, task.id, update))
        with self._lock:
            if self._wanted is control:
                self._wanted = None
            self._running = None

    def _report_failure(self, attempt: AttemptId, kind: FailureKind, reason: str) -> None:
        self._insist(lambda: self._manager.report_failure(self.name, attempt, kind, reason))

    def _insist(self, call: Callable[[], None]) -> None:
        """Repeat a report until the manager has acknowledged it, or nobody is interested."""
        attempts = Retrying(
            retry=retry_if_exception(_may_be_heard_later),
            wait=wait_random_exponential(multiplier=0.2, max=_REPEAT_SECONDS),
            stop=stop_when_event_set(self._leaving),
            reraise=True,
        )
        try:
            attempts(call)
        except DownpourError as error:
            log.warning("%s: report not taken: %s", self.name, error)

    # The heartbeat, in a thread of its own

    def _beat(self, samples: Samples) -> None:
        heard = True
        while self._wait_to_beat(heard=heard):
            try:
                self._beat_once(samples)
                heard = True
            except DownpourError as error:
                level = logging.WARNING if heard else logging.INFO  # once is enough
                log.log(level, "%s: no heartbeat, will go on trying: %s", self.name, error)
                heard = False
                if isinstance(error, Unreachable):  # who is merely slow is still in office
                    self.look_elsewhere()
            except Exception:  # a worker that falls silent counts as lost
                log.exception("%s: no heartbeat", self.name)

    def _wait_to_beat(self, *, heard: bool) -> bool:
        """Wait until the next heartbeat is due, which is sooner where a task has begun meanwhile.

        It is soon, too, where the last one was not `heard`: a manager that was started again knows
        from it whom it can call.

        Returns:
            Whether there is to be one: not when this worker leaves.
        """
        while not self._leaving.is_set():
            self._begun.clear()
            running = self._running
            length = running.expected_seconds if running is not None else None
            wait = until_next_beat(self._heartbeat_seconds, length)
            if not self._begun.wait(wait if heard else min(wait, _LOOK_AGAIN_SECONDS)):
                break
        return not self._leaving.is_set()

    @property
    def manager(self) -> Address:
        """Where the manager is that it speaks with."""
        return self._manager.address

    def look_elsewhere(self) -> None:
        """Speak with another manager from now on, where one may be in office.

        What was said to the former is said again.
        """
        manager = self._find_manager()
        if manager is not None:
            former, self._manager = self._manager, manager
            former.close()

    def _beat_once(self, samples: Samples) -> None:
        controls = self._controls
        system, process = samples.take(self._heartbeat_seconds)
        beat = Heartbeat(
            worker=self.name,
            running=tuple(control.progress() for control in controls),
            system=system,
            process=process,
        )
        reply = self._manager.heartbeat(beat)
        if not reply.known:
            self.register(*self._where)
        for control, progress in zip(controls, beat.running, strict=True) if reply.known else ():
            if progress.attempt not in reply.unwanted:
                control.known_snapshot = progress.snapshot
        for attempt in reply.unwanted:
            self.cancel(attempt)


_KINDS: tuple[tuple[type[Exception], FailureKind], ...] = (
    (NonFinite, FailureKind.NON_FINITE),
    (OutOfMemory, FailureKind.OUT_OF_MEMORY),
    (MemoryError, FailureKind.OUT_OF_MEMORY),
    (StoreError, FailureKind.STORE),
    (SpecError, FailureKind.SPEC),
    (OtherCode, FailureKind.OTHER_CODE),
)


def _may_be_heard_later(error: BaseException) -> bool:
    """Whether a report that ended so is worth repeating: somebody else may be in office soon."""
    busy = isinstance(error, Refused) and error.busy
    return busy or isinstance(error, Unreachable | DeadlineExceeded)


def _failure_kind(error: Exception) -> FailureKind:
    return next((kind for cls, kind in _KINDS if isinstance(error, cls)), FailureKind.TASK)


def _in_one_line(error: Exception) -> str:
    """Say what went wrong; equal errors at equal steps give equal lines on every worker."""
    where = "" if isinstance(error, DownpourError) else "; the worker's log has the traceback"
    return told(error) + where
