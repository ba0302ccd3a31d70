"""Every split: each index in one shard, as even as promised; and what is told of a cut."""

import hashlib
import itertools
import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.core import families, splitters
from downpour.core.spec import Spec
from downpour.core.splitters import SplitCut, cut, divide, hold_out, largest_remainder, split

SPLITS = families.SPLITTERS.examples
every_split = pytest.mark.parametrize("name", SPLITS)

Labels = npt.NDArray[np.int64]


@st.composite
def labeled(draw: st.DrawFn) -> tuple[Labels, int, int]:
    """Draw labels (with gaps between the classes), a number of shards that fits, and a seed."""
    classes = st.sampled_from([0, 1, 2, 5, 9, 40])
    labels = np.array(draw(st.lists(classes, min_size=1, max_size=80)), dtype=np.int64)
    return labels, draw(st.integers(1, len(labels))), draw(st.integers(0, 2**63 - 1))


def counts_by_class(labels: Labels, parts: list[Labels]) -> npt.NDArray[np.int64]:
    """Count each shard's examples of each class: shape (shards, classes)."""
    return np.array([[np.sum(labels[part] == c) for c in np.unique(labels)] for part in parts])


@pytest.mark.parametrize("name", [*SPLITS, "dirichlet(1e-12)", "dirichlet(1e8)"])
@given(case=labeled())
def test_every_index_lies_in_exactly_one_shard(name: str, case: tuple[Labels, int, int]) -> None:
    """The shards are sorted, none is empty, and together they are the whole set."""
    labels, shards, seed = case
    parts = split(name, labels, len(labels), shards, seed)
    assert len(parts) == shards
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))
    assert all(part.dtype == np.int64 and len(part) and np.all(np.diff(part) > 0) for part in parts)


@every_split
@given(case=labeled())
def test_the_same_seed_gives_the_same_shards(name: str, case: tuple[Labels, int, int]) -> None:
    """A split depends on its arguments alone."""
    labels, shards, seed = case
    once, again = (split(name, labels, len(labels), shards, seed) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(once, again, strict=True))


@pytest.mark.parametrize("name", [name for name in SPLITS if name != "class"])
def test_another_seed_gives_other_shards(name: str) -> None:
    """The seed decides who gets what, except where whole classes are handed out."""
    labels = np.repeat(np.arange(10), 20)
    one, other = (split(name, labels, 200, 10, seed)[0] for seed in (1, 2))
    assert not np.array_equal(one, other)


@every_split
@pytest.mark.parametrize("shards", [0, 4])
def test_shards_that_the_examples_cannot_fill_are_refused(name: str, shards: int) -> None:
    """Every shard needs an example, and there is at least one shard."""
    with pytest.raises(SpecError, match=f"shards = {shards}: must be from 1 to 3"):
        split(name, np.array([0, 1, 2]), 3, shards, 0)


@pytest.mark.parametrize("name", [name for name in SPLITS if name != "random"])
def test_splits_by_label_need_labels(name: str) -> None:
    """Where examples have no classes, only a random split is possible; a task may give them."""
    expected = f"split = '{name}': must be random because the dataset has no classes"
    for task, remedy in ((None, ""), ("lab:Mine", "; a Task may give them with labels()")):
        with pytest.raises(SpecError) as refusal:
            divide(Spec(split=name, task=task), None, 10, 2)
        assert str(refusal.value) == expected + remedy


