"""Training examples that are set apart: a share of each class, and the same ones every time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.core.splitters import divide, hold_out


@given(
    classes=st.integers(1, 9),
    count=st.integers(20, 300),
    share=st.floats(0.05, 0.95),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_share_of_each_class_is_set_apart(
    classes: int, count: int, share: float, seed: int
) -> None:
    """To within one example; every example is in one of the two parts."""
    labels = np.random.default_rng(seed).integers(0, classes, count)
    stay, held = hold_out(labels, count, share, seed)
    assert sorted([*stay, *held]) == list(range(count))
    assert len(held) == int(np.floor(count * share))
    for label in range(classes):
        of_class = (labels == label).sum()
        assert abs((labels[held] == label).sum() - of_class * share) <= 1


def test_it_follows_from_the_seed_alone() -> None:
    """Another seed sets others apart; without classes any are as good."""
    one, again, other = (hold_out(None, 100, 0.2, seed)[1].tolist() for seed in (3, 3, 4))
    assert one == again != other
    assert len(one) == 20


@pytest.mark.parametrize(("count", "share"), [(5, 0.1), (1, 0.5), (10, 0.05)])
def test_both_parts_need_an_example(count: int, share: float) -> None:
    """Else nothing could be validated."""
    with pytest.raises(SpecError, match=f"^validation = {share}: holds out 0 of {count} training"):
        hold_out(None, count, share, 0)


@pytest.mark.parametrize("split", ["random", "class", "equal", "dirichlet(0.5)"])
def test_no_shard_holds_validation_examples(split: str) -> None:
    """Shards are cut from the rest, as the spec says."""
    labels = np.arange(200) % 4
    shards, held = divide(Spec(split=split, validation=0.25), labels, 200, 4)
    assert len(held) == 50
    assert sorted(np.concatenate([*shards, held]).tolist()) == list(range(200))
    if split == "class":
        assert [set(labels[shard]) for shard in shards] == [{0}, {1}, {2}, {3}]


def test_shards_need_examples_of_those_that_stay() -> None:
    """The line counts them."""
    with pytest.raises(SpecError, match=r"^shards = 8: must be from 1 to 5, the number"):
        divide(Spec(validation=0.5), None, 10, 8)
