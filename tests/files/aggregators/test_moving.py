"""The numbers of an asynchronous version: by which step, from which base, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import NonFinite, UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators import Move, Versions, moved, own_after
from downpour.files.store import Array, DirectoryStore, encode, model_metadata
from downpour.files.store.publish import RetryPolicy


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty folder."""
    return DirectoryStore(tmp_path, RetryPolicy(seconds=0.1))


def put(store: DirectoryStore, name: str, *numbers: float, count: int = 0) -> PublishedFile:
    """Publish two tensors: floats, and a whole number."""
    tensors: dict[str, Array] = {
        "w": np.array(numbers, np.float32),
        "batches": np.array([count], np.int64),
    }
    return store.put_new(f"{name}.safetensors", encode(tensors, {}))


def test_a_step_is_taken_from_the_version_that_it_began_from(store: DirectoryStore) -> None:
    """The model has come on since: the step is added to what it is now."""
    old, model = put(store, "old", 1.0, 2.0), put(store, "model", 5.0, 5.0)
    update = put(store, "update", 0.5, 4.0, count=7)
    after = moved(Versions(store), model, [Move(shard=0, file=update, base=old, factor=0.5)])
    np.testing.assert_allclose(after["w"], [5 - 0.5 * 0.5, 5 + 0.5 * 2.0])
    assert after["batches"] == 7


def test_with_the_model_for_its_base_a_move_mixes(store: DirectoryStore) -> None:
    """(1 - a) x + a x_new, as FedAsync has it."""
    model, update = put(store, "model", 5.0, 5.0), put(store, "update", 1.0, 9.0)
    after = moved(Versions(store), model, [Move(shard=0, file=update, base=model, factor=0.25)])
    np.testing.assert_allclose(after["w"], [4.0, 6.0])


def test_steps_from_an_old_version_do_not_carry_a_variance_below_zero(
    store: DirectoryStore,
) -> None:
    """The model's file names its buffers: each lands between what it was and the update's."""
    variance: dict[str, Array] = {"variance": np.array([0.1], np.float32)}
    metadata = model_metadata(["variance"])
    model = store.put_new("model.safetensors", encode(variance, metadata))
    old = store.put_new("old.safetensors", encode({"variance": variance["variance"] + 1}, metadata))
    update = store.put_new("update.safetensors", encode({"variance": variance["variance"] * 2}, {}))
    moves = [Move(shard=shard, file=update, base=old, factor=0.5) for shard in range(3)]
    after = moved(Versions(store), model, moves)
    np.testing.assert_allclose(after["variance"], [0.2 - 0.1 * 0.5**3], rtol=1e-6)


def test_moves_add_up(store: DirectoryStore) -> None:
    """Each by its own base and factor."""
    old, model = put(store, "old", 0.0, 0.0), put(store, "model", 1.0, 1.0)
    one, two = put(store, "one", 1.0, 0.0), put(store, "two", 1.0, 3.0)
    moves = [
        Move(shard=0, file=one, base=old, factor=1.0),
        Move(shard=1, file=two, base=model, factor=0.5),
    ]
    np.testing.assert_allclose(moved(Versions(store), model, moves)["w"], [2.0, 2.0])


def test_model_and_shard_move_by_the_same_distance(store: DirectoryStore) -> None:
    """An elastic meeting keeps their sum; whole numbers stay the shard's."""
    model, update = put(store, "model", 5.0, 5.0), put(store, "update", 1.0, 9.0, count=7)
    move = Move(shard=0, file=update, base=model, factor=0.25)
    own, after = own_after(Versions(store), model, move), moved(Versions(store), model, [move])
    np.testing.assert_allclose(own["w"], [2.0, 8.0])
    np.testing.assert_allclose(own["w"] + after["w"], [6.0, 14.0])
    assert own["batches"] == 7
    wild = Move(shard=3, file=put(store, "nan", 1.0, np.nan), base=model, factor=0.25)
    with pytest.raises(UpdatesRefused) as refused:
        own_after(Versions(store), model, wild)
    assert [*refused.value.reasons] == [3]


def test_exactly_the_updates_that_cannot_be_used_are_refused(store: DirectoryStore) -> None:
    """One is missing, one of another shape, one not finite; the fourth is not named."""
    model = put(store, "model", 1.0, 1.0)
    gone = put(store, "gone", 1.0, 1.0)
    store.delete(gone.name)
    files = [
        gone,
        put(store, "long", 1.0, 1.0, 1.0),
        put(store, "nan", 1.0, np.nan),
        put(store, "good", 1.0, 0.0),
    ]
    moves = [Move(shard=s, file=file, base=model, factor=1.0) for s, file in enumerate(files)]
    with pytest.raises(UpdatesRefused) as refused:
        moved(Versions(store), model, moves)
    assert sorted(refused.value.reasons) == [0, 1, 2]


def test_a_sum_that_overflows_refuses_no_update(store: DirectoryStore) -> None:
    """Each update is finite, so none is refused."""
    model, update = put(store, "model", 3e38, 0.0), put(store, "update", -3e38, 0.0)
    move = Move(shard=0, file=update, base=model, factor=-1.0)
    with pytest.raises(NonFinite, match="overflows"):
        moved(Versions(store), model, [move])


def test_a_constant_that_is_not_finite_stays_and_all_beside_it_moves(store: DirectoryStore) -> None:
    """As an attention's mask does; an update that has another number there is refused."""
    model = put(store, "model", -np.inf, 5.0)
    same, other = put(store, "same", -np.inf, 3.0), put(store, "other", 1.0, 3.0)
    after = moved(Versions(store), model, [Move(shard=0, file=same, base=model, factor=0.5)])
    np.testing.assert_array_equal(after["w"], [-np.inf, 4.0])
    with pytest.raises(UpdatesRefused):
        moved(Versions(store), model, [Move(shard=0, file=other, base=model, factor=0.5)])


def test_narrow_numbers_that_overflow_are_noticed(store: DirectoryStore) -> None:
    """Computed in float32 they would be finite; as float16 they are not."""

    def narrow(name: str, number: float) -> PublishedFile:
        tensors: dict[str, Array] = {"w": np.array([number, 1.0], np.float16)}
        return store.put_new(f"{name}.safetensors", encode(tensors, {}))

    base, model, update = narrow("base", 0.0), narrow("model", 60_000.0), narrow("up", 60_000.0)
    with pytest.raises(NonFinite):
        moved(Versions(store), model, [Move(shard=0, file=update, base=base, factor=1.0)])
