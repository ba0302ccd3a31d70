"""A manager and workers on this machine, forked from one process that has imported torch.

The launcher itself never imports torch. All that it has started ends with it: on `close`, on an
error, on Ctrl-C, and also when it is killed, because the fork server then reads the end of its
input.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any, Self

from downpour.credentials import Credentials
from downpour.errors import LaunchError
from downpour.launchers.logs import new_log
from downpour.launchers.plan import LaunchPlan
from downpour.worker.environment import thread_environment

START_SECONDS = 120.0
MANAGER = "manager"
_ASKED_WRONGLY = 2
"""The exit status of a process whose user can correct the cause."""


class LocalCluster:
    """A context manager: inside it, a manager and its workers are running."""

    def __init__(self, plan: LaunchPlan) -> None:
        self._plan = plan
        self._provided = 0
        self._news: dict[str, dict[str, Any]] = {}
        self._news_ended = False
        self._changed = Condition()
        self.address = ""
        self.log = Path()

    @property
    def credentials(self) -> Credentials:
        """What proves to the manager that a client belongs to this cluster."""
        return self._plan.manager.credentials

    @property
    def workers(self) -> list[str]:
        """The names of the workers that run."""
        numbers = range(1, self._plan.workers + self._provided + 1)
        names = [self._plan.worker(number, self.address).name for number in numbers]
        with self._changed:
            return [name for name in names if "exited" not in self._news.get(name, {})]

    def __enter__(self) -> Self:
        """Start the fork server, the manager, and then all workers at once."""
        self.log = new_log(Path(self._plan.manager.shared))
        with self.log.open("ab") as log:  # others append to it
            self._server = subprocess.Popen(
                [sys.executable, "-m", "downpour.launchers.forkserver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **thread_environment(self._plan.threads)},
                start_new_session=True,
            )
        self._listener = Thread(target=self._listen, args=(self._server.stdout,), daemon=True)
        self._listener.start()
        try:
            self._request(MANAGER, MANAGER, asdict(self._plan.manager))
            self.address = self._wait_for_address()
            for number in range(1, self._plan.workers + 1):
                self._start_worker(number)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop everything."""
        self.close()

    def close(self) -> None:
        """Stop workers and manager; returns when all have ended or were killed."""
        if self._server.stdin is not None:
            with suppress(BrokenPipeError):  # a request that a dead fork server did not read
                self._server.stdin.close()
        self._server.wait()
        self._listener.join()

    def provide(self, wanted: int, idle: Collection[str] = ()) -> None:
        """Start further workers, up to `wanted`, and no more than there were at first."""
        del idle  # they end with this process anyway
        # Bounded, because a policy asks for workers without knowing this machine's cores.
        while self._provided < min(wanted, self._plan.workers):
            self._provided += 1
            self._start_worker(self._plan.workers + self._provided)

    def check(self) -> None:
        """Raise LaunchError if the manager, or the last of the workers, has ended."""
        with self._changed:
            ended = {name for name, news in self._news.items() if "exited" in news}
            if MANAGER in ended:
                raise self._end_of(MANAGER)
            if self._is_over():
                raise LaunchError(f"the processes of this run have ended; see {self.log}")
            if ended and len(ended) >= self._plan.workers + self._provided:
                raise self._end_of(min(ended))

    def _start_worker(self, number: int) -> None:
        worker = self._plan.worker(number, self.address)
        self._request("worker", worker.name, asdict(worker))

    def _request(self, role: str, name: str, options: dict[str, Any]) -> None:
        line = json.dumps({"role": role, "name": name, "options": options}) + "\n"
        pipe = self._server.stdin
        if pipe is None:
            raise LaunchError("the fork server takes no requests")
        try:
            pipe.write(line.encode())
            pipe.flush()
        except BrokenPipeError:
            raise LaunchError(f"the fork server has died; see {self.log}") from None

    def _wait_for_address(self) -> str:
        with self._changed:
            self._changed.wait_for(
                lambda: self._news.get(MANAGER) or self._is_over(), START_SECONDS
            )
            news = self._news.get(MANAGER, {})
            if "address" not in news:
                raise self._end_of(MANAGER)
            return str(news["address"])

    def _listen(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                news = json.loads(line)
                with self._changed:
                    self._news.setdefault(news.pop("name"), {}).update(news)
                    self._changed.notify_all()
        with self._changed:
            self._news_ended = True
            self._changed.notify_all()

    def _is_over(self) -> bool:
        """Whether the fork server has ended, or is about to: its output ends shortly before."""
        return self._news_ended or self._server.poll() is not None

    def _end_of(self, name: str) -> LaunchError:
        """Return the error of a process that is not running."""
        news = self._news.get(name, {})
        if error := news.get("error"):
            return LaunchError(str(error), asked_wrongly=news.get("status") == _ASKED_WRONGLY)
        if "exited" in news:
            return LaunchError(f"{name} ended with status {news['exited']}; see {self.log}")
        return LaunchError(f"{name} did not start; see {self.log}")
