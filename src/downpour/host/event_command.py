"""Runs a user's command when something happens to an experiment (`--on-event COMMAND`).

We split the command into words and start it without a shell, which could read other people's names
and reasons as code. We pass those only in the environment and on standard input.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from downpour.base.errors import SpecError
from downpour.base.states import TOLD, ExperimentEvent
from downpour.host.text import shortened

log = logging.getLogger(__name__)

LIMIT_SECONDS = 30.0
"""How long a command may run."""
_STDERR = 2
_FIELD = "on_event"


def checked_command(text: str) -> str:
    """Return a command with the absolute path of its program, so that it runs from any folder."""
    try:
        words = shlex.split(text) if isinstance(text, str) else []
    except ValueError as error:
        raise SpecError(_FIELD, text, f"must be a command ({error})") from None
    if not words or "\0" in text:
        raise SpecError(_FIELD, text, "must be a command, such as ./notify.sh")
    program = shutil.which(words[0])
    if program is None:
        accepted = f"no program {words[0]} here that this user may run"
        raise SpecError(_FIELD, text, accepted)
    return shlex.join([str(Path(program).absolute()), *words[1:]])


class EventCommand:
    """Runs a command, as `checked_command` returns it, for each event that a person may act on.

    A call returns when the command has ended. We log a command that fails, and kill and log one
    that exceeds its limit. We also kill one that still runs when this process ends.
    """

    def __init__(self, command: str, limit_seconds: float = LIMIT_SECONDS) -> None:
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
                env={**os.environ, **variables(event)},
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


def variables(event: ExperimentEvent) -> dict[str, str]:
    """Return an event as environment variables, each in one line."""
    fields = {
        "EVENT": event.kind,
        "EXPERIMENT": event.experiment,
        "NAME": event.name,
        "STATE": event.state or "",
        "REASON": event.reason,
    }
    return {f"DOWNPOUR_{name}": shortened(value) for name, value in fields.items()}
