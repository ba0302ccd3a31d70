"""The interface of a mode: when updates become a model version, and how far apart shards may be.

All modes share one mechanism. A shard trains one task in each round, one after the other. A task
begins from the model version that is newest when the scheduler first assigns the task. In step
(`sync`), the manager makes a version from all updates of a round, and then the next round begins.
The asynchronous modes make a version from fewer updates, and let shards be rounds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from downpour.core.spec import Option

Weight = Callable[[int], float]
"""Turns an update's staleness, the number of versions made since its base, into its factor."""


def unweighted(_staleness: int) -> float:
    """Return 1: every update counts fully, however old its base is."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A mode with its options, as the scheduler and the fold need it.

    `together` updates make a version; None means all that are outstanding. With `grace_seconds`,
    the manager waits that long after the last of these, and includes all further arrivals. In step,
    a round ends with `enough` updates, without its other shards; None means with all. A shard may
    be `ahead` of the slowest one by this many rounds; None means any number. `weight` gives the
    factor for an update. Usually it multiplies the update's step from its base. A mode that `mixes`
    moves the newest version toward the update's parameters instead. If the mode is `elastic` too,
    the shard continues from its own parameters, moved toward that version by the same distance. In
    a mode that `overlaps`, a shard continues from its own update before that update is part of a
    version.
    """

    together: int | None
    ahead: int | None
    grace_seconds: float | None = None
    enough: int | None = None
    weight: Weight = unweighted
    mixes: bool = False
    elastic: bool = False
    overlaps: bool = False


Options = Mapping[str, Option]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeKind:
    """A mode that a spec can name: its options with their defaults, and how they make a `Mode`.

    `make` takes all options and the number of shards. `keeps_momentum` says whether
    `optimizer_state = "auto"` keeps the state of the shards' optimizers.

    Raises:
        SpecError: `make` raises it if an option is out of its range.
    """

    make: Callable[[Options, int], Mode]
    options: Options = field(default_factory=dict)
    keeps_momentum: bool = True
