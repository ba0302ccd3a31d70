"""How the journals of all experiments become one story again; pure, the same for all drivers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from downpour.runtime.journal import Line
from downpour.scheduler import Replay


def replay(core: Replay, stories: Mapping[str, Sequence[Line]]) -> None:
    """Take in what the journals say, by experiment, in the order in which it happened."""
    lines = sorted((line for story in stories.values() for line in story), key=_order)
    for line in lines:
        core.replay(line.at_seconds, line.entry)


def next_order(stories: Mapping[str, Sequence[Line]]) -> int:
    """Return the place of the next entry among those of all experiments."""
    return max((line.order for story in stories.values() for line in story), default=0) + 1


def _order(line: Line) -> int:
    return line.order
