"""Drivers with one defect each, for the judge of what is acknowledged and done to find.

Those that only the real driver can have: the defects of what it drives are the node's.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from downpour.base.errors import SharedDirectoryError
from downpour.cluster.manager.driver import Driver, _Item, _Step, _Waiting


class ActsBeforeItCommits(Driver):
    """Answers, and has things done, that a crash can still undo."""

    def _take(self, items: list[_Item]) -> None:
        super()._take(items)
        super()._commit()

    def _commit(self) -> None:
        pass


class AnswersBeforeItCommits(Driver):
    """Tells its callers at once, and does in time what follows."""

    def _commit(self) -> None:
        for item in self._taken:
            if item.asker is not None:
                item.asker.set_result([])
        super()._commit()

    def _answer(self, step: _Step, asker: _Waiting) -> None:
        if not asker.done():
            super()._answer(step, asker)


class ActsThoughNothingCanBeKept(Driver):
    """Takes a directory that is away for one that will be back."""

    def _commit(self) -> None:
        with suppress(SharedDirectoryError):
            self._sink.commit()


class ActsInAnotherOrder(Driver):
    """Begins with what was asked for last."""

    def _act(self, step: _Step) -> None:
        output = replace(step.output, commands=step.output.commands[::-1])
        super()._act(replace(step, output=output))


class ActsOnTheLastEventFirst(Driver):
    """Takes events in together in their order, and carries them out in another."""

    def _take(self, items: list[_Item]) -> None:
        self._put_off: list[_Step] = []
        super()._take(items)
        for step in reversed(self._put_off):
            super()._act(step)

    def _act(self, step: _Step) -> None:
        self._put_off.append(step)


class AnswersBeforeItActs(Driver):
    """Tells its callers that it has begun what it has not."""

    def _act(self, step: _Step) -> None:
        if step.asker is not None:
            self._answer(step, step.asker)
        super()._act(replace(step, asker=None))


class GoesOnAfterADefect(Driver):
    """Tells the callers that something was raised, and takes the next events in."""

    def _take(self, items: list[_Item]) -> None:
        for item in items:
            try:
                super()._take([item])
            except KeyError as error:
                if item.asker is not None:
                    item.asker.set_exception(error)


class ForgetsItsOffice(Driver):
    """Does not look whether another manager has taken over."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "check_leader": lambda: None})


DEFECTS: tuple[type[Driver], ...] = (
    ActsBeforeItCommits,
    AnswersBeforeItCommits,
    ActsThoughNothingCanBeKept,
    ActsInAnotherOrder,
    ActsOnTheLastEventFirst,
    AnswersBeforeItActs,
    GoesOnAfterADefect,
    ForgetsItsOffice,
)
