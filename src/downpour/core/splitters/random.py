"""`random`: deal a seeded permutation to the shards in turn; sizes differ by at most one.

It never looks at the classes, so it also works for datasets without classes.
"""

from __future__ import annotations

from downpour.core.splitters.base import Numbers, SplitRequest, deal


def owners(request: SplitRequest) -> Numbers:
    """Say which shard owns each example; see `Splitter`."""
    return deal(request.generator.permutation(len(request.classes)), request.shards)
