"""What is shown of a run while it trains: bars, event files, and what a caller asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from downpour.base.errors import SpecError
from downpour.core.spec import ResolvedSpec
from downpour.experiments.client import OnStatus
from downpour.experiments.pages.event_files import Follower
from downpour.experiments.running.surroundings import Location
from downpour.host.paths import path_of

log = logging.getLogger(__name__)


def _ignore(_: ResolvedSpec) -> None:
    """Do nothing with a resolved spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watching:
    """Who is told what of a run.

    `on_resolved` gets the resolved spec before anything starts, `on_status` each new status, and
    `note` a line on what was measured. `progress` says whether to draw bars; None draws them unless
    `on_status` is given. `tensorboard` is a folder for event files.

    Raises:
        SpecError: `on_status` is no function.
    """

    on_status: OnStatus | None = None
    progress: bool | None = None
    tensorboard: Location | None = None
    on_resolved: Callable[[ResolvedSpec], None] = _ignore
    note: Callable[[str], object] = log.info

    def __post_init__(self) -> None:
        """Check it."""
        if self.on_status is not None and not callable(self.on_status):
            raise SpecError("on_status", self.on_status, "must be a function that takes a status")

    @contextmanager
    def bars(self) -> Iterator[OnStatus | None]:
        """Draw bars on standard error, if they are wanted."""
        if not (self.on_status is None if self.progress is None else self.progress):
            yield None
            return
        from downpour.experiments.tables.console import SafeConsole
        from downpour.experiments.tables.progress import ProgressDisplay

        with ProgressDisplay(SafeConsole(stderr=True)) as display:
            yield display.show


def following(tensorboard: Location | None) -> AbstractContextManager[Follower | None]:
    """Return a writer of event files for a running experiment; None without a folder.

    Raises:
        MissingPackage: TensorBoard is not installed.
        SpecError: the folder cannot be written.
    """
    if tensorboard is None:
        return nullcontext()
    return Follower(path_of("tensorboard", tensorboard))
