"""The facts and the commands that follow from an event, in one list."""

from __future__ import annotations

from downpour.core.scheduler import Output
from downpour.core.scheduler.outputs import Command, Fact

Outcome = Fact | Command


def all_of(output: Output) -> list[Outcome]:
    """Return the facts, then the commands."""
    return [*output.facts, *output.commands]
