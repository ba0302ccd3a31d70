"""The workspaces of a manager's experiments; holds up and fails those whose folder is gone."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import count

from downpour.cluster.manager.workspace import Workspace
from downpour.core.node.answers import Answers

log = logging.getLogger(__name__)

_BUCKET_LOOKS = 5
"""One look in this many includes a bucket, because each look at one is a request."""


class Workspaces(Mapping[str, Workspace]):
    """The workspaces by experiment.

    Args:
        spaces: the workspaces of continued experiments.
        answers: receives the failures of experiments.
        gone_seconds: how long an experiment whose folder is gone may be held up before it fails.
    """

    def __init__(
        self, spaces: Iterable[Workspace], answers: Answers, gone_seconds: float = 60.0
    ) -> None:
        self._spaces = {space.experiment: space for space in spaces}
        self._answers = answers
        self._gone_seconds = gone_seconds
        self._gone_since: dict[str, float] = {}
        self._looks = count()

    def __getitem__(self, experiment: str) -> Workspace:
        return self._spaces[experiment]

    def __iter__(self) -> Iterator[str]:
        # Copy it, because other threads add workspaces meanwhile.
        return iter(list(self._spaces))

    def __len__(self) -> int:
        return len(self._spaces)

    def add(self, space: Workspace) -> None:
        """Add a new experiment's workspace, before its submission reaches the core."""
        self._spaces[space.experiment] = space

    def look(self) -> None:
        """Check whether the folders of experiments that have not ended still exist.

        An experiment whose folder is gone is held up. If that lasts too long, it fails, because
        others wait for their turn behind it. Its last version can be resumed if the folder comes
        back.
        """
        asks_bucket = next(self._looks) % _BUCKET_LOOKS == 0
        for space in list(self._spaces.values()):
            if space.concluded:
                self._gone_since.pop(space.experiment, None)
            elif space.shared.bucket is None or (asks_bucket and space.prepared is not None):
                space.look()
                self._hold_up(space)

    def gives_up(self, experiment: str) -> bool:
        """Fail an experiment if only its folder is gone; returns whether that is the case."""
        space = self._spaces[experiment]
        space.look()
        if space.is_gone:
            self._give_up(space)
        return space.is_gone

    def _hold_up(self, space: Workspace) -> None:
        """Say once that an experiment is held up; give it up when that lasts too long."""
        experiment, now = space.experiment, time.monotonic()
        if not space.is_gone:
            if self._gone_since.pop(experiment, None) is not None:
                log.warning("%s goes on: its folder is back", experiment)
        elif experiment not in self._gone_since:
            self._gone_since[experiment] = now
            log.warning("%s is held up: %s", experiment, space.gone_reason)
        # An experiment that waits for its turn holds up no others; it fails at its preparation.
        elif space.prepared and now - self._gone_since[experiment] >= self._gone_seconds:
            self._give_up(space)

    def _give_up(self, space: Workspace) -> None:
        """Fail an experiment whose folder is gone; all others go on."""
        log.warning("%s fails: %s", space.experiment, space.gone_reason)
        self._answers.failed(space.experiment, space.gone_reason, asked_wrongly=False)
