"""A client of a manager, for users and for commands; it imports no torch."""

import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Self, TypeVar

from downpour.base.errors import ExperimentFailed, SpecError, Unreachable
from downpour.base.names import checked_calls
from downpour.base.options import CONNECT_SECONDS, checked_seconds
from downpour.base.states import ExperimentState
from downpour.core.spec import Spec
from downpour.files.spec_file import read_spec
from downpour.files.store import SharedDirectory
from downpour.files.store.shared_directory import seen_location
from downpour.host.machine import user_here
from downpour.host.paths import Credentials, path_of
from downpour.network.discovery import awaiting, managers_for
from downpour.network.rpc import ManagerClient, Trust
from downpour.network.rpc.messages import ExperimentSummary, RecordPage, Status
from downpour.record import Result
from downpour.record.record import parse_lines
from downpour.record.record_lines import PreparedLine

log = logging.getLogger(__name__)

OnStatus = Callable[[Status], None]
Asked = Spec | Mapping[str, Any] | str | os.PathLike[str]
"""A spec, its fields by name, or the path of a TOML file with them."""
_Answer = TypeVar("_Answer")

_POLL_SECONDS = 1.0
_BEGUN = {ExperimentState.RUNNING, ExperimentState.FINISHED}
_AWAY_SECONDS = 60.0
_LOOK_SECONDS = 0.1
"""The time between two looks: changes come by the hundred, but people see ten a second at most."""


