"""This process: signals, its session, its limits, its log, its threads, and their queues and time.

`Threads` are this machine's. The simulator has others (`downpour_lab/simulated/threads.py`), whose
waits take virtual time, so it runs drivers, agents and command runners as they are. `Lanes` say
where a manager's commands wait for each other.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import os
import resource
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from logging.handlers import WatchedFileHandler
from pathlib import Path
from queue import Empty, Full, Queue, SimpleQueue
from threading import Event, Lock, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import psutil

from downpour.base.errors import one_line, shortened

if TYPE_CHECKING:
    from concurrent.futures import Future

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_LEAVING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class Terminated(KeyboardInterrupt):
    """A signal tells a command to stop, as Ctrl-C does; `last` is the number of the last one."""

    last: ClassVar[int] = signal.SIGINT

    def __init__(self, number: int) -> None:
        super().__init__(number)
        Terminated.last = number


def stop_at_signals() -> None:
    """Let TERM and HUP end a command as Ctrl-C does, once; servers replace it by `on_leaving`."""

    def stop(number: int, _: object) -> None:
        for each in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        raise Terminated(number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores HUP
            signal.signal(number, stop)


def on_leaving(leave: Callable[[int], object]) -> None:
    """Call `leave` with the number of each signal from an engine, including repeated ones.

    People send INT (Ctrl-C). Engines send TERM, sometimes twice: Slurm sends it to every process of
    a step, and a batch script that passes it on sends a second one. Slurm's --signal and submitit
    send USR1 or USR2 before a limit, and a terminal that closes sends HUP. All of them mean the
    same. HUP without a closed terminal comes from a program that rotates logs, and ends no server.
    """
    had_terminal = _has_terminal()

    def hear(number: int, _: object) -> None:
        if number != signal.SIGHUP or (had_terminal and not _has_terminal()):
            leave(number)

    for number in _LEAVING:
        # nohup ignores HUP, so that the process outlives its terminal.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, hear)


def _has_terminal() -> bool:
    """Whether this process has a terminal that has not closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def on_interrupt(leave: Callable[[], object]) -> None:
    """Call `leave` at Ctrl-C; a second Ctrl-C ends the process at once, in case `leave` hangs."""

    def once(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        leave()

    signal.signal(signal.SIGINT, once)


def waiting_for_leave() -> Callable[[float], bool]:
    """Return a function that waits some seconds, and returns true early if a signal comes."""
    # A SimpleQueue, because its `put` is reentrant and handlers run in the waiting thread.
    told = SimpleQueue[None]()
    on_leaving(lambda _: told.put(None))
    on_interrupt(lambda: told.put(None))

    def wait(seconds: float) -> bool:
        with suppress(Empty):
            told.get(block=seconds > 0, timeout=seconds or None)
            return True
        return False

    return wait


_PAUSING = Lock()
_paused_thresholds: list[tuple[int, int, int]] = []


@contextmanager
def without_gc() -> Iterator[None]:
    """Return a context that pauses garbage collection while modules are imported.

    They leave little garbage. To collect it took 0.8 s of the 3.1 s in which torch and transformers
    are imported.
    """
    with _PAUSING:  # the last of several threads restores what the first has found
        _paused_thresholds.append(gc.get_threshold())
        gc.set_threshold(0)
    try:
        yield
    finally:
        with _PAUSING:
            found = _paused_thresholds[0]
            _paused_thresholds.pop()
            if not _paused_thresholds:
                gc.set_threshold(*found)


PACKAGES = "DOWNPOUR_PACKAGES"
"""The variable that tells a worker what its tasks will import, separated by spaces."""


def import_packages(names: Iterable[str]) -> None:
    """Import each `module`, or `module:name`, ahead of its use.

    An import that fails is no error here: the process that needs the package reports it.
    """
    for name in names:
        module, _, attribute = name.partition(":")
        with suppress(Exception, SystemExit), without_gc():
            package = import_module(module)
            if attribute and not hasattr(package, attribute):
                import_module(f"{module}.{attribute}")


@contextmanager
def kept_handlers() -> Iterator[None]:
    """Restore the handlers that a library replaces in this block; only the main thread has any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *_LEAVING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: not a Python handler
                signal.signal(number, handler)


def end_with_parent(number: int = signal.SIGTERM) -> None:
    """Let the kernel (Linux) send a signal to this process when the thread that started it ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)


