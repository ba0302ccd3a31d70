"""What is summed before the last update is there changes no byte of the next model."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downpour.base.errors import UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators import (
    AGGREGATORS,
    ByAmount,
    Contribution,
    Counted,
    Gathering,
    fold,
    versions,
)
from downpour.files.aggregators.passes import Base
from downpour.files.store import WHOLE, Array, UpdateFormat, decode, encode, model_metadata
from downpour.files.store.layout import MemoryStore
from downpour.files.store.updates import compress
from downpour.host import process as descriptors
from tests.files.aggregators.conftest import WEIGHING, spoiled, whole

Tensors = dict[str, Array]

AMOUNTS = {
    name: rule.amount for name in WEIGHING if isinstance(rule := AGGREGATORS[name], ByAmount)
}


class Counting(MemoryStore):
    """A store that counts how often each file is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: list[str] = []

    def read(self, file: PublishedFile, *, verified: bool = True) -> memoryview:
        self.opened.append(file.name)
        return super().read(file, verified=verified)


def model_of(random: np.random.Generator) -> Tensors:
    """Return parameters of every kind, with the numbers that are hardest to keep."""
    return {
        "weight": random.normal(size=(40, 3)).astype(np.float32),
        "frozen": np.array([-0.0, 0.0, 1e-45, 3e38, 1 / 3], np.float32),
        "mask": np.array([0.0, -np.inf, np.nan], np.float32),
        "double": random.normal(size=9),
        "half": random.normal(size=9).astype(np.float16),
        "batches": np.array(7),
    }


def trained(model: Tensors, random: np.random.Generator) -> Tensors:
    """Return the model after a shard's task."""
    moved = {
        name: (model[name] + random.normal(size=model[name].shape)).astype(model[name].dtype)
        for name in ("weight", "double", "half")
    }
    return {**model, **moved, "batches": np.array(random.integers(1000))}


class Round:
    """A round's model and updates, each published once; they began from another version."""

    def __init__(self, seed: int, shards: Iterable[int], compression: str = WHOLE) -> None:
        random = np.random.default_rng(seed)
        self.store, self.compression = Counting(), compression
        self.tensors = model_of(random)
        content = encode(self.tensors, model_metadata(["mask"]))
        self.model = self.store.put_new("model", content)
        self.began = replace(self.model, name="began", checksum="b" * 32)
        self.parts = [self.update(shard, random) for shard in sorted(shards)]

    def update(self, shard: int, random: np.random.Generator, name: str = "u") -> Contribution:
        tensors, metadata, layout = trained(self.tensors, random), dict[str, str](), None
        if self.compression != WHOLE:
            model = decode(self.store.read(self.model), "model")
            form = UpdateFormat.of(model, self.began, self.compression)
            tensors, _ = compress(form, self.tensors, tensors, {})
            metadata, layout = form.metadata, form.layout
        file = self.store.put_new(f"{name}{shard}", encode(tensors, metadata, layout))
        samples = int(random.integers(1, 99))
        return Contribution(shard=shard, samples=samples, loss=1.0, file=file)

    def base(self) -> Base:
        return Base.opened(self.store, self.model, self.compression, self.began)

    def gathering(self, **options: int) -> Gathering:
        return Gathering(self.store, self.base(), **options)

    def folded(
        self, rule: str, parts: Sequence[Contribution], gathered: Gathering | None = None
    ) -> bytes:
        """Fold by a rule; returns all bytes."""
        tensors = fold(
            self.store,
            self.model,
            parts,
            AGGREGATORS[rule](parts),
            amounts=[AMOUNTS[rule](part) for part in parts],
            compression=self.compression,
            trained_from=self.began,
            gathered=gathered,
        )
        return whole(tensors)


def as_parts(rule: str, contributions: Iterable[Contribution]) -> list[Counted]:
    """Return what a gathering is told."""
    return [Counted(contribution=one, factor=AMOUNTS[rule](one)) for one in contributions]


