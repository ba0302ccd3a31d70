"""Managers with one defect each that only versions which are steps can have."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from downpour.base.values import PublishedFile
from downpour.core.scheduler import Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment


class NamesTooFew(Scheduler):
    """Leaves the whole version out of those that lead to a task's."""

    def handle(self, event: on.Event) -> Output:
        output = super().handle(event)
        for place, command in enumerate(output.commands):
            if isinstance(command, out.Assign):
                output.commands[place] = replace(command, leading=command.leading[1:])
        return output


class TakesStepsForWhole(Scheduler):
    """Publishes a step where a whole version is due, on which later ones are to rest."""

    def handle(self, event: on.Event) -> Output:
        output = super().handle(event)
        for place, command in enumerate(output.commands):
            if isinstance(command, out.Aggregate):
                output.commands[place] = replace(command, whole=False)
        return output


def nothing_linked(_experiment: Experiment, _needed: Collection[str]) -> tuple[PublishedFile, ...]:
    """Keep no version for the sake of those after it."""
    return ()
