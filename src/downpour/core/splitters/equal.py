"""`equal`: every class dealt evenly over the shards, nothing dropped.

The classes are shuffled within themselves, laid end to end, and dealt round without a break between
one class and the next. So each class's counts differ by at most one. A class begins with the shard
after the end of the last class, so the remainders rotate, and the totals differ by at most one as
well.
"""

from __future__ import annotations

from downpour.core.splitters.base import Indices, SplitRequest, deal, shuffled_by_class


def owners(request: SplitRequest) -> Indices:
    """Say which shard owns each example; see `Splitter`."""
    return deal(shuffled_by_class(request), request.shards)