@settings(deadline=None)
@given(
    data=st.data(),
    shards=st.sets(st.integers(0, 40), min_size=1, max_size=20),
    rule=st.sampled_from(sorted(AMOUNTS)),
    compression=st.sampled_from([WHOLE, "int8", "float16"]),
    limit=st.sampled_from([0, 2_000, 2**30]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_bytes_are_those_of_a_fold_of_all_at_once(
    data: st.DataObject, shards: set[int], rule: str, compression: str, limit: int, seed: int
) -> None:
    """Whatever arrives when, in groups or one by one, and however little room there is."""
    one = Round(seed, shards, compression)
    expected = one.folded(rule, one.parts)
    gathering = one.gathering(limit_bytes=limit)
    arrivals = data.draw(st.permutations(one.parts))
    while arrivals:
        count = data.draw(st.integers(1, len(arrivals)))
        some, arrivals = arrivals[:count], arrivals[count:]
        if data.draw(st.booleans()):
            gathering.add(as_parts(rule, some), threads=data.draw(st.integers(1, 2)))
    assert one.folded(rule, one.parts, gathering) == expected


def test_no_update_is_read_twice_and_the_last_alone_in_the_end() -> None:
    """Each is verified where it is summed."""
    one = Round(1, range(11))
    gathering = one.gathering()
    for part in one.parts[:-1]:
        gathering.add(as_parts("average", [part]))
    one.store.opened.clear()
    one.folded("average", one.parts, gathering)
    assert one.store.opened == [one.parts[-1].file.name]


@pytest.mark.parametrize("rule", AMOUNTS)
def test_sums_of_updates_that_do_not_count_are_left_out(rule: str) -> None:
    """A shard that was dropped, and one whose update was refused and trained again."""
    one, random = Round(2, range(8)), np.random.default_rng(9)
    again = one.update(5, random, "again")
    counting = [again if part.shard == 5 else part for part in one.parts if part.shard != 2]
    expected = one.folded(rule, counting)
    for told in ([*one.parts], [*one.parts, again]):
        gathering = one.gathering()
        for part in told:
            gathering.add(as_parts(rule, [part]))
        assert one.folded(rule, counting, gathering) == expected


def test_a_single_update_is_taken_as_it_is_although_it_was_summed() -> None:
    """Its difference from the base, taken from the base, would not always be itself."""
    one = Round(3, range(3))
    gathering = one.gathering()
    gathering.add(as_parts("average", one.parts))
    assert one.folded("average", one.parts[1:2], gathering) == one.folded("average", one.parts[1:2])


@pytest.mark.parametrize("fault", ["missing", "altered", "nan", "shapes"])
@pytest.mark.parametrize("number", [0, 3, 4])
def test_a_bad_update_is_named_in_the_end_and_no_other(fault: str, number: int) -> None:
    """To gather it harms nothing, and does not hide it."""
    one = Round(4, range(6))
    bad = spoiled(one.store, one.parts[number].file, fault)
    one.parts[number] = replace(one.parts[number], file=bad)
    gathering = one.gathering()
    for part in one.parts[:-1]:
        gathering.add(as_parts("average", [part]))
    with pytest.raises(UpdatesRefused) as refusal:
        one.folded("average", one.parts, gathering)
    assert list(refusal.value.reasons) == [number]
    good = [part for part in one.parts if part.shard != number]
    assert one.folded("average", good, gathering) == one.folded("average", good)


def test_a_base_that_changes_is_not_summed_from() -> None:
    """The first pass over a file verifies it."""
    one = Round(5, range(4))
    wrong = replace(one.base(), file=replace(one.model, checksum="0" * 32))
    gathering = Gathering(one.store, wrong)
    gathering.add(as_parts("average", one.parts[:2]))
    assert not gathering.shards


def test_sums_take_no_more_memory_than_they_may() -> None:
    """Every other shard comes first, so no two can be added; what has no room is read later."""
    one = Round(6, range(16))
    size_bytes = one.base().form.model.size_bytes
    gathering = one.gathering(limit_bytes=3 * size_bytes)
    for part in one.parts[::2]:
        gathering.add(as_parts("average", [part]))
    assert gathering.shards == {0, 2, 4}
    for part in one.parts[1::2]:
        gathering.add(as_parts("average", [part]))
    assert gathering.shards >= {0, 1, 2, 3, 4, 5}
    assert one.folded("average", one.parts, gathering) == one.folded("average", one.parts)


@pytest.mark.parametrize(("sums", "gathered"), [(0, {0, 2}), (3, {0, 2, 4}), (9, {0, 2, 4, 6})])
def test_the_room_for_sums_is_half_of_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, sums: int, gathered: set[int]
) -> None:
    """Two may be there in any case, because a sum may be in a file."""
    one = Round(6, range(8))
    size_bytes = one.base().form.model.size_bytes
    monkeypatch.setattr(versions, "free_memory", lambda: 2 * sums * size_bytes)
    gathering = one.gathering()
    for part in one.parts[::2]:
        gathering.add(as_parts("average", [part]))
    assert gathering.shards == gathered


def test_a_base_is_verified_by_the_first_pass_over_it() -> None:
    """The next passes do not hash it again."""
    one = Round(5, range(4))
    base = one.base()
    gathering = Gathering(one.store, base)
    gathering.add(as_parts("average", one.parts[:2]))
    assert (base.is_verified, gathering.base.is_verified) == (False, True)
    assert one.folded("average", one.parts, gathering) == one.folded("average", one.parts)


def test_of_many_at_once_those_that_can_be_mapped_are_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process has descriptors for so many; the rest are read in groups in the end."""
    monkeypatch.setattr(descriptors, "_FILES_AT_ONCE_MAX", 4)
    one = Round(7, range(11))
    gathering = one.gathering()
    gathering.add(as_parts("average", one.parts))
    assert gathering.shards == {0, 1, 2, 3}
    assert one.folded("average", one.parts, gathering) == one.folded("average", one.parts)


def test_updates_without_samples_weigh_alike() -> None:
    """They are not summed early, because nothing is known to multiply them by."""
    one = Round(8, range(4))
    parts = [replace(part, samples=0) for part in one.parts]
    gathering = one.gathering()
    gathering.add(as_parts("samples", parts))
    assert not gathering.shards
    assert one.folded("samples", parts, gathering) == one.folded("average", one.parts)