@pytest.mark.parametrize("owners", [[0, 0, 0], [0, 1], [0, 1, 2], [-1, 0, 1], ["0", "1", "1"]])
def test_a_splitter_of_a_package_is_named(
    owners: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves a shard empty or an example out, or returns something else."""
    monkeypatch.setattr(splitters, "SPLITTERS", {"class": lambda _: owners})
    refusal = r"split = 'class': must give each of 3 examples a shard .* it returned \S+ of shape"
    with pytest.raises(SpecError, match=refusal):
        split("class", np.zeros(3, np.int64), 3, 2, 0)


def test_labels_must_belong_to_the_examples() -> None:
    """Labels of another set are a defect of the caller, not of the spec."""
    with pytest.raises(ValueError, match="3 examples"):
        split("equal", np.array([0, 1]), 3, 1, 0)


@given(count=st.integers(1, 200), seed=st.integers(0, 2**63 - 1), data=st.data())
def test_random_shards_differ_by_at_most_one(count: int, seed: int, data: st.DataObject) -> None:
    """Without labels, too, a random split is as even as can be."""
    sizes = [len(p) for p in split("random", None, count, data.draw(st.integers(1, count)), seed)]
    assert max(sizes) - min(sizes) <= 1


@given(case=labeled())
def test_equal_shards_are_alike_in_every_class(case: tuple[Labels, int, int]) -> None:
    """Counts differ by at most one in each class, and in total."""
    labels, shards, seed = case
    counts = counts_by_class(labels, split("equal", labels, len(labels), shards, seed))
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.ptp(counts.sum(axis=1)) <= 1


@given(case=labeled())
def test_class_shards_hold_whole_classes(case: tuple[Labels, int, int]) -> None:
    """A class is whole where shards are few; where they are many, a shard is of one class."""
    labels, shards, seed = case
    counts = counts_by_class(labels, split("class", labels, len(labels), shards, seed))
    if shards <= counts.shape[1]:
        assert np.all((counts > 0).sum(axis=0) == 1)
        held = (counts > 0).sum(axis=1)
        assert np.ptp(held) <= 1
    else:
        assert np.all((counts > 0).sum(axis=1) == 1)
        assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("random", [[2, 5, 8], [0, 10, 11], [1, 4, 6], [3, 7, 9]]),
        ("equal", [[0, 5, 6], [1, 3, 11], [2, 8, 9], [4, 7, 10]]),
        ("class", [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]),
        ("dirichlet(0.5)", [[8, 11], [1], [0, 9, 10], [2, 3, 4, 5, 6, 7]]),
    ],
)
def test_a_seed_gives_these_shards_in_every_release(name: str, expected: list[list[int]]) -> None:
    """An experiment that continues, or is replayed, must find its shards; classes may have gaps."""
    labels = np.repeat([3, 5, 9, 11], 3)
    assert [shard.tolist() for shard in split(name, labels, 12, 4, 1)] == expected


def test_three_shards_of_ten_classes_are_dealt_round() -> None:
    """Shard 0 of three gets classes 0, 3, 6 and 9."""
    parts = split("class", np.repeat(np.arange(10), 2), 20, 3, 0)
    assert [sorted({int(i) // 2 for i in part}) for part in parts] == [
        [0, 3, 6, 9],
        [1, 4, 7],
        [2, 5, 8],
    ]


@pytest.mark.parametrize(
    ("counts", "seats", "expected"),
    [
        ([60, 40], 10, [6, 4]),
        ([50, 30, 20], 6, [3, 2, 1]),
        ([47, 16, 16, 12, 6, 3], 10, [4, 2, 1, 1, 1, 1]),  # the 6 and the 3 stand aside
        ([98, 1, 1], 4, [2, 1, 1]),
        ([5, 5], 3, [2, 1]),
        ([2, 2], 4, [2, 2]),
    ],
)
def test_seats_by_largest_remainder(counts: list[int], seats: int, expected: list[int]) -> None:
    """Seats follow the counts, at least one each, the earlier first among equal remainders."""
    assert largest_remainder(np.array(counts), seats).tolist() == expected


@given(counts=st.lists(st.integers(1, 50), min_size=1, max_size=12), data=st.data())
def test_seats_can_be_filled_and_follow_the_counts(counts: list[int], data: st.DataObject) -> None:
    """No count is left out or gets more than it can fill; a larger one never has fewer seats."""
    seats = largest_remainder(
        np.array(counts), total := data.draw(st.integers(len(counts), sum(counts)))
    )
    assert sum(seats) == total
    assert all(1 <= seat <= count for seat, count in zip(seats, counts, strict=True))
    by_count = sorted(zip(counts, seats, strict=True))
    assert all(b[1] >= a[1] for a, b in itertools.pairwise(by_count) if b[0] > a[0])


def test_a_smaller_concentration_skews_more() -> None:
    """A small ALPHA leaves a shard few classes; a large one gives it its share of each."""
    labels = np.repeat(np.arange(10), 100)
    largest_share = {
        alpha: np.mean(
            [
                max(row) / sum(row)
                for row in counts_by_class(labels, split(f"dirichlet({alpha})", labels, 1000, 5, 7))
            ]
        )
        for alpha in ("0.05", "1.0", "100000.0")
    }
    assert largest_share["0.05"] > 0.3 > largest_share["1.0"] > largest_share["100000.0"]
    assert largest_share["100000.0"] == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("random", "420ec0551f187ebb"),
        ("equal", "b9edef3a1823ffb3"),
        ("class", "846f076166874390"),
        ("dirichlet(0.5)", "f34a5f3ebc2acd21"),
    ],
)
def test_many_examples_are_split_in_little_memory(name: str, digest: str) -> None:
    """Into the same shards as ever; an example takes few bytes besides its index in the result."""
    count = 1_100_000
    labels = None if name == "random" else np.arange(count) % 10
    tracemalloc.start()
    shards = split(name, labels, count, 7, 0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 33 * count
    assert hashlib.sha256(b"".join(one.tobytes() for one in shards)).hexdigest()[:16] == digest


@given(
    counts=st.lists(st.integers(1, 9), min_size=4, max_size=40),
    shards=st.integers(1, 6),
    validation=st.sampled_from([0.0, 0.25]),
    seed=st.integers(0, 99),
)
def test_a_random_split_keeps_blocks_together(
    counts: list[int], shards: int, validation: float, seed: int
) -> None:
    """Sizes differ by at most one, and only a part's first and last block are not whole.

    A block that is held out in part may be a third.
    """
    shards, ends = min(shards, len(counts) // 2), np.cumsum(counts)
    spec = Spec(validation=validation, seed=seed)
    parts, held = divide(spec, None, int(ends[-1]), shards, ends)
    assert sorted(np.concatenate([*parts, held]).tolist()) == list(range(ends[-1]))
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in (*parts, held):
        blocks, found = np.unique(np.searchsorted(ends, part, side="right"), return_counts=True)
        whole = found == np.array(counts)[blocks]
        assert np.count_nonzero(~whole) <= 2 + bool(validation)


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
