"""Update files become the next model's parameters, or the bad ones are named."""

import gc
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.base.errors import DownpourError, NonFinite, StoreError, UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators import AGGREGATORS, fold, summing
from downpour.files.store import Array, DirectoryStore, Store, encode
from downpour.files.store.layout import MemoryStore
from downpour.files.store.publish import RetryPolicy
from downpour.host import process
from tests.files.aggregators.conftest import (
    RULES,
    SPOILED,
    WEIGHING,
    contribute,
    contribution_of,
    imagine,
    spoiled,
    weigh,
    whole,
)

Update = dict[str, Array]


def update_of(random: np.random.Generator, size: int = 9) -> Update:
    """Return parameters of every kind that a model has."""
    return {
        "weight": random.normal(size=(size, 3)).astype(np.float32),
        "double": random.normal(size=size),
        "half": random.normal(size=size).astype(np.float16),
        "batches": np.array(random.integers(100)),
        "mask": random.integers(2, size=size).astype(bool),
        "scale": np.array(random.normal(), np.float32),
        "none": np.zeros((0, 4), np.float32),
    }


def model_of(store: Store, tensors: Update, name: str = "model") -> PublishedFile:
    """Publish the model that updates were trained from."""
    return store.put_new(name, encode(tensors, {}))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let even small models have many windows and more than one thread."""
    monkeypatch.setattr(summing, "PIECE_BYTES", 64)


@given(
    amounts=st.lists(st.integers(0, 9), min_size=2, max_size=9).filter(any),
    seed=st.integers(0, 2**32 - 1),
)
def test_amounts_are_summed_first_and_divided_once(amounts: list[int], seed: int) -> None:
    """Whole numbers are summed exactly; shares would round twice. Equal weights count as ones."""
    steps = np.random.default_rng(seed).integers(-999, 999, (len(amounts), 40)).astype(np.float32)
    store = MemoryStore()
    model = model_of(store, {"w": np.zeros(40, np.float32)})
    parts = contribute(store, [{"w": step} for step in steps])
    shares = [amount / sum(amounts) for amount in amounts]
    exact = np.asarray(amounts, np.float32) @ steps / np.float32(sum(amounts))
    folded = fold(store, model, parts, shares, amounts=[float(one) for one in amounts])
    assert np.array_equal(folded["w"], exact)
    mean = steps.sum(axis=0) / np.float32(len(parts))
    assert np.array_equal(fold(store, model, parts, [1 / len(parts)] * len(parts))["w"], mean)


@settings(deadline=None)
@given(
    count=st.integers(1, 150),
    seed=st.integers(0, 2**32 - 1),
    rule=st.sampled_from(WEIGHING),
)
def test_the_fold_is_the_weighted_mean(count: int, seed: int, rule: str) -> None:
    """For any number of updates it is within rounding of a mean computed in float64."""
    random = np.random.default_rng(seed)
    updates = [update_of(random) for _ in range(count)]
    start = update_of(random)
    store = MemoryStore()
    parts = [
        replace(part, samples=int(random.integers(1, 99)), loss=float(random.exponential()))
        for part in contribute(store, updates)
    ]
    weights = weigh(rule, parts)
    found = fold(store, model_of(store, start), parts, weights)
    assert found.keys() == updates[0].keys()
    for name, tensor in found.items():
        column = [update[name].astype(np.float64) for update in updates]
        terms = [weight * array for weight, array in zip(weights, column, strict=True)]
        assert (tensor.dtype, tensor.shape) == (updates[0][name].dtype, updates[0][name].shape)
        if tensor.dtype.kind == "f":
            # The classical bound on a sum of n rounded terms, then the rounding of the result.
            unit = np.finfo(np.promote_types(tensor.dtype, np.float32)).eps
            size = np.sum(np.abs(terms), axis=0) + np.abs(start[name].astype(np.float64))
            bound = (count + 3) * unit * size
            bound = bound + np.finfo(tensor.dtype).eps * np.abs(np.sum(terms, axis=0)) + 1e-7
            assert np.all(np.abs(tensor - np.sum(terms, axis=0)) <= bound)
        else:
            np.testing.assert_array_equal(tensor, updates[0][name])


def test_first_is_shard_zero_to_the_bit(random: np.random.Generator) -> None:
    """Not even the sign of a zero changes."""
    updates = [update_of(random) for _ in range(3)]
    updates[0]["weight"][0] = -0.0
    store = MemoryStore()
    parts = contribute(store, updates)
    model = model_of(store, update_of(random))
    assert whole(fold(store, model, parts, AGGREGATORS["first"](parts))) == whole(updates[0])


@pytest.mark.parametrize("rule", RULES)
def test_one_shard_is_the_next_model_to_the_bit(random: np.random.Generator, rule: str) -> None:
    """Where nothing is averaged, nothing is rounded."""
    store, update = MemoryStore(), update_of(random)
    parts = contribute(store, [update])
    model = model_of(store, update_of(random))
    assert whole(fold(store, model, parts, AGGREGATORS[rule](parts))) == whole(update)


def frozen_of(random: np.random.Generator, size: int) -> Update:
    """Return parameters that are not trained, with the numbers that are hardest to round."""
    odd = np.array([-0.0, 0.0, 1e-45, -1e-45, 1 / 3, -2.5e-39, 3e38, -3e38], np.float32)
    return {
        "embedding": np.concatenate([odd, random.normal(size=size)]).astype(np.float32),
        "double": np.concatenate([odd, random.normal(size=9)]),
        "half": np.concatenate([[-0.0, 6e-8, -65504.0], random.normal(size=9)]).astype(np.float16),
        "mask": np.array([0.0, -np.inf, np.nan], np.float32),
    }


def trained_from(model: Update, random: np.random.Generator) -> Update:
    """Return the model with another adapter; all else is as it was."""
    step = random.normal(size=model["adapter"].shape) * 1e-2
    return {**model, "adapter": (model["adapter"] + step).astype(np.float32)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("shards", [3, 7, 10])
def test_untrained_numbers_never_move(random: np.random.Generator, rule: str, shards: int) -> None:
    """Frozen parameters are the same to the bit after a hundred rounds."""
    store, frozen = MemoryStore(), frozen_of(random, 40)
    model: Update = {**frozen, "adapter": np.zeros((4, 2), np.float32)}
    first = model["adapter"]
    for number in range(100):
        file = model_of(store, model, f"model-{number}")
        updates = [trained_from(model, random) for _ in range(shards)]
        parts = contribute(store, updates, f"round-{number}")
        # Every other round is over without its first shard, as where it was dropped.
        parts = parts[number % 2 :]
        model = fold(store, file, parts, AGGREGATORS[rule](parts))
    assert whole({key: model[key] for key in frozen}) == whole(frozen)
    assert not np.array_equal(model["adapter"], first)


@pytest.mark.parametrize("shards", [3, 7, 10])
def test_the_mean_is_nearer_to_the_true_one_than_a_plain_sum(
    random: np.random.Generator, shards: int
) -> None:
    """Against float64: what is rounded on the way are steps, not parameters."""
    store = MemoryStore()
    start = (random.normal(size=20_000) * 0.05).astype(np.float32)
    steps = random.normal(size=(shards, start.size)) * 1e-3
    updates = (start + steps).astype(np.float32)
    parts = contribute(store, [{"w": update} for update in updates])
    model = model_of(store, {"w": start})
    found = fold(store, model, parts, AGGREGATORS["average"](parts))["w"]
    plain = updates[0].copy()
    for update in updates[1:]:
        plain += update
    plain /= np.float32(shards)
    true = updates.mean(axis=0, dtype=np.float64)
    assert np.abs(found - true).mean() < 0.8 * np.abs(plain - true).mean()
    # Of the best there is, which is rounding the true mean once, hardly more than that is left.
    assert np.abs(found - true).mean() < 1.1 * np.abs(true.astype(np.float32) - true).mean()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("rule", RULES)
def test_bytes_depend_on_the_contributions_alone(
    random: np.random.Generator, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """Neither order of arrival, nor threads, windows, groups of files or the store matter."""
    store = MemoryStore()
    parts = contribute(store, [update_of(random, 500) for _ in range(11)])
    model = model_of(store, update_of(random, 500))
    expected = whole(fold(store, model, parts, AGGREGATORS[rule](parts), threads=1))
    for threads, piece_bytes, files in [(1, 8, 64), (2, 64, 4), (3, 200 * 8, 1), (2, 2**20, 7)]:
        monkeypatch.setattr(summing, "PIECE_BYTES", piece_bytes)
        monkeypatch.setattr(process, "_FILES_AT_ONCE_MAX", files)
        parts = [parts[index] for index in random.permutation(len(parts))]
        found = fold(store, model, parts, AGGREGATORS[rule](parts), threads=threads)
        assert whole(found) == expected


@pytest.mark.parametrize("rule", ["samples", "median"])
def test_memory_holds_one_model_however_many_updates_come(
    random: np.random.Generator, tmp_path: Path, rule: str
) -> None:
    """Thirty updates take no more memory than three."""
    store = DirectoryStore(tmp_path)
    size_bytes = 8_000_000  # of which the pieces that a thread sums take little
    update = {"w": random.normal(size=size_bytes // 4).astype(np.float32)}
    model, parts = model_of(store, update), contribute(store, [update] * 30)
    peaks = []
    for some in (parts[:3], parts):
        gc.collect()
        tracemalloc.start()
        fold(store, model, some, AGGREGATORS[rule](some), threads=1)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 200_000
    assert peaks[1] < 1.5 * size_bytes


def test_more_files_than_a_process_may_open(tmp_path: Path) -> None:
    """Files are mapped a group at a time."""
    store = DirectoryStore(tmp_path)
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    model = model_of(store, {"w": np.zeros(3, np.float32)})
    parts = contribute(store, [{"w": np.full(3, shard, np.float32)} for shard in range(320)])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(300, limits[0]), limits[1]))
    try:
        found = fold(store, model, parts, AGGREGATORS["average"](parts))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    np.testing.assert_allclose(found["w"], 159.5)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("fault", SPOILED)
def test_a_bad_update_is_refused_and_named(
    random: np.random.Generator, fault: str, rule: str
) -> None:
    """For every defect, and even if the update would not count, its shard is named."""
    store = MemoryStore()
    model = model_of(store, update_of(random))
    parts = contribute(store, [update_of(random) for _ in range(4)])
    parts[2] = replace(parts[2], file=spoiled(store, parts[2].file, fault))
    with pytest.raises(UpdatesRefused, match="shard 2") as refusal:
        fold(store, model, parts, AGGREGATORS[rule](parts))
    assert set(refusal.value.reasons) == {2}
    assert SPOILED[fault] in refusal.value.reasons[2]


def test_all_bad_updates_are_named_at_once(random: np.random.Generator, tmp_path: Path) -> None:
    """One pass over a round with every fault tells exactly the shards to train again."""
    store = DirectoryStore(tmp_path, RetryPolicy(seconds=0))
    bad = {2 * number + 1: fault for number, fault in enumerate(SPOILED)}
    model = model_of(store, update_of(random))
    parts = contribute(store, [update_of(random) for _ in range(2 * len(SPOILED) + 3)])
    for shard, fault in bad.items():
        parts[shard] = replace(parts[shard], file=spoiled(store, parts[shard].file, fault))
    with pytest.raises(UpdatesRefused) as refusal:
        fold(store, model, parts, AGGREGATORS["average"](parts))
    assert list(refusal.value.reasons) == list(bad)
    for shard, fault in bad.items():
        assert SPOILED[fault] in refusal.value.reasons[shard]
    assert len(str(refusal.value)) < 600


def test_the_model_decides_who_is_odd(random: np.random.Generator) -> None:
    """Even a majority is refused where it does not fit the model."""
    store = MemoryStore()
    model = model_of(store, update_of(random, 9))
    parts = contribute(store, [update_of(random, size) for size in (9, 8, 8)])
    with pytest.raises(UpdatesRefused) as refusal:
        fold(store, model, parts, AGGREGATORS["average"](parts))
    assert set(refusal.value.reasons) == {1, 2}


def test_finite_updates_whose_mean_overflows_are_nobodys_fault() -> None:
    """No shard is blamed, and nothing infinite becomes a model."""
    store = MemoryStore()
    model = model_of(store, {"w": np.full(3, -3e38, np.float32)})
    parts = contribute(store, [{"w": np.full(3, 3e38, np.float32)}] * 2)
    with pytest.raises(NonFinite, match="overflows"):
        fold(store, model, parts, AGGREGATORS["average"](parts))


@pytest.mark.parametrize("fault", ["missing", "short", "altered", "format"])
def test_a_bad_model_is_no_updates_fault(random: np.random.Generator, fault: str) -> None:
    """The model that the round began from is named, and no shard is trained again for it."""
    store = MemoryStore()
    model, *parts = contribute(store, [update_of(random) for _ in range(4)])
    with pytest.raises(StoreError, match=SPOILED[fault]) as failure:
        fold(store, spoiled(store, model.file, fault), parts, AGGREGATORS["average"](parts))
    assert "update-0" in str(failure.value)


class Healing(MemoryStore):
    """A store whose first unverified reads are wrong, as a stale cache's are."""

    def __init__(self, times: int, stale: str = "") -> None:
        super().__init__()
        self.times = times
        self.stale = stale

    def read(self, file: PublishedFile, *, verified: bool = True) -> memoryview:
        content = bytearray(super().read(file, verified=verified))
        if verified or not file.name.startswith(self.stale):
            return memoryview(content)
        self.times -= 1
        content[-1] ^= self.times >= 0
        return memoryview(content)


