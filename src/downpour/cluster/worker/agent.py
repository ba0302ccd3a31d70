"""The worker's side of the protocol: it registers, accepts tasks, reports, and sends heartbeats.

Three kinds of threads meet here. Calls from the manager arrive on the server's threads, heartbeats
leave from one thread, and training and reports run in the main one. `WorkerNode` makes the worker's
decisions; each thread calls it under a lock. This module imports no torch.
"""

import logging
import math
import os
import random
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from threading import Lock, Timer, get_ident

from downpour.base import VERSION, values
from downpour.base.errors import (
    DownpourError,
    IncompatiblePeer,
    OtherDirectory,
    Unreachable,
    Untrusted,
    listed,
)
from downpour.base.states import Failure, FailureKind
from downpour.cluster.worker import attempt as attempts
from downpour.core.node import worker as node
from downpour.files.store import SharedDirectory
from downpour.host.machine import Samples
from downpour.host.process import THREADS, Threads
from downpour.learning.blame import is_of_users_code, place_of_thread, users_errors
from downpour.network.discovery import manager_may_come
from downpour.network.rpc import PROTOCOL, Address, ManagerClient, messages

log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_STILL_SECONDS = 60.0
_BLOCKS_TOLD = 1000
_BLOCKS_NAMED = 3

RunTask = Callable[[messages.TaskMessage, attempts.TaskControl], values.Update]
FindManager = Callable[[], ManagerClient | None]


