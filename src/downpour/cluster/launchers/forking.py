"""A launcher's view of its fork server: requests go in, news of the forked processes comes out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread
from typing import IO, Any

from downpour.base.errors import LaunchError
from downpour.host.process import end_session

CLOSE_SECONDS = 15.0
"""A fork server gives its workers five seconds to leave, and then its manager."""
_LISTEN_SECONDS = 1.0
_ASKED_WRONGLY = 2


class ForkServerProcess:
    """A running fork server, until `close`.

    Args:
        log: the file to which it and all its processes append their logs.
        environment: further environment variables.
    """

    def __init__(self, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self._news: dict[str, dict[str, Any]] = {}
        self._pids: set[int] = set()
        self._news_ended = False
        self._changed = Condition()
        with log.open("ab") as file:  # others append to it
            self._process = subprocess.Popen(
                [sys.executable, "-m", "downpour.cluster.launchers.forkserver"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        pipe = self._process.stdout
        self._listener = Thread(target=self._listen, args=(pipe,), daemon=True)
        self._listener.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to: its output ends shortly before it does."""
        return self._news_ended or self._process.poll() is not None

    def request(self, role: str, name: str, options: Mapping[str, Any]) -> None:
        """Ask for a process."""
        line = json.dumps({"role": role, "name": name, "options": options}) + "\n"
        pipe = self._process.stdin
        if pipe is None:
            raise LaunchError("the fork server accepts no requests")
        try:
            pipe.write(line.encode())
            pipe.flush()
        except (BrokenPipeError, ValueError):  # ValueError: the pipe is closed
            raise LaunchError(f"the fork server has died; see {self.log}") from None

    def forget(self, name: str) -> None:
        """Forget the news of an ended process, because another one takes its name."""
        with self._changed:
            self._news.pop(name, None)

    def wait_for_address(self, name: str, seconds: float) -> str:
        """Wait until a process serves, and return its address."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._news.get(name, {}).keys() & {"address", "exited"} or self.is_over,
                seconds,
            )
            news = self._news.get(name, {})
        if "address" not in news:
            raise self.error_of(name, waited_seconds=seconds)
        return str(news["address"])

    def exit_status(self, name: str) -> int | None:
        """Return the exit status of a process that has ended, negative for a signal; else None."""
        with self._changed:
            status: int | None = self._news.get(name, {}).get("exited")
            return status

    def process_of(self, name: str) -> int | None:
        """Return the process with this name, as long as it runs."""
        # The system reuses a process's number only once the fork server has seen its end, and the
        # fork server reports the end at once.
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
        if self._process.stdin is not None:
            with suppress(BrokenPipeError):  # a request that a dead fork server did not read
                self._process.stdin.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
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


class LastWill:
    """Runs a shell script once this process has died, unless the process revokes it.

    The shell has a separate session and reads from a pipe whose other end this process holds. The
    pipe ends with this process, however the process ends; then the shell runs its script. It takes
    1 MB.

    Args:
        script: the shell script.
        environment: the shell's whole environment; None: this process's.
    """

    def __init__(self, script: str, environment: Mapping[str, str] | None = None) -> None:
        # `revoke` writes a line. If the pipe ends without one, this process has died.
        waits = f"trap '' HUP INT TERM; read word || {{ {script}\n}}"
        self._shell = subprocess.Popen(  # noqa: S603 - words of this package
            ["/bin/sh", "-c", waits],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )

    def __del__(self) -> None:
        """Run the script now if the command has not cleaned up and no longer can."""
        if self._shell.returncode is None:
            self._shell.communicate()

    def revoke(self) -> None:
        """Drop the script, because this process has cleaned up."""
        with suppress(BrokenPipeError):
            self._shell.communicate(b"done\n")


PAUSES_SECONDS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
"""The pauses before a worker's restarts: a rebooting host is back within minutes."""
LASTING_SECONDS = 60.0
"""A process that has run for this long counts as sound: we count its next restart as the first."""


class Restarts:
    """The restarts of one process; `count` is their number since it last ran for long.

    Args:
        now: returns seconds since some fixed moment.
    """

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