def end_session(leader: int) -> None:
    """Kill all processes of a leader's session, except the leader itself.

    A user's task may start processes (data helpers, tracking libraries) that would outlive it.
    """
    if leader == os.getsid(0):
        return
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if pid != leader and os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a session's leader and its group; do nothing if it has ended, or does not lead yet."""
    with suppress(ProcessLookupError, PermissionError):  # macOS raises PermissionError for a zombie
        os.killpg(leader, number)


WAITING_MAX = 1000
"""How many values may wait for a slow function; the function misses any further ones."""
CLOSE_SECONDS = 5.0
"""How long a run that ends may wait for a user's function."""

_Value = TypeVar("_Value")


class Background(Generic[_Value]):
    """Calls a function with one value after another; `take` never waits for it.

    We log a function's error once, with its `name`. The function still gets later values, but
    misses one that comes while `waiting_max` values wait.
    """

    def __init__(
        self, name: str, function: Callable[[_Value], object], waiting_max: int = WAITING_MAX
    ) -> None:
        self._name = name
        self._function = function
        # None ends the thread.
        self._values: Queue[tuple[_Value] | None] = Queue(waiting_max)
        self._left_out = 0
        self._has_failed = False
        self._thread = Thread(target=self._run, name=f"background {name}", daemon=True)
        self._thread.start()

    def take(self, value: _Value) -> None:
        """Hand over a value; drop it if too many wait."""
        try:
            self._values.put_nowait((value,))
        except Full:
            self._left_out += 1

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait until the function has had every value, but no longer than `seconds`."""
        deadline = time.monotonic() + seconds
        try:
            self._values.put(None, timeout=seconds)
        except Full:
            self._left_out += self._values.qsize()
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            log.warning("%s has not returned after %.0f s; we stop waiting", self._name, seconds)
        if self._left_out:
            log.warning("%s was too slow: it missed %d calls", self._name, self._left_out)

    def _run(self) -> None:
        while (item := self._values.get()) is not None:
            try:
                self._function(*item)
            except Exception as error:
                if not self._has_failed:
                    self._has_failed = True
                    what = shortened(f"{type(error).__name__}: {error}")
                    log.warning("%s raised %s; its later errors are not shown", self._name, what)
                    log.debug("%s raised", self._name, exc_info=error)


_WANTED = 65536
"""Many systems have a soft limit of only 1,024."""
CONNECTIONS_MAX = 16384
"""More connections would need more threads than a process can run well."""
CONNECTIONS_OF_A_WORKER = 2
"""To its manager: one for heartbeats, and one for reports. The manager opens a third one to it."""
_RESERVE_MAX = 512
_FILES_AT_ONCE_MAX = 64


def allow_many_descriptors() -> None:
    """Raise this process's limit as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def descriptors_allowed() -> int:
    """Return the number of descriptors that this process may hold."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _WANTED if soft == resource.RLIM_INFINITY else soft


def connections_allowed() -> int:
    """Return how many connections this process may accept, so that its own files find room.

    It leaves a quarter for files, and the rest of a worker's descriptors for calls back.
    """
    free = descriptors_allowed() - min(_RESERVE_MAX, descriptors_allowed() // 4)
    workers = free // (CONNECTIONS_OF_A_WORKER + 1)
    return min(CONNECTIONS_MAX, workers * CONNECTIONS_OF_A_WORKER)


def files_at_once() -> int:
    """Return how many files one thread may map at a time; each holds a descriptor."""
    return min(_FILES_AT_ONCE_MAX, max(1, descriptors_allowed() // 16))


def lacks_descriptors(error: OSError) -> bool:
    """Whether an operation failed because this process, or its system, has none left."""
    return error.errno in {errno.EMFILE, errno.ENFILE}


Job = Callable[[], None]


class Threads:
    """This machine's threads."""

    def now(self) -> float:
        """Return the seconds since some fixed moment."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        time.sleep(seconds)

    def start(self, name: str, target: Callable[..., object], *args: Any) -> Thread:
        """Run a function in a thread, which does not keep the process alive."""
        thread = Thread(target=target, args=args, name=name, daemon=True)
        thread.start()
        return thread

    def queue(self) -> SimpleQueue[Any]:
        """Make a queue between threads; signal handlers may put items into it, too."""
        return SimpleQueue()

    def reply(self) -> Future[Any]:
        """Make the place of a result that another thread sets."""
        from concurrent.futures import Future

        return Future()

    def flag(self) -> Event:
        """Make a flag for which threads can wait."""
        return Event()


THREADS = Threads()


class OrderedCalls:
    """A pool of threads; calls of one name run one after the other, in the order of submission.

    A cancellation must not overtake the assignment that it cancels. Workers do not wait for each
    other: a slow worker delays only its own calls, and occupies one thread of the pool.
    """

    def __init__(self, threads: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="call")
        self._waiting: dict[str, deque[Job]] = {}
        self._lock = Lock()

    def submit(self, name: str, call: Job) -> None:
        """Run a call after all earlier calls of this name; it must not raise."""
        with self._lock:
            waiting = self._waiting.get(name)
            if waiting is not None:
                waiting.append(call)
                return
            # An empty queue means that a call of this name is running, and no other waits.
            self._waiting[name] = deque()
        self._pool.submit(self._run, name, call)

    def close(self) -> None:
        """Wait for the calls that have begun, and drop the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, name: str, call: Job) -> None:
        try:
            call()
        finally:
            with self._lock:
                following = self._waiting[name].popleft() if self._waiting[name] else None
                if following is None:
                    del self._waiting[name]
            # Submit the next call to the pool instead of running it here. A worker with a long
            # queue must not keep a thread while other workers wait for one.
            if following is not None:
                # After `close`, the pool raises here, which drops the calls behind this one.
                self._pool.submit(self._run, name, following)


