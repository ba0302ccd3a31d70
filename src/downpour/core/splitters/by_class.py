"""`class`: each shard holds whole classes, as far as the classes suffice.

With as many shards as classes, each shard gets one class. With fewer shards, the splitter deals the
classes to them in turn. With more shards, each of them holds one class. The largest-remainder
method gives shards to classes, like seats to parties: in proportion to their examples, but at least
one each. If a class has several shards, the splitter shuffles it and cuts it into parts whose sizes
differ by at most one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from downpour.core.splitters.base import Indices, Numbers, SplitRequest, shuffled_by_class


def owners(request: SplitRequest) -> Numbers:
    """Say which shard owns each example; see `Splitter`."""
    classes = request.classes
    counts = np.bincount(classes)
    if request.shards <= len(counts):
        return classes % np.asarray(request.shards, classes.dtype)
    seats = largest_remainder(counts, request.shards)
    first = np.cumsum(seats) - seats
    # The position of each example within its class, with the classes laid end to end.
    within = np.arange(len(classes)) - np.repeat(np.cumsum(counts) - counts, counts)
    result = np.empty(len(classes), dtype=np.int64)
    result[shuffled_by_class(request)] = np.repeat(first, counts) + within % np.repeat(
        seats, counts
    )
    return result


def largest_remainder(counts: Indices, seats: int) -> Indices:
    """Give out seats in proportion to counts by the largest remainder (Hare quota).

    A count that is too small for a seat still gets one. The other counts share the remaining seats
    in proportion. Among equal remainders, the earlier count comes first.

    Args:
        counts: shape (parties,), each at least 1.
        seats: from `parties` to `sum(counts)`.

    Returns:
        Shape (parties,): at least 1 and at most its count each, `seats` in all.
    """
    given = np.ones(len(counts), dtype=np.int64)
    sharing = np.ones(len(counts), dtype=np.bool_)
    # Leaving out a count raises the quota of the others, so another may become too small for a
    # seat.
    while True:
        votes, left = counts[sharing].sum(), seats - np.count_nonzero(~sharing)
        too_small = sharing & (counts * left < votes)
        if not too_small.any():
            break
        sharing &= ~too_small
    given[sharing] = _apportion(counts[sharing], int(left))
    return given


def _apportion(counts: npt.NDArray[np.int64], seats: int) -> Indices:
    whole, remainders = np.divmod(counts * seats, counts.sum())
    order = np.argsort(-remainders, kind="stable")
    whole[order[: seats - whole.sum()]] += 1
    return whole
