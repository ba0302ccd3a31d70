"""How much each update counts, and that its order of addition follows from the shards."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import UpdatesRefused
from downpour.files.aggregators import AGGREGATORS
from downpour.files.aggregators.passes import (
    Node,
    full_additions,
    last_additions,
    remaining,
    shares,
)
from tests.files.aggregators.conftest import RULES, imagine

amounts = st.lists(st.floats(0, allow_infinity=False, allow_nan=False), min_size=1, max_size=50)


@given(amounts=amounts)
def test_shares_sum_to_one(amounts: list[float]) -> None:
    """The shares of any amounts, subnormal or huge, are a convex combination."""
    found = shares(amounts)
    assert math.fsum(found) == pytest.approx(1, abs=1e-12)
    assert all(0 <= share <= 1 for share in found)


@pytest.mark.parametrize(
    ("rule", "facts", "weights"),
    [
        ("average", [(0, {"samples": 1, "loss": 9.0}), (1, {"samples": 99})], (0.5, 0.5)),
        ("samples", [(0, {"samples": 100}), (1, {"samples": 300})], (0.25, 0.75)),
        ("weighted", [(0, {"loss": 0.5}), (1, {"loss": 1.5})], (0.25, 0.75)),
        ("weighted", [(0, {"loss": 0.0}), (1, {"loss": 0.0})], (0.5, 0.5)),
        ("first", [(2, {}), (0, {}), (1, {})], (0.0, 1.0, 0.0)),
        ("first", [(2, {}), (1, {})], (0.0, 1.0)),  # without shard 0 the lowest counts
    ],
)
def test_each_rule_weighs_by_its_facts(
    rule: str, facts: list[tuple[int, dict[str, Any]]], weights: tuple[float, ...]
) -> None:
    """Equally, by samples, by loss, or the lowest shard alone."""
    assert AGGREGATORS[rule]([imagine(shard, **given) for shard, given in facts]) == weights


@pytest.mark.parametrize("loss", [-0.1, math.nan, math.inf, -math.inf])
def test_a_loss_that_cannot_be_a_weight_is_refused(loss: float) -> None:
    """All shards with such a loss are named, and only they."""
    parts = [imagine(0, loss=loss), imagine(1), imagine(2, loss=loss)]
    with pytest.raises(UpdatesRefused, match=r"shard 0: loss .* cannot be a weight") as refusal:
        AGGREGATORS["weighted"](parts)
    assert set(refusal.value.reasons) == {0, 2}


@pytest.mark.parametrize("rule", RULES)
def test_a_single_contribution_is_everything(rule: str) -> None:
    """One shard's weight is exactly one; a round without updates never gets here."""
    assert AGGREGATORS[rule]([imagine(5, samples=0, loss=0.0)]) == (1.0,)
    with pytest.raises(ValueError, match="nothing to aggregate"):
        AGGREGATORS[rule]([])


Sums = Mapping[Node, str]
"""What was added to what, in words, by node."""

shards_of = st.sets(st.integers(0, 300), min_size=1, max_size=40)


def added(sums: Sums, steps: Iterable[Node | None]) -> dict[Node, str]:
    """Take steps; a sum is written as its two terms in brackets."""
    done = list(steps)
    stack: list[str] = []
    for step in done:
        if step is None:
            stack[-2:] = [f"({stack[-2]}+{stack[-1]})"]
        else:
            stack.append(sums[step])
    return dict(zip(remaining(done), stack, strict=True))


def leaf(shard: int) -> dict[Node, str]:
    """Return the update of a shard."""
    return {Node(shard): str(shard)}


def whole(shards: Iterable[int]) -> str:
    """Add all shards at once."""
    leaves = {node: text for shard in sorted(shards) for node, text in leaf(shard).items()}
    (text,) = added(leaves, last_additions(list(leaves))).values()
    return text


def test_neighbors_meet_first_and_absent_shards_are_passed_over() -> None:
    """The tree is that of the shards' numbers, not of how many there are."""
    assert whole(range(5)) == "(((0+1)+(2+3))+4)"
    assert whole([0, 2, 3, 5]) == "((0+(2+3))+5)"
    assert whole([6]) == "6"


@given(arrivals=shards_of.flatmap(lambda shards: st.permutations(sorted(shards))))
def test_arrival_does_not_change_the_order_of_addition(arrivals: Sequence[int]) -> None:
    """One by one in any order, what is added to what is as where all are there at once."""
    sums: dict[Node, str] = {}
    for shard in arrivals:
        sums |= leaf(shard)
        sums = added(sums, full_additions(sorted(sums)))
    (text,) = added(sums, last_additions(sorted(sums))).values()
    assert text == whole(arrivals)


@given(shards=shards_of, size=st.integers(1, 9))
def test_groups_do_not_change_it_and_leave_few_sums(shards: set[int], size: int) -> None:
    """Where the shards are known, no more sums wait than the tree is high."""
    there, sums = sorted(shards), dict[Node, str]()
    for begin in range(0, len(there), size):
        group = there[begin : begin + size]
        following = there[begin + size] if begin + size < len(there) else None
        sums = {**sums, **{node: text for one in group for node, text in leaf(one).items()}}
        sums = added(sums, last_additions(sorted(sums), following))
        assert len(sums) <= max(there).bit_length() + 1
    assert list(sums.values()) == [whole(shards)]


@given(count=st.integers(1, 300))
def test_in_the_order_of_shards_few_sums_are_left(count: int) -> None:
    """As many as the binary number of updates has ones; the last update meets each once."""
    nodes: list[Node] = []
    for shard in range(count):
        nodes = remaining(list(full_additions([*nodes, Node(shard)])))
    assert len(nodes) == count.bit_count()
