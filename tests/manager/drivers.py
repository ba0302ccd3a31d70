"""Drivers with one defect each, for the judge of what is acknowledged and done to find."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from downpour.errors import SharedDirectoryError
from downpour.manager.driver import Driver, _Item, _Posted


class ActsBeforeItCommits(Driver):
    """Answers, and has things done, that a crash can still undo."""

    def _take(self, items: list[_Item]) -> None:
        super()._take(items)
        super()._commit()

    def _commit(self) -> None:
        pass


class AnswersBeforeItCommits(Driver):
    """Tells its callers at once, and does in time what follows."""

    def _handle(self, item: _Item) -> tuple[Any] | None:
        handled = super()._handle(item)
        if handled is not None:
            item.done.set_result(handled[0])
            item.done = Future()
        return handled


class ActsThoughNothingCanBeKept(Driver):
    """Takes a directory that is away for one that will be back."""

    def _commit(self) -> None:
        with suppress(SharedDirectoryError):
            self._sink.commit()


class ForgetsToKeep(Driver):
    """Leaves out what some of the events have led to."""

    def _handle(self, item: _Item) -> tuple[Any] | None:
        if isinstance(item, _Posted) and self._scheduler.state.events_handled % 7 == 0:
            return (self._scheduler.handle(item.event),)
        return super()._handle(item)


class ActsInAnotherOrder(Driver):
    """Begins with what was asked for last."""

    def _act(self, item: _Item, result: Any) -> None:
        super()._act(item, result[::-1] if isinstance(item, _Posted) else result)


class ActsOnTheLastEventFirst(Driver):
    """Takes events in together in their order, and carries them out in another."""

    def _take(self, items: list[_Item]) -> None:
        self._put_off: list[tuple[_Item, Any]] = []
        super()._take(items)
        for item, result in reversed(self._put_off):
            super()._act(item, result)

    def _act(self, item: _Item, result: Any) -> None:
        self._put_off.append((item, result))


class AnswersBeforeItActs(Driver):
    """Tells its callers that it has begun what it has not."""

    def _act(self, item: _Item, result: Any) -> None:
        item.done.set_result(result)
        item.done = Future()
        super()._act(item, result)


class GoesOnAfterADefect(Driver):
    """Tells whoever posted that something was raised, and takes the next event in."""

    def _handle(self, item: _Item) -> tuple[Any] | None:
        try:
            return super()._handle(item)
        except KeyError as error:
            item.done.set_exception(error)
            return None


class ForgetsItsOffice(Driver):
    """Does not look whether another manager has taken over."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "check_office": lambda: None})


DEFECTS: tuple[type[Driver], ...] = (
    ActsBeforeItCommits,
    AnswersBeforeItCommits,
    ActsThoughNothingCanBeKept,
    ForgetsToKeep,
    ActsInAnotherOrder,
    ActsOnTheLastEventFirst,
    AnswersBeforeItActs,
    GoesOnAfterADefect,
    ForgetsItsOffice,
)