class SerialExecutor:
    """One thread, which lives until `close`.

    Its thread is a daemon. If its work hangs, because a file server never answers, it delays the
    jobs behind it, but neither other executors nor the end of the process. (`concurrent.futures`
    joins its threads at exit, so a hung one would keep the process alive.)
    """

    def __init__(self, name: str) -> None:
        self._waiting = SimpleQueue[Job | None]()
        self._is_closed = False
        self._thread = THREADS.start(name, self._run)

    def submit(self, job: Job) -> None:
        """Run this after all earlier work; after `close`, drop it."""
        self._waiting.put(job)

    @property
    def is_behind(self) -> bool:
        """Whether anything waits for the running job."""
        return not self._waiting.empty()

    def close(self, timeout_seconds: float) -> None:
        """Wait at most `timeout_seconds` for the running job; drop waiting ones."""
        self._is_closed = True
        self._waiting.put(None)
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            if not self._is_closed:
                job()


CALLS_AT_ONCE = 8
"""Enough to keep the workers busy; each call costs this process a fraction of a millisecond."""

_CLOSING_SECONDS = 30.0
"""The wait for running work when the manager ends; the next manager repeats unfinished work."""


class Lanes:
    """A manager's commands wait for each other in lanes; their jobs must not raise."""

    def __init__(self) -> None:
        self._calls = OrderedCalls(CALLS_AT_ONCE)
        self._works = SerialExecutor("work")
        self._evaluations = SerialExecutor("evaluation")

    def call(self, worker: str, job: Job) -> None:
        """Call a worker after all earlier calls to it."""
        self._calls.submit(worker, job)

    def work(self, job: Job) -> None:
        """Run work on parameters after all earlier work."""
        self._works.submit(job)

    @property
    def work_waits(self) -> bool:
        """Whether any work waits for the running one."""
        return self._works.is_behind

    def beside(self, job: Job) -> None:
        """Run an evaluation beside the work, after all earlier evaluations."""
        self._evaluations.submit(job)

    def alone(self, job: Job) -> None:
        """Run a job at once."""
        THREADS.start("preparation", job)

    def close(self) -> None:
        """Wait for running work, and begin nothing more."""
        self._calls.close()
        self._works.close(_CLOSING_SECONDS)
        self._evaluations.close(_CLOSING_SECONDS)


class LogFormatter(logging.Formatter):
    """Writes each message in one line, and a traceback in separate lines below."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - of the library
        """Format the message; a traceback follows below it."""
        record.message = one_line(record.message)
        return super().formatMessage(record)

    def formatException(  # noqa: N802 - of the library
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None]
        | tuple[None, None, None],
    ) -> str:
        """Format a traceback; its last lines may quote text from elsewhere."""
        return "\n".join(map(one_line, super().formatException(ei).split("\n")))


def set_up_log(level: int, line: str, file: Path | None = None) -> None:
    """Set up this process's log, on standard error or in a file, with lines of the given format."""
    if file is not None:
        # Without this, opening a FIFO would wait for a reader; now it fails.
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666))
    # A program that rotates logs may move the file; this handler then begins a new one.
    handler = WatchedFileHandler(file) if file is not None else logging.StreamHandler()
    handler.setFormatter(LogFormatter(line))
    logging.raiseExceptions = False  # standard error may be a pipe whose reader has died
    logging.basicConfig(level=level, handlers=[handler])
