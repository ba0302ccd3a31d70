"""The order in which we sum a round's updates: along a binary tree over the numbers of shards.

Shards 2k and 2k + 1 meet first, then pairs of such pairs, and so on; the tree skips a missing
shard. So the additions follow from the shards alone, and not from the order in which updates
arrive. We can sum any two neighbors as soon as both have arrived. When the last update arrives,
only its path to the root is left. This module does not know the summed values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Node(NamedTuple):
    """A sum of the updates from `shard` on, which stands for a block of 2^level shards."""

    shard: int
    level: int = 0


ORDER = "tree"
"""The name of this order in records; earlier releases, which wrote none, added shard by shard."""

ADD = None
"""The step that adds the last two sums."""


def meeting(one: int, other: int) -> int:
    """Return the level at which the paths of two shards meet: 1 for shards 0 and 1."""
    return (one ^ other).bit_length()


def full_additions(nodes: Sequence[Node]) -> Iterator[Node | None]:
    """Yield the steps that add all possible nodes while any other shard may still come.

    The nodes are in the order of their shards. A step is a node or `ADD`. The sum so far is a block
    in which no shard is missing.
    """
    done: list[Node] = []
    for node in nodes:
        yield node
        done.append(node)
        while len(done) > 1 and _are_siblings(*done[-2:]):
            yield ADD
            done[-2:] = [_sum_of(*done[-2:])]


def last_additions(nodes: Sequence[Node], following: int | None = None) -> Iterator[Node | None]:
    """Yield the steps that add all possible nodes once we know which shards there are.

    Args:
        nodes: In the order of their shards.
        following: The next arrived shard that is not among the nodes; None if all are.
    """
    done: list[Node] = []
    ends = [node.shard for node in nodes[1:]]
    for node, after in zip(nodes, [*ends, following], strict=True):
        yield node
        done.append(node)
        while len(done) > 1 and _meet_before(after, *done[-2:]):
            yield ADD
            done[-2:] = [_sum_of(*done[-2:])]


def remaining(steps: Sequence[Node | None]) -> list[Node]:
    """Return the nodes that these steps leave, in the order of their shards."""
    left: list[Node] = []
    for step in steps:
        if step is None:
            left[-2:] = [_sum_of(*left[-2:])]
        else:
            left.append(step)
    return left


def _sum_of(left: Node, right: Node) -> Node:
    return Node(left.shard, meeting(left.shard, right.shard))


def _are_siblings(left: Node, right: Node) -> bool:
    return left.level == right.level == meeting(left.shard, right.shard) - 1


def _meet_before(following: int | None, left: Node, right: Node) -> bool:
    """Whether two neighbors meet before the right one meets the shard that follows."""
    meet = meeting(left.shard, right.shard)
    return following is None or meet < meeting(right.shard, following)
