"""Manager nodes with one defect each, which the real driver and the simulator must show."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from downpour.core.node.manager import Asked, ManagerNode, Posted, Ready, Step


class ForgetsToKeep(ManagerNode[Any]):
    """Does not journal what some of the events have led to."""

    def _handled(self, posted: Posted[Any]) -> Step[Any]:
        if self._core.state.cause % 7:
            return super()._handled(posted)
        output = self._core.handle(posted.event)
        return Step(asker=posted.asker, event=posted.event, output=output, answer=output)


class ActsWithoutLeading(ManagerNode[Any]):
    """Does not have the driver check whether another manager has taken over."""

    def take(self, arrived: Sequence[Posted[Any] | Asked[Any]], now_seconds: float) -> Ready[Any]:
        return replace(super().take(arrived, now_seconds), must_lead=False)


class JudgesAfterAStandstill(ManagerNode[Any]):
    """Takes workers for lost because the manager itself stood still."""

    def _passed(self, late_seconds: float, now_seconds: float) -> Iterator[Step[Any]]:
        del late_seconds
        return super()._passed(0.0, now_seconds)


class ForecastsAfterwards(ManagerNode[Any]):
    """Decides first, and forecasts then."""

    def _taken(self, one: Posted[Any] | Asked[Any]) -> Iterator[Step[Any]]:
        if isinstance(one, Asked):
            yield from super()._taken(one)
            return
        yield self._handled(one)
        forecasts = self._context.forecasts(one.event.at_seconds)
        if forecasts is not None:
            yield self._handled(Posted(forecasts))
