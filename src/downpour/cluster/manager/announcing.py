"""Runs the `--on-event` command for events in a manager.

The driver's thread notes decisions, and passes them on once they are durable. The command runs in a
separate thread. If the manager dies in between, the command does not run for these decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from downpour.base.errors import DownpourError
from downpour.base.experiment_event import EventKind, ExperimentEvent
from downpour.base.states import ExperimentState
from downpour.cluster.waiting import WaitingWatch
from downpour.core.scheduler import Output, Scheduler, facts
from downpour.host.background import Background
from downpour.network.rpc.messages import Status

LOOK_SECONDS = 5.0
"""The time between two looks at the status, because each look occupies the driver's thread."""

_KINDS: Final[dict[ExperimentState, EventKind]] = {
    ExperimentState.FINISHED: "finished",
    ExperimentState.FAILED: "failed",
    ExperimentState.CANCELLED: "cancelled",
}

OnEvent = Callable[[ExperimentEvent], object]
_Look = tuple[Callable[[], Status], float]


class ManagerAnnouncer:
    """Calls a function when an experiment ends, and when one waits for too long.

    Args:
        on_event: The function to call, in a separate thread.
        clock: Returns seconds since some fixed moment.
    """

    def __init__(self, on_event: OnEvent, clock: Callable[[], float] = time.monotonic) -> None:
        self._thread = Background[ExperimentEvent]("on_event", on_event)
        self._clock = clock
        self._noted: list[ExperimentEvent] = []
        self._waiting = WaitingWatch()
        self._looked_at_seconds = clock()
        # In a separate thread, because the driver answers late while its directory is away.
        self._looks = Background[_Look]("the look at what waits", self._look)

    def note(self, core: Scheduler, output: Output) -> None:
        """Note which experiments have ended."""
        for fact in output.facts:
            if isinstance(fact, facts.Concluded):
                self._noted.append(
                    ExperimentEvent(
                        kind=_KINDS[fact.ending],
                        experiment=fact.experiment,
                        name=core.state.experiments[fact.experiment].spec.name,
                        state=fact.ending,
                        reason=fact.reason,
                    )
                )

    def announce(self) -> None:
        """Call the function with the noted events, which are durable now."""
        noted, self._noted = self._noted, []
        for event in noted:
            self._thread.take(event)

    def look(self, status: Callable[[], Status]) -> None:
        """Now and then, call the function if an experiment, or the manager, waits for too long."""
        now = self._clock()
        if now - self._looked_at_seconds >= LOOK_SECONDS:
            self._looked_at_seconds = now
            self._looks.take((status, now))

    def close(self) -> None:
        """Wait a moment for calls that are still running."""
        self._looks.close()
        self._thread.close()

    def _look(self, look: _Look) -> None:
        status, at_seconds = look
        with suppress(DownpourError):  # the manager ends, or its directory stays away
            event = self._waiting.take(status(), at_seconds)
            if event is not None:
                self._thread.take(event)
