"""A process that imports torch and a task's packages once, and forks managers and workers.

Importing them costs seconds and hundreds of megabytes; forked children share both. So this process
runs no tensor operation and never touches an accelerator, because neither survives a fork. Workers
on accelerators are started as new processes instead.

A launcher holds a `ForkServerProcess`. JSON lines on its standard input name the processes to
start; JSON lines on its standard output report what happened to them. When the input ends, because
the launcher closed it or died, the fork server stops its children and ends.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import selectors
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from threading import Condition, Thread
from typing import IO, TYPE_CHECKING, Any, NoReturn

import psutil
from pydantic import TypeAdapter
from setproctitle import setproctitle

from downpour.base.errors import DownpourError, LaunchError, SpecError
from downpour.base.names import CPU
from downpour.cluster.launchers import Ended, LaunchPlan
from downpour.cluster.options import ManagerOptions, WorkerOptions, training_environment
from downpour.host.child import Child
from downpour.host.paths import without_credentials
from downpour.host.process import (
    PACKAGES,
    end_session,
    end_with_parent,
    import_packages,
    set_up_log,
)
from downpour.learning.blame import ending_told

if TYPE_CHECKING:
    from downpour.network.rpc import Address

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 15.0
"""A fork server gives its workers five seconds to leave, and then its manager."""
_LISTEN_SECONDS = 1.0


class ForkServerProcess:
    """A fork server, until `close`; it `imports` packages, and its processes append to `log`."""

    def __init__(
        self, log: Path, environment: Mapping[str, str], imports: Sequence[str] = ()
    ) -> None:
        self.log = log
        self._news: dict[str, dict[str, Any]] = {}
        self._pids: set[int] = set()
        self._news_ended = False
        self._changed = Condition()
        module = "downpour.cluster.launchers.forkserver"
        self._child = Child(module, imports, log=log, answers=True, environment=environment)
        pipe = self._child.process.stdout
        self._listener = Thread(target=self._listen, args=(pipe,), daemon=True)
        self._listener.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to: its output ends shortly before it does."""
        return self._news_ended or self._child.process.poll() is not None

    def request(self, role: str, name: str, options: Mapping[str, Any]) -> None:
        """Ask for a process."""
        line = json.dumps({"role": role, "name": name, "options": options}) + "\n"
        if not self._child.tell(line.encode()):
            raise LaunchError(f"the fork server has died; see {self.log}")

    def forget(self, name: str) -> None:
        """Forget the news of an ended process, because another one takes its name."""
        with self._changed:
            self._news.pop(name, None)

    def answer_of(self, name: str, seconds: float) -> str:
        """Wait for the answer of a process that is ready, such as a manager's address."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._news.get(name, {}).keys() & {"answer", "exited"} or self.is_over,
                seconds,
            )
            news = self._news.get(name, {})
        if "answer" not in news:
            raise self.error_of(name, waited_seconds=seconds)
        return str(news["answer"])

    def exit_status(self, name: str) -> int | None:
        """Return the exit status of a process that has ended, negative for a signal; else None."""
        with self._changed:
            status: int | None = self._news.get(name, {}).get("exited")
            return status

    def process_of(self, name: str) -> int | None:
        """Return the process with this name, as long as it runs."""
        # The system reuses a process's number only after its end, which the server reports at once.
        with self._changed:
            news = self._news.get(name, {})
            return None if "exited" in news or self.is_over else news.get("pid")

    def error_of(self, name: str, waited_seconds: float = 0.0) -> LaunchError:
        """Return the error of a process that does not run, or did not start in time."""
        news = self._news.get(name, {})
        if error := news.get("error"):
            return LaunchError(
                str(error), asked_wrongly=news.get("status") == SpecError.exit_status
            )
        if "exited" in news:
            return LaunchError(f"{name} exited with status {news['exited']}; see {self.log}")
        late = f" within {waited_seconds:.0f} s" if waited_seconds and not self.is_over else ""
        return LaunchError(f"{name} did not start{late}; see {self.log}")

    def close(self) -> None:
        """Stop all processes that it has started; returns when they have ended or were killed."""
        self._child.end(_CLOSE_SECONDS)
        # A child of a user's task holds the pipe open as long as it lives, so we don't wait for the
        # news to end. We end that child here, along with its worker's session.
        for pid in self._pids:
            end_session(pid)
        self._listener.join(_LISTEN_SECONDS)

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                news = json.loads(line)
                with self._changed:
                    self._pids |= {news["pid"]} if "pid" in news else set()
                    self._news.setdefault(news.pop("name"), {}).update(news)
                    self._changed.notify_all()
        with self._changed:
            self._news_ended = True
            self._changed.notify_all()


KEPT = 20
_NAME = re.compile(r"\d{8}-\d{6}-\d{1,9}")


def new_log(shared: Path) -> Path:
    """Return a path for this process's log; remove the oldest, unless their processes live here."""
    folder = shared / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    written = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    for path in sorted(written, key=lambda path: path.name, reverse=True)[KEPT - 1 :]:
        if not psutil.pid_exists(int(path.name.rpartition("-")[2])):
            with suppress(OSError):  # another run has removed it, or it is another user's
                path.unlink()
    return folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def fork_server(shared: Path, threads: int, imports: Sequence[str]) -> ForkServerProcess:
    """Start a fork server, which logs to a shared directory."""
    return ForkServerProcess(new_log(shared), training_environment(threads), imports)