@pytest.mark.parametrize("times", [1, 2])
def test_a_stale_file_is_summed_again(times: int) -> None:
    """A file that is whole when it is read again costs a second pass, not an attempt."""
    store = Healing(times=times)
    model = model_of(store, {"w": np.zeros(3, np.float32)})
    parts = contribute(store, [{"w": np.full(3, shard, np.float32)} for shard in range(3)])
    np.testing.assert_array_equal(fold(store, model, parts, AGGREGATORS["average"](parts))["w"], 1)


@pytest.mark.parametrize("stale", ["model", "update"])
def test_a_file_that_stays_stale_is_refused(stale: str) -> None:
    """A file that differs in every pass is not waited for without end, and is named."""
    store = Healing(10**6, stale)
    model = model_of(store, {"w": np.zeros(3)})
    part = contribution_of(5, model_of(store, {"w": np.ones(3)}, "update"))
    with pytest.raises(DownpourError, match="change while we read them") as failure:
        fold(store, model, [part], [1.0])
    assert isinstance(failure.value, UpdatesRefused) == (stale == "update")


@pytest.mark.parametrize(("shards", "weights"), [([0, 0], [0.5, 0.5]), ([0, 1], [1.0])])
def test_calls_that_make_no_sense_are_refused(shards: list[int], weights: list[float]) -> None:
    """Doubled shards and too few weights are mistakes."""
    parts = [imagine(shard) for shard in shards]
    with pytest.raises(ValueError, match=r".+"):
        fold(MemoryStore(), imagine(9).file, parts, weights)
