"""The interface of a mode: when updates become a model version, and how far apart shards may be.

All modes share one mechanism. A shard trains its task of each round, one after the other, each from
the newest model version that there is when the task is first assigned. In step (`sync`), a version
is made of all updates of a round, and the next round begins when it is there. The asynchronous
modes make a version of fewer updates, and let shards be rounds apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from downpour.core.spec import Option

Weight = Callable[[int], float]
"""An update's staleness, the versions made since the one that it began from → its factor."""


def unweighted(_staleness: int) -> float:
    """Return 1: every update counts fully, however old the version that it began from."""
    return 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A mode with its options: what the scheduler and the fold must know of it.

    `together` updates make a version; None: all that are awaited. With `grace_seconds`, the version
    waits that long after the last of these, and takes all further arrivals. In step, a round ends
    with `enough` updates, without its other shards; None: with all. A shard may be `ahead` of the
    slowest one by this many rounds; None: by any number. `weight` is the factor for an update.
    Usually that is its step, from the version that it began from; a mode that `mixes` moves the
    newest version toward the update's parameters instead. If it is `elastic` too, the shard
    continues from its own parameters, moved as far toward that version. One that `overlaps` has a
    shard go on from its own update before that is part of a version.
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

    `make` takes the options, all of them, and the number of shards. `keeps_momentum` says whether
    `optimizer_state = "auto"` keeps the state of the shards' optimizers.

    Raises:
        SpecError: by `make`, for an option that is out of its range.
    """

    make: Callable[[Options, int], Mode]
    options: Options = field(default_factory=dict)
    keeps_momentum: bool = True
