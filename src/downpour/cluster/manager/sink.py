"""The receivers of an event's consequences: persistence, forecasts and commands."""

from __future__ import annotations

from collections.abc import Sequence

from downpour.cluster.manager.announcing import ManagerAnnouncer
from downpour.cluster.manager.command_runner import CommandRunner
from downpour.cluster.manager.persistence import Persistence
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.predictor.forecaster import Forecaster


class ManagerSink:
    """The command sink of a real manager.

    Args:
        persistence: makes events durable.
        forecaster: forecasts how long workers take, and learns from events.
        runner: carries out commands.
        announcer: tells users about events, if they asked for that.
    """

    def __init__(
        self,
        persistence: Persistence,
        forecaster: Forecaster,
        runner: CommandRunner,
        announcer: ManagerAnnouncer | None = None,
    ) -> None:
        self._announcer = announcer
        self._persistence = persistence
        self._forecaster = forecaster
        self._runner = runner

    def forecasts(self, at_seconds: float) -> on.Forecasts | None:
        """Return new forecasts, if there are any; see `Forecaster`."""
        return self._forecaster.forecasts(at_seconds)

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        """Gather what must be persisted, see `Persistence`; the forecaster learns from it."""
        self._forecaster.follow(core, event, output)
        if self._announcer is not None:
            self._announcer.note(core, output)
        return self._persistence.keep(core, event, output)

    def commit(self) -> None:
        """Make all gathered entries durable; see `Persistence`."""
        self._persistence.commit()
        if self._announcer is not None:
            self._announcer.announce()

    def carry_out(self, commands: Sequence[do.Command]) -> None:
        """Start the commands."""
        for command in commands:
            self._runner.start(command)
