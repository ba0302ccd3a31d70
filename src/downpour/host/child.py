"""Child processes that run one of our modules, and a shell that acts once this process has died."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Self

import msgspec

from downpour.host.text import last_line


class Child:
    """A process of a module, in a separate session: Ctrl-C in a terminal does not reach it.

    Its standard input is a pipe, which ends with this process, however this one ends.

    Args:
        module: what it runs, with `words` as its arguments.
        log: the file for its standard error; None: that of this process.
        starts_log: whether to replace the file rather than append to it.
        answers: whether its standard output is a pipe, too; otherwise it goes to the log.
        environment: further environment variables.
        descriptors: descriptors that it inherits under their numbers.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str] = (),
        *,
        log: Path | None = None,
        starts_log: bool = False,
        answers: bool = False,
        environment: Mapping[str, str] | None = None,
        descriptors: Sequence[int] = (),
    ) -> None:
        self.log = log
        with ExitStack() as opened:
            errors = opened.enter_context(log.open("wb" if starts_log else "ab")) if log else None
            self.process = subprocess.Popen(  # noqa: S603 - one of our modules
                [sys.executable, "-m", module, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else errors,
                stderr=errors,
                env={**os.environ, **(environment or {})},
                pass_fds=descriptors,
                start_new_session=True,
            )

    def tell(self, line: bytes, *, is_last: bool = False) -> bool:
        """Write to its standard input; return whether it has taken that, and did not die before."""
        pipe = self.process.stdin
        assert pipe is not None  # noqa: S101 - a pipe, as started
        try:
            pipe.write(line)
            pipe.flush()
        except (BrokenPipeError, ValueError):  # ValueError: the pipe is closed
            return False
        if is_last:
            pipe.close()
        return True

    def end(self, seconds: float) -> None:
        """End its input, which tells it to end; kill it if it takes longer."""
        if self.process.stdin is not None:
            with suppress(OSError):  # words that a dead process did not read
                self.process.stdin.close()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def last_words(self) -> str:
        """The last line of its log; empty if there is none."""
        return last_line(self.log.read_text("utf-8", errors="replace")) if self.log else ""


class JsonLine:
    """A dataclass whose values travel between two of our processes, each as a line of JSON."""

    __slots__ = ()

    def to_line(self) -> str:
        """Return it as a line, without its end; msgspec would write null for a loss of NaN."""
        return json.dumps(asdict(self), separators=(",", ":"))  # type: ignore[call-overload]

    @classmethod
    def of(cls, line: str) -> Self:
        """Read it."""
        return msgspec.convert(json.loads(line), cls)


class LastWill:
    """Runs a shell script once this process has died, unless the process revokes it.

    The shell has a separate session and reads from a pipe whose other end this process holds. The
    pipe ends with this process, however the process ends; then the shell runs its script. It takes
    1 MB. Without an `environment`, it has that of this process.
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
