"""`equal`: deal every class evenly over the shards, and drop nothing.

The splitter shuffles each class, lays the classes end to end, and deals their examples to the
shards in turn, without a break between classes. So each class's counts differ by at most one. A
class begins with the shard after the last class's final shard. So the remainders rotate, and the
totals differ by at most one as well.
"""

from __future__ import annotations

from downpour.core.splitters.base import Numbers, SplitRequest, deal, shuffled_by_class


def owners(request: SplitRequest) -> Numbers:
    """Say which shard owns each example; see `Splitter`."""
    return deal(shuffled_by_class(request), request.shards)
