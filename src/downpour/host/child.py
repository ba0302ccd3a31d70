"""Processes that this one starts: our modules, a shell that acts after its death, a user's command.

A user's command runs when something happens to an experiment (`--on-event COMMAND`). We split it
into words and start it without a shell, which could read other people's names and reasons as code.
We pass those only in the environment and on standard input.
"""

import atexit
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Self

from downpour.base.errors import SpecError, last_line, shortened
from downpour.base.states import TOLD, ExperimentEvent


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
        import msgspec

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


log = logging.getLogger(__name__)

_LIMIT_SECONDS = 30.0
"""How long a command may run."""
_STDERR = 2


def checked_command(text: str, field: str = "on_event") -> str:
    """Return a command with the absolute path of its program, so that it runs from any folder."""
    try:
        words = shlex.split(text) if isinstance(text, str) else []
    except ValueError as error:
        raise SpecError(field, text, f"must be a command ({error})") from None
    if not words or "\0" in text:
        raise SpecError(field, text, "must be a command, such as ./notify.sh")
    program = shutil.which(words[0])
    if program is None:
        accepted = f"no program {words[0]} here that this user may run"
        if field == "notice":
            accepted += "; a file needs an absolute path"
        raise SpecError(field, text, accepted)
    return shlex.join([str(Path(program).absolute()), *words[1:]])


NOTICE_SECONDS = 3.0
"""Between two looks for a notice: clouds give at least 30 s, and a look costs a process."""


def notice_at(text: str) -> Callable[[], bool]:
    """Return a look that says whether a file exists, or whether a command exits with 0.

    Raises:
        SpecError: the text is neither a command nor an absolute path in a folder that exists.
    """
    path = Path(text)
    if path.is_absolute() and len(text.split()) == 1 and shutil.which(text) is None:
        if not path.parent.is_dir():
            raise SpecError("notice", text, "must be in a folder that exists, or a command")
        return partial(os.path.lexists, text)
    words = shlex.split(checked_command(text, "notice"))
    # No pipes: a child that outlives its parent would hold them open past the time limit.
    silent: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)

    def exits_well() -> bool:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(words, **silent, timeout=NOTICE_SECONDS, check=True)  # noqa: S603
            return True
        return False

    return exits_well


def notice_stands(text: str) -> bool:
    """Whether this machine has a notice now; false if only workers' machines have its folder."""
    with suppress(SpecError):
        return bool(text) and notice_at(text)()
    return False


class EventCommand:
    """Runs a command, as `checked_command` returns it, for each event that a person may act on.

    A call returns when the command has ended. We log a command that fails, and kill and log one
    that exceeds its limit. We also kill one that still runs when this process ends.
    """

    def __init__(self, command: str, limit_seconds: float = _LIMIT_SECONDS) -> None:
        self._words = shlex.split(command)
        self._limit_seconds = limit_seconds
        self._running: subprocess.Popen[bytes] | None = None
        atexit.register(self.stop)

    def __call__(self, event: ExperimentEvent) -> None:
        """Run the command for an event; ignore kinds that are not in `TOLD`."""
        if event.kind not in TOLD:
            return
        program = self._words[0]
        try:
            # Its output goes to standard error, because standard output is for our results.
            self._running = subprocess.Popen(  # noqa: S603 - the user's own, without a shell
                self._words,
                stdin=subprocess.PIPE,
                stdout=_STDERR,
                env={**os.environ, **_variables(event)},
                start_new_session=True,  # so that we can end its children with it
            )
        except OSError as error:
            log.warning("on_event: cannot start %s: %s", program, error.strerror)
            return
        try:
            content = f"{json.dumps(asdict(event))}\n".encode()  # a line, so `read` takes it
            self._running.communicate(content, timeout=self._limit_seconds)
        except subprocess.TimeoutExpired:
            log.warning("on_event: %s has run for over %.0f s", program, self._limit_seconds)
            self.stop()
        if status := self._running.returncode:
            log.warning("on_event: %s exited with status %d", program, status)

    def stop(self) -> None:
        """End the command, if one runs, and all its children."""
        if self._running is None or self._running.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._running.pid, signal.SIGKILL)
        self._running.wait()


def command_for(text: str) -> EventCommand | None:
    """Return an object that runs an option's command; None if the option is empty."""
    return EventCommand(checked_command(text)) if text else None


def _variables(event: ExperimentEvent) -> dict[str, str]:
    fields = {
        "EVENT": event.kind,
        "EXPERIMENT": event.experiment,
        "NAME": event.name,
        "STATE": event.state or "",
        "REASON": event.reason,
    }
    return {f"DOWNPOUR_{name}": shortened(value) for name, value in fields.items()}
