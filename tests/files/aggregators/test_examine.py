"""What is wrong with which update; the faults themselves are tried in `test_fold`."""

import numpy as np
import pytest

from downpour.files.aggregators import Contribution
from downpour.files.aggregators.passes import Base, examine
from downpour.files.store import WHOLE, Array
from downpour.files.store.layout import MemoryStore
from tests.files.aggregators.conftest import contribute


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
