"""Aggregators that look at each number of all updates, and how updates are examined."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.base.errors import NonFinite, SpecError, StoreError
from downpour.files import aggregators
from downpour.files.aggregators import (
    AGGREGATORS,
    Aggregator,
    Contribution,
    Statistic,
    fold,
    passes,
)
from downpour.files.aggregators.passes import Base, examine
from downpour.files.store import WHOLE, Array
from downpour.files.store.layout import MemoryStore
from tests.files.aggregators.conftest import contribute, imagine
from tests.files.aggregators.test_fold import model_of, update_of


def expected(rule: str, column: Array) -> Array:
    """Return the statistic of updates [n, ...] by sorting them."""
    ascending, count = np.sort(column, axis=0), len(column)
    if column.dtype.kind != "f":
        middle: Array = ascending[(count - 1) // 2]
        return middle
    trimmed = (count - 1) // 2
    if rule != "median":
        share = float(rule.removeprefix("trimmed-mean(").removesuffix(")"))
        trimmed = min(max(1, round(share * count - 0.499)), trimmed)
    within: Array = ascending[trimmed : count - trimmed].mean(axis=0, dtype=np.float64)
    return within


@settings(deadline=None)
@given(
    count=st.integers(2, 60),
    seed=st.integers(0, 2**32 - 1),
    rule=st.sampled_from(["median", "trimmed-mean(0.2)", "trimmed-mean(0.05)"]),
)
def test_each_number_is_the_statistic_of_all_updates(count: int, seed: int, rule: str) -> None:
    """For floats within rounding; whole numbers are those of an update, the lower median."""
    random = np.random.default_rng(seed)
    updates = [update_of(random) for _ in range(count)]
    store = MemoryStore()
    parts = contribute(store, updates)
    found = fold(store, model_of(store, update_of(random)), parts, AGGREGATORS[rule](parts))
    for name, tensor in found.items():
        wanted = expected(rule, np.stack([update[name] for update in updates]))
        assert (tensor.dtype, tensor.shape) == (updates[0][name].dtype, updates[0][name].shape)
        unit = 4e-3 if name == "half" else 4e-6
        np.testing.assert_allclose(tensor, wanted, rtol=unit, atol=unit)


@pytest.mark.parametrize("rule", ["median", "trimmed-mean(0.2)"])
def test_one_update_of_five_takes_no_number_beyond_the_others(
    random: np.random.Generator, rule: str
) -> None:
    """However far off it is."""
    store, start = MemoryStore(), np.zeros(50, np.float32)
    updates = [{"w": random.normal(size=50).astype(np.float32)} for _ in range(4)]
    highest, lowest = (side([one["w"] for one in updates], axis=0) for side in (np.max, np.min))
    parts = contribute(store, [*updates, {"w": np.array([3e38, -3e38] * 25, np.float32)}])
    found = fold(store, model_of(store, {"w": start}), parts, AGGREGATORS[rule](parts))["w"]
    assert np.all((found <= highest + 1e-6) & (found >= lowest - 1e-6))
    most = contribute(store, [{"w": np.full(50, 3e38, np.float32)}] * 3, "most")
    away = model_of(store, {"w": np.full(50, -3e38, np.float32)}, "away")
    with pytest.raises(NonFinite, match="overflows"):
        fold(store, away, most, AGGREGATORS[rule](most))


def test_a_rule_may_be_any_function_of_the_differences(random: np.random.Generator) -> None:
    """It gets a row per update, in the order of shards, and may return another precision."""
    store = MemoryStore()
    start, *updates = ({"w": random.normal(size=40).astype(np.float32)} for _ in range(4))
    parts = contribute(store, updates)
    second = Statistic(combine=lambda differences: differences[1].astype(np.float64))
    found = fold(store, model_of(store, start), parts[::-1], second(parts))["w"]
    np.testing.assert_allclose(found, updates[1]["w"], atol=1e-6)


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        (Statistic(combine=lambda differences: differences), r"array of shape \(40,\).*\(3, 40\)"),
        (
            lambda parts: [1.0] * len(parts),
            r"3 weights must sum to 1, but they are \[1.0, 1.0, 1.0",
        ),
        (lambda _: [1.0], r"its 3 weights must sum to 1, but they are \[1.0\]"),
        (lambda _: {0: 0.5, 1: 0.5}, "must return a tuple of weights, .* and it returned a dict"),
    ],
)
def test_an_aggregator_of_a_package_is_named(
    rule: Aggregator, reason: str, random: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result would otherwise look like a mistake of Downpour's."""
    monkeypatch.setattr(aggregators, "AGGREGATORS", {"mine": rule})
    store = MemoryStore()
    start, *updates = ({"w": random.normal(size=40).astype(np.float32)} for _ in range(4))
    parts = contribute(store, updates)
    with pytest.raises(SpecError, match=f"aggregate = 'mine': .*{reason}"):
        fold(store, model_of(store, start), parts, aggregators.weigh("mine", parts))


def test_a_statistic_needs_all_files_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line tells what a process lacks for that."""
    monkeypatch.setattr(passes, "descriptors_allowed", lambda: 6)
    parts: list[Contribution] = [imagine(shard) for shard in range(4)]
    store = MemoryStore()
    with pytest.raises(StoreError, match=r"^4 updates must be open .* may open 3 \(ulimit -n\)$"):
        fold(store, model_of(store, {"w": np.zeros(3)}), parts, AGGREGATORS["median"](parts))


def opened(store: MemoryStore, base: Contribution) -> Base:
    """Return the model that whole updates were trained from."""
    return Base.opened(store, base.file, WHOLE)


def test_nothing_is_wrong_with_good_updates() -> None:
    """An innocent round has no reasons."""
    store = MemoryStore()
    base, *parts = contribute(store, [{"w": np.zeros(3)}] * 4)
    assert examine(store, opened(store, base), parts, known={}) == {}


def test_a_refused_shard_is_not_read_again() -> None:
    """A shard with a reason keeps it, and costs no second wait."""
    store = MemoryStore()
    base, *parts = contribute(store, [{"w": np.zeros(3)}] * 3)
    store.delete(parts[1].file.name)
    assert examine(store, opened(store, base), parts, known={2: "gone"}) == {2: "gone"}


def test_a_non_finite_constant_of_the_model_blames_no_shard() -> None:
    """A mask of -inf is what it was; the same in another place is a fault."""
    store = MemoryStore()
    mask, moved = np.array([0, -np.inf, 0]), np.array([0, -np.inf, -np.inf])
    base, *parts = contribute(store, [{"w": mask}, {"w": mask}, {"w": moved}])
    assert set(examine(store, opened(store, base), parts, known={})) == {2}


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"w": np.zeros(4)}, "'w' is float64 [4], not float64 [3]"),
        ({"w": np.zeros(3, np.float32)}, "'w' is float32 [3], not float64 [3]"),
        ({}, "'w' is missing"),
        ({"w": np.zeros(3), "x": np.zeros(3)}, "'x' is one tensor too many"),
    ],
)
def test_differences_are_told(tensors: dict[str, Array], told: str) -> None:
    """The first tensor that differs is named, with what it is and what it should be."""
    store = MemoryStore()
    base, *parts = contribute(store, [{"w": np.zeros(3)}, tensors])
    assert told in examine(store, opened(store, base), parts, known={})[1]
