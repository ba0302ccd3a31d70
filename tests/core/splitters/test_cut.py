"""What is said of a cut is true of its shards, and of the examples that are set apart."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.core.splitters import SplitCut, cut, divide, hold_out
from tests.core.splitters.test_splitters import SPLITS


@st.composite
def cuts(draw: st.DrawFn) -> tuple[SplitCut, int]:
    """Cut some examples of a few classes; returns the number of examples as well."""
    classes = draw(st.integers(1, 8))
    labels = draw(st.lists(st.integers(0, classes - 1), min_size=4, max_size=80))
    spec = Spec(
        split=draw(st.sampled_from(SPLITS)),
        seed=draw(st.integers(0, 2**31)),
        validation=draw(st.sampled_from([0.0, 0.25])),
    )
    shards = draw(st.integers(1, max(1, len(labels) // 2)))
    return cut(spec, np.array(labels), len(labels), classes, shards), len(labels)


def made(*by_class: list[int]) -> SplitCut:
    """Make a cut of so many examples of each class in each shard."""
    counts = np.array(by_class, np.int64)
    sizes = counts.sum(axis=1)
    ends = np.cumsum(sizes)
    shards = tuple(np.split(np.arange(ends[-1]), ends[:-1]))
    return SplitCut(split="made", shards=shards, sizes=sizes, by_class=counts, held_out=0)


@given(case=cuts())
def test_every_example_is_counted_once(case: tuple[SplitCut, int]) -> None:
    """In a shard, or among those set apart; and the classes of a shard sum up to its size."""
    shown, examples = case
    assert shown.sizes.sum() + shown.held_out == examples
    assert shown.by_class.sum(axis=1).tolist() == shown.sizes.tolist()
    assert [len(shard) for shard in shown.shards] == shown.sizes.tolist()


@given(case=cuts())
def test_measures_are_in_their_ranges(case: tuple[SplitCut, int]) -> None:
    """A shard differs by less than 1, as it is a part of all; one shard alone by nothing."""
    shown, _ = case
    assert np.all(shown.distances >= 0)
    assert np.all(shown.distances < 1)
    assert shown.unevenness >= 1
    assert np.all(shown.classes_held >= 1)
    assert np.all(shown.classes_held <= shown.classes)
    # Were all of its classes equally frequent, the largest would have this share.
    assert np.all(shown.largest_shares >= 1 / shown.classes_held - 1e-12)
    assert np.all(shown.largest_shares <= 1)
    if len(shown.shards) == 1:
        assert shown.mean_distance == 0


@given(case=cuts())
def test_the_distance_is_that_of_its_definition(case: tuple[SplitCut, int]) -> None:
    """The largest difference of a set of classes' probabilities, which is the other definition."""
    shown, _ = case
    together = shown.by_class.sum(axis=0) / shown.sizes.sum()
    for row, size, distance in zip(shown.by_class, shown.sizes, shown.distances, strict=True):
        more = row / size > together
        assert distance == pytest.approx((row / size - together)[more].sum())


def test_the_measures_of_a_cut_that_can_be_checked_by_hand() -> None:
    """Two shards of one class each are half of all data away from it; an even one is not."""
    shown = made([4, 0], [0, 4], [2, 2])
    assert shown.distances.tolist() == [0.5, 0.5, 0.0]
    assert shown.mean_distance == pytest.approx(1 / 3)
    assert shown.largest_shares.tolist() == [1.0, 1.0, 0.5]
    assert shown.classes_held.tolist() == [1, 1, 2]
    assert made([6, 0], [1, 1]).unevenness == 3


def test_the_shards_are_those_of_divide() -> None:
    """With the seed and what is set apart, and by class after the limits of the dataset."""
    labels, spec = np.arange(60) % 3, Spec(split="dirichlet(0.5)", seed=7, validation=0.2)
    shown = cut(spec, labels, 60, 3, 4)
    shards, held = divide(spec, labels, 60, 4)
    assert [shard.tolist() for shard in shown.shards] == [shard.tolist() for shard in shards]
    assert shown.held_out == len(held) == 12


def test_without_classes_only_sizes_are_known() -> None:
    """No class is counted."""
    shown = cut(Spec(split="random"), None, 10, 0, 3)
    assert (shown.classes, shown.sizes.tolist()) == (0, [4, 3, 3])
    assert shown.by_class.shape == (3, 0)


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
