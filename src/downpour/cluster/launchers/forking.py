"""A launcher's view of its fork server: requests go in, news of the forked processes comes out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any

from downpour.base.errors import LaunchError
from downpour.cluster.launchers.base import Ended, LaunchPlan
from downpour.cluster.options import WorkerOptions
from downpour.host.child import Child
from downpour.host.process import end_session

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 15.0
"""A fork server gives its workers five seconds to leave, and then its manager."""
_LISTEN_SECONDS = 1.0
_ASKED_WRONGLY = 2


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
            return LaunchError(str(error), asked_wrongly=news.get("status") == _ASKED_WRONGLY)
        if "exited" in news:
            return LaunchError(f"{name} exited with status {news['exited']}; see {self.log}")
        late = f" within {waited_seconds:.0f} s" if waited_seconds and not self.is_over else ""
        return LaunchError(f"{name} did not start{late}; see {self.log}")

    def close(self) -> None:
        """Stop all processes that it has started; returns when they have ended or were killed."""
        self._child.end(CLOSE_SECONDS)
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