_WRONG_ADDRESS = Unreachable | Untrusted | IncompatiblePeer | OtherDirectory
"""Errors of an address where our manager does not answer, but maybe another program. Many hosts
have the same addresses, such as Docker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWorker:
    """The manager's view of a worker: its process, its device, and the user's labels for it.

    `processor_class` is the numeric class of its processor, if it trains on another device.
    `cards` is the number of its machine's accelerators.
    `differs` returns the packages in which it differs from the manager of the current experiment,
    and `blocks` that experiment, and the digests of the data blocks that it has read.
    `sample` returns the state of machine and process, for heartbeats of a usual interval.
    """

    hostname: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    labels: tuple[str, ...] = ()
    device: str = ""
    processor_class: values.NumericClass | None = None
    cards: int = 0
    differs: Callable[[], tuple[str, ...]] = tuple
    blocks: Callable[[], tuple[str, Mapping[str, str]]] = lambda: ("", {})
    sample: Callable[[float], tuple[values.SystemState, values.ProcessState | None]] = field(
        default_factory=lambda: Samples().take
    )


class WorkerAgent:
    """Speaks with one manager at a time, and handles the calls of the Worker service.

    If it cannot reach that manager, `find_manager` returns a client of another one that may lead by
    now. `node_class` makes the decisions; tests plant defects in it. `shown` is the manager's view
    of the worker. `threads` run its heartbeats, and `chance` draws numbers from 0 to 1.
    """

    threads: Threads = THREADS
    chance: Callable[[], float] = staticmethod(random.random)

    def __init__(
        self,
        manager: ManagerClient,
        shared: SharedDirectory,
        name: str,
        numeric_class: values.NumericClass,
        run_task: RunTask,
        find_manager: FindManager = lambda: None,
        node_class: type[node.WorkerNode[attempts.AcceptedTask]] = node.WorkerNode,
        shown: ShownWorker | None = None,
    ) -> None:
        self._manager = manager
        self._shared = shared
        self._numeric_class = numeric_class
        self._shown = shown or ShownWorker()
        self._run_task = run_task
        self._find_manager = find_manager
        self._node = node_class(name)
        self._lock = Lock()
        # Queues wake the threads, because `SimpleQueue.put` is reentrant. A signal handler that
        # interrupts `Event.set` would wait forever for the event's lock with its own `set`.
        self._news: SimpleQueue[None] = self.threads.queue()
        self._begun: SimpleQueue[None] = self.threads.queue()
        self._where = ("", 0)
        self._told_blocks = ("", 0)
        self._other_blocks: dict[str, str] = {}
        self._trains_in = get_ident()
        self._last_progress: list[tuple[values.AttemptId, int, int]] = []
        self._moved_at_seconds, self._still_seconds = 0.0, _STILL_SECONDS

    @property
    def name(self) -> str:
        """The worker's name: its own, until the manager assigns another one at registration."""
        return self._node.name

    # The Worker service, called on the server's threads

    def ping(self) -> messages.WorkerInfo:
        """Return the worker's name and the attempt that it runs."""
        with self._lock:
            running = self._node.attempt
        return messages.WorkerInfo(
            protocol=PROTOCOL, version=VERSION, name=self.name, running=running
        )

    def train(self, task: messages.TaskMessage) -> None:
        """Accept a task; the worker gives up a different one that is running."""
        with self._lock:
            accepted = attempts.AcceptedTask(
                task.id,
                attempts.part_of(task),
                patience=self._node.patience,
                clock=self.threads.now,
                task=task,
            )
            self._do(self._node.train(accepted, task.term))
        self._news.put(None)

    def cancel(self, attempt: values.AttemptId) -> None:
        """Stop an attempt at its next step, or drop it if it has not begun."""
        with self._lock:
            self._do(self._node.cancel(attempt))

    def hand_over(self, attempt: values.AttemptId) -> None:
        """Stop an attempt at its next step, so that another worker can continue it."""
        with self._lock:
            self._do(self._node.hand_over(attempt))

    def drain(self) -> None:
        """Finish the running task, then leave."""
        with self._lock:
            self._node.drain()
        self._news.put(None)

    def _do(self, actions: Sequence[node.Action[attempts.AcceptedTask]]) -> None:
        for action in actions:
            match action:
                case node.Stop():
                    action.ask(action.held)
                case node.Register():
                    self.register(*self._where)
                case node.TryAnotherManager():
                    self.look_elsewhere()

    # The life of the worker, in the main thread

    def leave(self, drain_seconds: float = 0.0) -> None:
        """Leave; save the running task and hand it back, unless it ends within these seconds.

        Safe to call from a signal handler, and repeatedly.
        """
        if not drain_seconds:
            self._hand_back()
            return
        # Use separate threads, because the signal handler's own thread may hold the lock.
        for wait, end in ((0.0, self.drain), (drain_seconds, self._hand_back)):
            timer = Timer(wait, end)
            timer.daemon = True
            timer.start()

    def _hand_back(self) -> None:
        # Without the lock, because a signal handler's own thread may hold it.
        self._do(self._node.leave())
        self._begun.put(None)
        self._news.put(None)

    def register(self, host: str, port: int) -> Address:
        """Register this worker; returns the address at which the manager calls it back.

        Without a `host`, that is the address from which this worker reaches the manager. We look it
        up at each registration, because a machine whose network failed may return with another one.
        """
        self._where = (host, port)
        # First, because even a manager of another protocol can tell us which one it speaks.
        info = self._manager.describe()
        if info.protocol != PROTOCOL:
            raise IncompatiblePeer(
                f"the manager runs downpour {info.version} (protocol {info.protocol}), this worker "
                f"{VERSION} (protocol {PROTOCOL}): install the same version on both"
            )
        with self._lock:
            # Before the registration, because the first task may arrive before the answer, and
            # needs the patience. From now on, the worker refuses managers of a lower term.
            self._node.met(info.term, info.patience, info.heartbeat_seconds)
            running = self._node.attempt
        # `local_host` is known by now, because we called `describe` over a connection.
        address = Address(host or self._manager.local_host, port)
        registered = self._manager.register_worker(
            messages.Registration(
                name=self.name,
                host=address.host,
                port=address.port,
                protocol=PROTOCOL,
                version=VERSION,
                presence=self._shared.read_presence(info.presence_file),
                numeric_class=self._numeric_class,
                hostname=self._shown.hostname,
                pid=self._shown.pid,
                running=running,
                labels=self._shown.labels,
                device=self._shown.device,
                processor_class=self._shown.processor_class,
                cards=self._shown.cards,
            )
        )
        self._node.name = registered.worker
        self._told_blocks = ("", 0)  # this manager may have been told nothing
        return address

    def run(
        self,
        alone_seconds: float = math.inf,
        get_ready: Callable[[], object] = lambda: None,
        on_standstill: Callable[[], object] | None = None,
    ) -> None:
        """Work until the worker leaves, or hears no manager for `alone_seconds`; unregister.

        Before its first task, it lets this process `get_ready`. A worker that should leave, but
        ends no step for a minute, calls `on_standstill`.
        """
        self._trains_in = get_ident()
        self.threads.start("heartbeat", self._beat, alone_seconds, on_standstill)
        get_ready()
        while (accepted := self._next()) is not None:
            end = self._end_of(accepted)
            with self._lock:
                report = self._node.ended(end)
            if report is not None:
                self._repeat_report(accepted.attempt, report)
        self._hand_back()
        try:
            # A lost goodbye costs little: the manager notices that the connections have ended.
            self._manager.leave(self.name, "told to stop")
        except DownpourError as error:
            log.info("could not unregister: %s", error)

    def _next(self) -> attempts.AcceptedTask | None:
        """Wait for an attempt to begin; None if the worker should leave."""
        while True:
            with self._lock:
                accepted = self._node.take(self.threads.now())
                is_done = self._node.is_done
            if accepted is not None:
                self._begun.put(None)
                return accepted
            if is_done:
                return None
            # If the main thread is frozen (suspend, `docker pause`), the kernel gives a signal to
            # another one. Python runs the handler in the main thread, but nothing wakes that one.
            with suppress(Empty):
                self._news.get(timeout=_LOOK_SECONDS)

    def _end_of(self, accepted: attempts.AcceptedTask) -> node.End:
        """Run a task; return how it ended."""
        if accepted.attempt.experiment in self._other_blocks:
            accepted.stop()
        try:
            return self._run_task(accepted.task, accepted)
        except attempts.TaskCancelled:
            return node.Stopped()
        except attempts.HandOverStop as stopped:
            return stopped.snapshot
        except users_errors() as error:
            if accepted.cancelled:  # the manager then also removes files that the task still needs
                return node.Stopped()
            known = isinstance(error, DownpourError) and not is_of_users_code(error)
            log.warning("%s: %s failed: %s", self.name, accepted.attempt, error, exc_info=not known)
            return Failure(attempts.failure_kind(error), attempts.in_one_line(error))

    def _repeat_report(self, attempt: values.AttemptId, report: node.Report) -> None:
        """Repeat a report until the manager acknowledges it or the node gives up."""
        while True:
            try:
                self._report(attempt, report)
            except DownpourError as error:
                later = manager_may_come(error)
                with self._lock:
                    wait = self._node.report_failed(self.chance(), may_be_heard_later=later)
                if wait is None:
                    log.warning("%s: the manager did not accept a report: %s", self.name, error)
                    return
                self.threads.sleep(wait)
            else:
                with self._lock:
                    self._node.report_taken()
                return

    def _report(self, attempt: values.AttemptId, report: node.Report) -> None:
        self._tell_blocks()
        if attempt.experiment in self._other_blocks:
            report = Failure(FailureKind.OTHER_CODE, self._other_blocks[attempt.experiment])
        match report:
            case values.Update():
                self._manager.report_update(self.name, attempt, report)
            case values.Snapshot():
                self._manager.report_hand_over(self.name, attempt, report)
            case Failure():
                self._manager.report_failure(self.name, attempt, report.kind, report.reason)

    def _tell_blocks(self) -> None:
        """Tell the manager which blocks of the data have been read since the last time."""
        while True:
            experiment, digests = self._shown.blocks()
            count = self._told_blocks[1] if self._told_blocks[0] == experiment else 0
            some = list(digests.items())[count : count + _BLOCKS_TOLD]
            if not some:
                return
            blocks = tuple(messages.BlockDigest(block, digest) for block, digest in some)
            other: tuple[str, ...] = ()
            with suppress(IncompatiblePeer):  # an older manager, which compares none
                other = self._manager.report_blocks(self.name, experiment, blocks)
            if other:
                reason = f"the data are different here: {listed(other, _BLOCKS_NAMED)}"
                self._other_blocks[experiment] = reason
                log.warning("%s: %s", experiment, reason)
                for held in self._node.held:
                    if held.attempt.experiment == experiment:
                        held.stop()
            # Last, because the other thread then finds nothing to tell, and may send its report.
            self._told_blocks = experiment, count + len(some)

    # The heartbeat, in a separate thread

    def _beat(self, alone_seconds: float, on_standstill: Callable[[], object] | None) -> None:
        told, heard_seconds = set[type[Exception]](), self.threads.now()
        while self._wait_to_beat():
            try:
                self._beat_once()
                told, heard_seconds = set(), self.threads.now()
            except DownpourError as error:
                # Warn at the first failure of a kind, because a manager may be away for long.
                level = logging.INFO if type(error) in told else logging.WARNING
                log.log(level, "%s: the heartbeat failed, will retry: %s", self.name, error)
                told.add(type(error))
                with self._lock:
                    actions = self._node.beat_failed(elsewhere=isinstance(error, _WRONG_ADDRESS))
                self._do(actions)
                if self.threads.now() - heard_seconds >= alone_seconds:
                    log.warning("%s: no manager for %.0f s, leaving", self.name, alone_seconds)
                    self.leave()
            except Exception:  # this thread must live: without heartbeats the worker is lost
                log.exception("%s: the heartbeat failed", self.name)
        if on_standstill is not None:
            before = self._progress()
            self.threads.sleep(_STILL_SECONDS)
            if before and before == self._progress():
                place = place_of_thread(self._trains_in)
                log.error("%s: ends without its task, which ends no step (%s)", self.name, place)
                on_standstill()

    def _wait_to_beat(self) -> bool:
        """Wait until a heartbeat is due; returns whether to send it: false if the worker leaves."""
        # `get` returns when a task begins. Then we compute the wait again, because the interval
        # depends on the length of the current task. `get` raises Empty when the heartbeat is due.
        with suppress(Empty):
            while not self._node.leaving:
                with self._lock:
                    wait = self._node.until_next_beat(self.threads.now())
                self._begun.get(timeout=wait)
        return not self._node.leaving

    @property
    def manager(self) -> Address:
        """The address of the current manager."""
        return self._manager.address

    def look_elsewhere(self) -> None:
        """Turn to another manager that may lead by now; it gets all unacknowledged reports."""
        manager = self._find_manager()
        if manager is not None:
            # Keep this order: closing the former client ends a report that waits for an answer, and
            # the worker then repeats that report to the new manager.
            former, self._manager = self._manager, manager
            former.close()

    def _beat_once(self) -> None:
        with self._lock:
            beat = self._node.beat()
            usual = self._node.heartbeat_seconds
        self._log_standstill()
        self._tell_blocks()  # before a snapshot that depends on them
        running = tuple(
            replace(one, snapshot=None) if one.attempt.experiment in self._other_blocks else one
            for one in beat.running
        )
        system, process = self._shown.sample(usual)
        reply = self._manager.heartbeat(
            messages.Heartbeat(
                worker=self.name,
                running=running,
                system=system,
                process=process,
                differs=self._shown.differs(),
            )
        )
        with self._lock:
            actions = self._node.beat_answered(
                beat,
                known=reply.known,
                unwanted=reply.unwanted,
                interval_seconds=reply.interval_seconds,
            )
        # Without the lock: `register` takes it, and so does `ping`, which the manager calls then.
        self._do(actions)

    def _log_standstill(self) -> None:
        """Log the place of a task that has ended no step for long; then wait twice as long."""
        now, progress = self.threads.now(), self._progress()
        if progress != self._last_progress:
            self._last_progress, self._moved_at_seconds = progress, now
        elif progress and now - self._moved_at_seconds >= self._still_seconds:
            self._still_seconds *= 2
            place, seconds = place_of_thread(self._trains_in), now - self._moved_at_seconds
            log.warning("%s: no step has ended for %.0f s (%s)", self.name, seconds, place)

    def _progress(self) -> list[tuple[values.AttemptId, int, int]]:
        """Return how far the tasks have come; empty without one."""
        return [(held.attempt, held.steps_done, held.moved_bytes) for held in self._node.held]