class ForkEngine:
    """Starts each worker as a fork of the process that forked the manager, and ends with it.

    `server` returns the running fork server, because the cluster replaces one that dies.
    """

    def __init__(self, manager_host: str, server: Callable[[], ForkServerProcess]) -> None:
        self.manager_host = manager_host
        self._server = server
        self._servers: dict[str, ForkServerProcess] = {}
        self._signals: dict[str, int] = {}

    def check(self, plan: LaunchPlan) -> None:
        """Refuse nothing, because this machine is always available."""

    def start(self, worker: WorkerOptions, environment: Mapping[str, str], log: Path) -> None:
        """Ask for a worker; it has the fork server's environment and log."""
        del environment, log
        server = self._servers[worker.name] = self._server()
        if number := self._signals.pop(worker.name, 0):
            logger.warning("%s died from signal %d; restarting it", worker.name, number)
            server.forget(worker.name)
        try:
            server.request("worker", worker.name, asdict(worker))
        except LaunchError:
            if not server.is_over:
                raise
            # The next look finds the fork server dead, and restarts everything.

    def ended(self) -> Mapping[str, Ended]:
        """Return the workers that have ended, also because their fork server has."""
        over = {}
        for name, server in list(self._servers.items()):
            status = server.exit_status(name)
            if status is not None and status >= 0:
                over[name] = Ended(status)
            elif status is not None or server is not self._server():
                self._signals[name] = -(status or 0)
                over[name] = Ended(None)
        for name in over:
            del self._servers[name]
        return over

    def stop(self, name: str) -> None:
        """Do nothing, because workers of this machine end with the command."""

    def close(self) -> None:
        """Do nothing: the fork server ends its workers."""


GRACE_SECONDS = 5.0
_NEWS_CHARACTERS_MAX = 600