@checked_calls
class Client:
    """A client of a manager.

    Args:
        manager: The manager's address, `HOST:PORT`; by default DOWNPOUR_MANAGER, or else the
            manager that leads in the shared directory.
        shared: The manager's shared directory or bucket, if this machine has it; results then name
            the files. Without an address, the default is DOWNPOUR_SHARED. Without either, the
            client asks the leader in ./shared_dir or, if there is none, localhost:9090.
        credentials: A token or certificates; by default those of the environment
            (`DOWNPOUR_TOKEN` and others).
        connect_seconds: How long `submit` and `watch` wait for a manager that does not answer yet.
        follow: Whether to turn to the leading manager, which the shared directory names, if the
            manager at the address does not answer.

    Raises:
        SpecError: the address is invalid, or a credential cannot be read. If the address and the
            directory belong to different clusters, the first call raises it.
    """

    def __init__(
        self,
        manager: str | None = None,
        *,
        shared: str | os.PathLike[str] | None = None,
        credentials: Credentials | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        follow: bool = True,
    ) -> None:
        if manager is None:
            manager = os.environ.get("DOWNPOUR_MANAGER") or None
            # If the program itself names an address, we ignore the environment's directory.
            shared = os.environ.get("DOWNPOUR_SHARED") or None if shared is None else shared
        elif not isinstance(manager, str) or not manager:
            raise SpecError("manager", manager, "must be a string HOST:PORT")
        self._connect_seconds = checked_seconds("connect_seconds", connect_seconds)
        trust = Trust.load(credentials or Credentials.from_environment())
        self._managers = managers_for(manager, shared if follow else None, trust)
        seen = seen_location(shared) if shared is not None else None
        # An object store has no experiment folders that a result could name.
        self._shared = seen.root if seen is not None and seen.bucket is None else None
        self._manager: ManagerClient | None = None
        self._met = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._managers.close()

    def submit(self, spec: Asked, request: str = "", *, priority: int = 0) -> str:
        """Submit an experiment; return its identifier at once.

        Takes a spec in the forms that `run` takes. If you submit the same `request` again, 4 to 32
        hexadecimal digits, you get the same experiment, whose identifier ends with the request. By
        default the request is random. Of the waiting experiments, the one with the highest
        `priority`, from 0, is next.

        Raises:
            SpecError: the manager refuses the spec.
        """
        text, request = spec_of(spec).to_toml(only_named=True), request or secrets.token_hex(4)
        return self._ask(lambda manager: manager.submit(text, request, user_here(), priority))

    def status(self, experiment: str = "") -> Status:
        """Return the current status of an experiment; by default, of the active one."""
        return self._ask_now(lambda manager: manager.status(experiment, 0, 0.0))

    def watch(
        self, experiment: str = "", check: Callable[[], None] | None = None
    ) -> Iterator[Status]:
        """Yield the status of an experiment at each change, until the experiment has ended.

        By default, this is the active experiment, or the next one that becomes active. The client
        calls `check` between two looks; it may raise to end the iteration. If the manager stops
        answering, the client waits for it for a minute.
        """
        seen, wait_seconds = 0, 0.0

        def look(manager: ManagerClient) -> Status:
            return manager.status(experiment, seen, wait_seconds)

        while True:
            status = self._ask(look, check)
            yield status
            if status.experiment is not None:
                experiment = status.experiment.experiment
                if status.experiment.state.ended:
                    return
            if check is not None:
                check()
            time.sleep(_LOOK_SECONDS)
            seen, wait_seconds = status.change, _POLL_SECONDS

    def wait(
        self,
        experiment: str,
        *,
        on_status: OnStatus | None = None,
        check: Callable[[], None] | None = None,
    ) -> Result:
        """Wait for an experiment's end and return its result.

        When the experiment begins to train, this logs a warning for each field without an effect.
        It also warns, at once, if something holds the experiment up.

        Raises:
            ExperimentFailed: the experiment failed, or a user cancelled it.
        """
        end: ExperimentSummary | None = None
        warned, held_up = False, ""
        for status in self.watch(experiment, check):
            end = status.experiment
            if end is not None and not end.state.ended and (end.reason or "") != held_up:
                held_up = end.reason or ""
                log.warning("%s: %s", experiment, held_up or "goes on")
            if not warned and end is not None and end.state in _BEGUN:
                warned = True
                for warning in self._warnings(experiment, check):
                    log.warning("%s", warning)
            if on_status is not None:
                on_status(status)
        if end is not None and end.state is not ExperimentState.FINISHED:
            reason = end.reason or f"it was {end.state}"
            raise ExperimentFailed(experiment, reason, asked_wrongly=end.asked_wrongly)
        return self.results(experiment, check=check)

    def _warnings(self, experiment: str, check: Callable[[], None] | None) -> tuple[str, ...]:
        known = (line for _, line in parse_lines(self.record(experiment, check=check)))
        return next((one.warnings for one in known if isinstance(one, PreparedLine)), ())

    def results(self, experiment: str, *, check: Callable[[], None] | None = None) -> Result:
        """Return the result of an experiment so far; `check` is as for `record`."""
        from downpour.show.notebook import Result as Shown

        folder = SharedDirectory(self._shared).experiment_path(experiment) if self._shared else None
        seen = folder if folder is not None and folder.is_dir() else None
        return Shown.from_lines(self.record(experiment, check=check), folder=seen)

    def record(
        self, experiment: str, from_line: int = 0, *, check: Callable[[], None] | None = None
    ) -> list[str]:
        """Return an experiment's record from line `from_line` on, as the manager wrote it.

        If a manager that has answered before stops answering, the client waits for it for a minute.
        Between two tries it calls `check`, which may restart that manager, or raise.
        """
        lines: list[str] = []
        ask = partial(self._ask, check=check) if self._met else self._ask_now

        def following(manager: ManagerClient) -> RecordPage:
            return manager.results(experiment, from_line + len(lines), 0.0)

        while page := ask(following).lines:
            lines += page
        return lines

    def cancel(self, experiment: str) -> None:
        """Stop an experiment; do nothing if it has ended."""
        self._ask_now(lambda manager: manager.cancel(experiment))

    def pause(self, experiment: str, *, paused: bool = True) -> None:
        """Let an experiment give no new tasks, or continue it; do nothing if it has ended."""
        self._ask_now(lambda manager: manager.pause(experiment, paused, None))

    def prioritize(self, experiment: str, priority: int) -> None:
        """Give a waiting or paused experiment another priority, from 0; see `submit`.

        Raises:
            SpecError: the experiment runs or has ended.
        """
        self._ask_now(lambda manager: manager.pause(experiment, None, priority))

    def disturbed(self, experiment: str, who: str, what: str) -> None:
        """Put on record, in words, that you disturb a process on purpose: which one, and how."""
        self._ask_now(lambda manager: manager.disturbed(experiment, who, what))

    def experiments(self, last: int | None = None) -> tuple[ExperimentSummary, ...]:
        """Return a summary of the manager's last experiments, oldest first; by default of all."""
        return tuple(islice(self.newest(), last))[::-1]

    def newest(self) -> Iterator[ExperimentSummary]:
        """Yield a summary of each experiment of the manager, the newest submission first."""
        before = ""

        def earlier(manager: ManagerClient) -> tuple[ExperimentSummary, ...]:
            return manager.list_experiments(before)

        while page := self._ask_now(earlier):
            yield from reversed(page)
            before = page[0].experiment

    def _ask(
        self, question: Callable[[ManagerClient], _Answer], check: Callable[[], None] | None = None
    ) -> _Answer:
        """Ask the manager; if it does not answer, wait for it."""
        seconds = _AWAY_SECONDS if self._met else self._connect_seconds
        answer: _Answer = awaiting(seconds, check or (lambda: None))(self._ask_now, question)
        self._met = True
        return answer

    def _ask_now(self, question: Callable[[ManagerClient], _Answer]) -> _Answer:
        """Ask the manager; if it cannot be reached, ask the one that has taken over."""
        asked = self._manager or self._managers.first()
        try:
            return self._answer(asked, question)
        except Unreachable:
            another = self._managers.another()
            if another is None:
                raise
            asked.close()
            with suppress(Unreachable):
                return self._answer(another, question)
            raise

    def _answer(
        self, manager: ManagerClient, question: Callable[[ManagerClient], _Answer]
    ) -> _Answer:
        self._manager = manager
        self._managers.check(manager)
        return question(manager)


def spec_of(asked: Asked) -> Spec:
    """Return the spec, given as a spec, as its fields, or as the path of a file."""
    match asked:
        case Spec():
            return asked
        case Mapping():
            return Spec.make(asked)
        case str() | os.PathLike():
            return read_spec(path_of("spec", asked))
    raise SpecError("spec", asked, "must be a Spec, its fields by name, or the path of a TOML file")