class ForkServer:
    """Forks children; reads requests from one file descriptor, writes news to the other."""

    def __init__(self, requests: int, news: int) -> None:
        self._requests = requests
        self._news = news
        self._roles: dict[int, tuple[str, str]] = {}
        self._preloaded: set[str] = set()
        self._rest = b""
        self._wake, self._woken = os.pipe()
        os.set_blocking(self._woken, False)

    def serve(self) -> None:
        """Start requested processes until the requests end, then stop all children."""
        # The wake-up pipe turns SIGCHLD into something that `select` waits for; the handler itself
        # does nothing, because a handler must not touch the tables that this loop changes.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._requests, selectors.EVENT_READ)
        selector.register(self._wake, selectors.EVENT_READ)
        going = True
        try:
            while going:
                for key, _ in selector.select():
                    if key.fd == self._wake:
                        os.read(self._wake, 4096)
                    else:
                        going = self._take_requests()
                self._reap()
        finally:
            self._stop_all()

    def _take_requests(self) -> bool:
        """Start what the next lines request; returns false at the end of the requests."""
        chunk = os.read(self._requests, 65536)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            request = json.loads(line)
            self._start(request["role"], request["name"], request["options"])
        return bool(chunk)

    def _start(self, role: str, name: str, options: dict[str, Any]) -> None:
        if role not in self._preloaded:
            # Everything that a child of the role needs, so that all forks share it. The manager's
            # comes first and alone: it prepares the dataset while this imports the workers'.
            for module in _PRELOADED[role]:
                import_module(module)
            # Garbage collections of children don't visit frozen objects. Such a visit would write
            # to the objects' pages in each child, and so copy the memory that forks share.
            gc.freeze()
            self._preloaded.add(role)
        pid = os.fork()
        if pid == 0:
            self._become(role, name, options)
        self._roles[pid] = (role, name)
        self._tell(name=name, pid=pid)

    def _become(self, role: str, name: str, options: dict[str, Any]) -> NoReturn:
        """Turn this fork into a manager or a worker; never returns."""
        status, end = 1, os._exit
        told = ending_told(
            lambda said: self._tell(name=name, error=f"the user's code {said}", status=2)
        )
        os._exit = told  # type: ignore[assignment]
        try:
            gc.enable()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            # A separate session, so that we can end the processes of a user's task with the worker.
            os.setsid()
            # SIGKILL: an orderly stop cancels a run's experiments, but a dead manager's continue.
            end_with_parent(signal.SIGKILL)
            setproctitle(f"downpour: {name}")
            # Replace standard input, because the next open file would take a closed one's place.
            os.dup2(os.open(os.devnull, os.O_RDONLY), self._requests)
            os.close(self._wake)
            os.close(self._woken)
            _ROLES[role](options, lambda answer: self._tell(name=name, answer=str(answer)))
            status = 0
        except DownpourError as error:
            status = error.exit_status
            self._tell(name=name, error=str(error), status=status)
        except BaseException as error:
            logging.getLogger(__name__).exception("%s %s died", role, name)
            self._tell(name=name, error=f"{type(error).__name__}: {error}", status=status)
        finally:
            logging.shutdown()
            end(status)

    def _reap(self) -> None:
        while self._roles:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._roles:  # others were started by an import
                _, name = self._roles.pop(pid)
                end_session(pid)
                self._tell(name=name, exited=os.waitstatus_to_exitcode(status))

    def _stop_all(self) -> None:
        """Terminate workers, then managers; kill the slow ones."""
        for role in ("worker", "manager"):
            self._signal(role, signal.SIGTERM)
            deadline = time.monotonic() + GRACE_SECONDS
            while self._of(role) and time.monotonic() < deadline:
                self._reap()
                time.sleep(0.005)
            self._signal(role, signal.SIGKILL)

    def _of(self, role: str) -> list[int]:
        return [pid for pid, (its, _) in self._roles.items() if its == role]

    def _signal(self, role: str, number: signal.Signals) -> None:
        for pid in self._of(role):
            os.kill(pid, number)

    def _tell(self, **news: object) -> None:
        """Write one line; short enough (PIPE_BUF) that lines of several processes do not mix."""
        short = {
            key: text[:_NEWS_CHARACTERS_MAX] if isinstance(text, str) else text
            for key, text in news.items()
        }
        line = json.dumps(short, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"
        try:
            os.write(self._news, line)
        except BrokenPipeError:
            return


def _run_manager(options: dict[str, Any], ready: Callable[[Address], None]) -> None:
    from downpour.cluster.manager.process import run_manager

    run_manager(TypeAdapter(ManagerOptions).validate_python(options), ready)


def _run_worker(options: dict[str, Any], ready: Callable[[Address], None]) -> None:
    from downpour.cluster.worker.process import run_worker
    from downpour.learning.accelerators import devices_here

    worker = TypeAdapter(WorkerOptions).validate_python(options)
    worker = replace(worker, device=devices_here().spread(worker.device, worker.place))
    if worker.device != CPU:
        words = [sys.executable, "-m", "downpour", *worker.arguments()]
        environment = without_credentials(os.environ) | worker.credentials.to_environment()
        os.execve(sys.executable, words, environment)  # noqa: S606
    run_worker(worker, lambda address, *_: ready(address))


def _run_look(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    from downpour.learning.auto import look

    ready(look(options))


_ROLES: dict[str, Callable[[dict[str, Any], Callable[[object], None]], None]] = {
    "manager": _run_manager,
    "worker": _run_worker,
    "look": _run_look,
}
_PRELOADED = {
    "manager": ("downpour.cluster.manager.process", "downpour.cluster.manager.global_model"),
    "worker": ("downpour.cluster.worker.process", "downpour.cluster.worker.task_runner"),
    "look": ("downpour.learning.tasks.loaded", "downpour.learning.training.optimizers"),
}


_SAFE_LOOK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""With it torch looks for cards without opening one; an open one does not survive a fork."""


def _import_packages(names: Sequence[str]) -> bool:
    """Import packages; return false if that began a thread, which no fork would have."""
    is_set = _SAFE_LOOK in os.environ
    os.environ.setdefault(_SAFE_LOOK, "1")
    import_packages(names)
    if not is_set:
        del os.environ[_SAFE_LOOK]
    return threading.active_count() == 1


def main() -> None:
    """Serve one launcher, over this process's standard input and output."""
    setproctitle("downpour: fork server")
    set_up_log(logging.INFO, "%(asctime)s %(process)d %(name)s: %(message)s")
    # Imports leave little garbage. To collect it took a quarter of the import of torch and
    # transformers (3.1 s), and 0.3 s more for each role.
    gc.disable()
    # The output of imports goes to the log; it would break the lines that the launcher reads.
    news = os.dup(1)
    os.dup2(2, 1)
    imports, sys.argv[1:] = sys.argv[1:], []  # which packages may read
    if imports and not _import_packages(imports):
        os.dup2(news, 1)
        os.execv(sys.executable, [sys.executable, "-m", __spec__.name])  # noqa: S606
    os.environ[PACKAGES] = " ".join(imports)  # a worker on an accelerator is a new process
    ForkServer(requests=0, news=news).serve()


if __name__ == "__main__":
    main()
