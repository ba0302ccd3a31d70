"""Makes the next version from updates: the fold of a round in step, and moves from older versions.

The fold maps, sums and verifies files in one pass, along a tree over their shards (`passes.py`;
docs/internals/decisions.md, "The fold adds along a fixed tree"). Memory holds one model, and a few
more if we cannot map all updates at once. Damaged data never reaches a result: if a pass fails,
`examine` finds the damaged shards and their faults, so that workers retrain exactly these.

Asynchronous modes move a version instead. They take few updates at a time, usually one, and each
update has its own start version. So we read updates whole, which verifies them, and mostly keep
versions in memory (`Versions`). We compute in windows that stay in the processor's cache, and look
for errors only if a window's sum is not finite.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from downpour.base.errors import FileCorrupt, NonFinite, StoreError, UpdatesRefused
from downpour.base.values import PublishedFile
from downpour.files.aggregators.additions import Combine
from downpour.files.aggregators.passes import (
    Base,
    Contribution,
    Counted,
    Held,
    Item,
    Passed,
    Passes,
    check_sound,
    examine,
    full_additions,
    last_additions,
    refusing,
    remaining,
)
from downpour.files.aggregators.summing import is_sound
from downpour.files.store import (
    WHOLE,
    Array,
    ParameterFile,
    Parameters,
    Store,
    UpdateFormat,
    base_of,
    decode,
    decompressed,
    plan_layout,
    read_version,
)
from downpour.host.machine import free_memory
from downpour.host.process import files_at_once

_SUMS_LEAST = 2
"""How many sums there may be in any case; if memory is short, they go into a temporary file."""


class Gathering:
    """The sums of one round's updates so far; use it from one thread.

    It gets updates as they arrive, and adds each to the sums that are possible so far, along the
    tree of the fold. It is only a cache. If it cannot do something, it does nothing, and the fold
    reads the file at the end. If a file is damaged, it drops all its sums, and the fold finds and
    names the file.

    Args:
        store: Where the files are.
        base: The model that the round began from.
        limit_bytes: How much memory the sums may take; None: half of the free memory.
    """

    def __init__(self, store: Store, base: Base, *, limit_bytes: int | None = None) -> None:
        self.base = base
        self._store = store
        size_bytes = max(1, base.form.model.size_bytes)
        free = max(_SUMS_LEAST, free_memory() // 2 // size_bytes)
        self._limit = free if limit_bytes is None else limit_bytes // size_bytes
        self._held: list[Held] = []

    @property
    def shards(self) -> frozenset[int]:
        """The shards that are part of a sum."""
        return frozenset(part.shard for held in self._held for part in held.parts)

    def add(self, parts: Sequence[Counted], threads: int | None = None) -> None:
        """Add as many of these arrived updates as possible; the rest waits for the fold.

        We drop a sum that has another update of one of these shards.
        """
        coming = {part.shard for part in parts}
        self._held = [one for one in self._held if coming.isdisjoint(p.shard for p in one.parts)]
        fitting = self._fitting([part for part in parts if part.factor > 0])
        if not fitting:
            return
        items: list[Item] = sorted([*self._held, *fitting], key=lambda item: item.node)
        self._held = []  # the pass changes them, even if it fails
        steps = list(full_additions([item.node for item in items]))
        try:
            passed = Passes(self._store, self.base, fitting, threads=threads).add(items, steps)
        except StoreError:
            return  # the fold will meet the error, too, and wait, or say whose it is
        if passed.is_right:
            self._held = list(passed.held)
            self.base = replace(self.base, is_verified=True)  # so no later pass hashes it

    def take(self, parts: Sequence[Counted], divisor: float) -> list[Held]:
        """Hand over the sums whose updates are all among these parts; keep none.

        The fold takes an update with all the weight as it is, and so from its file.
        """
        held, self._held = self._held, []
        if any(part.factor == divisor for part in parts):
            return []
        wanted = {part.shard: part for part in parts}
        return [one for one in held if all(wanted.get(part.shard) == part for part in one.parts)]

    def _fitting(self, parts: Sequence[Counted]) -> list[Counted]:
        """Return the parts that we can map at once without exceeding the limit of sums."""
        nodes, fitting = [one.node for one in self._held], list[Counted]()
        for part in parts[: files_at_once()]:
            more = remaining(list(full_additions(sorted([*nodes, part.node]))))
            if len(more) <= self._limit:
                nodes = more
                fitting.append(part)
        return fitting


_UNSTEADY = "its bytes change while we read them"


def fold(  # noqa: PLR0913 - the files to sum, and their format
    store: Store,
    base: PublishedFile,
    contributions: Sequence[Contribution],
    weights: Sequence[float] | Combine,
    *,
    amounts: Sequence[float] | None = None,
    compression: str = WHOLE,
    trained_from: PublishedFile | None = None,
    threads: int | None = None,
    gathered: Gathering | None = None,
) -> dict[str, Array]:
    """Return the weighted mean of the contributions' parameters.

    The formula is x0 - Σ w_i (x0 - x_i), in float32 (float64 in float64): numbers that no update
    changes stay equal to the base's, bit for bit. With equal weights, we sum first and divide once.
    We take numbers of other types from the lowest shard. A non-finite number in the base is a
    constant: it is the same in every update, and stays.

    Args:
        store: Where the files are.
        base: The model that the round began from; all updates must have its tensors.
        contributions: One for each shard.
        weights: As many as contributions, summing to one; or a statistic that replaces the mean.
        amounts: The amounts whose shares are the weights, if each is known separately; the fold
            divides by their sum at the end.
        compression: The compression of all updates; a compressed update says how far it moved.
        trained_from: The version that compressed updates say they began from; absent: the base.
        threads: How many threads share the work; absent: at most two. The number changes no byte.
        gathered: The base and earlier sums, which the fold uses up. They change no byte.
    """
    parts, divisor = _in_shard_order(contributions, weights, amounts)
    combine = weights if callable(weights) else None
    passes = partial(Passes, store, threads=threads, divisor=divisor, combine=combine)
    opened = partial(Base.opened, store, base, compression, trained_from)
    known: Base | None = None
    for _ in range(2):  # a file that changed during the pass may be valid on a second read
        if gathered is not None:
            known = gathered.base
        elif known is None or not known.is_verified:
            known = opened()
        held = gathered.take(parts, divisor) if gathered is not None else []
        gathered = None
        passed = _fold_once(passes, known, parts, held)
        if passed.is_right:
            return passed.held[0].kept.tensors()
        reasons = examine(store, known, contributions, known=passed.refused)
        if reasons:
            raise UpdatesRefused(reasons)
        if not passed.sound and not passed.altered and not passed.base_altered:
            raise NonFinite("the mean of the updates overflows, although each one is finite")
    if passed.base_altered:
        raise FileCorrupt(base.name, _UNSTEADY)
    raise UpdatesRefused(dict.fromkeys(passed.altered, _UNSTEADY))


def _fold_once(
    begin: Callable[[Base, Sequence[Counted]], Passes],
    base: Base,
    parts: Sequence[Counted],
    gathered: Sequence[Held],
) -> Passed:
    """Sum all parts, ungathered ones in groups; stop if one fails."""
    done = {part.shard for one in gathered for part in one.parts}
    unread = [part for part in parts if part.shard not in done]
    items: list[Item] = sorted([*gathered, *unread], key=lambda item: item.node)
    passes = begin(base, unread)
    passed = Passed()
    for group, following in _groups(items, passes.files_at_once):
        # Read files that do not count, but don't add them; the lowest shard supplies the integers.
        others = [one for one in group if isinstance(one, Counted) and one.factor == 0]
        others = [one for one in others if one is not parts[0]]
        counted = [*passed.held, *(item for item in group if item not in others)]
        steps = list(last_additions([item.node for item in counted], following))
        passed = passes.add(counted, steps, others=others, is_last=following is None)
        if not passed.is_right:
            break
    return passed


def _groups(items: Sequence[Item], most: int) -> Iterator[tuple[Sequence[Item], int | None]]:
    """Yield groups of at most `most` files, and the shard that follows each group."""
    group: list[Item] = []
    files = 0
    for item in items:
        if files == most:
            yield group, item.node.shard
            group, files = [], 0
        group.append(item)
        files += isinstance(item, Counted)
    yield group, None


def _in_shard_order(
    contributions: Sequence[Contribution],
    weights: Sequence[float] | Combine,
    amounts: Sequence[float] | None,
) -> tuple[list[Counted], float]:
    """Return the parts in the order of their shards, and the divisor of their sum."""
    if len({contribution.shard for contribution in contributions}) != len(contributions):
        raise ValueError("a shard contributes twice")
    factors: Sequence[float]
    divisor = 1.0
    if callable(weights):
        factors = (1.0,) * len(contributions)
    elif amounts is not None and any(amounts):
        factors, divisor = amounts, math.fsum(amounts)
    elif len(set(weights)) == 1:
        factors, divisor = (1.0,) * len(weights), float(len(weights))
    else:
        factors = weights
    parts = [
        Counted(contribution=contribution, factor=factor)
        for contribution, factor in zip(contributions, factors, strict=True)
    ]
    return sorted(parts, key=lambda part: part.shard), divisor


_LIMIT_BYTES = 256 * 2**20


class Versions:
    """The model versions of one experiment; use it from one thread.

    Each version is the start of the next, and the base of the updates that began from it. This
    process keeps the versions that it has published, so that for each push it reads only the
    update. It reads and verifies the versions of an earlier manager each time. If a version does
    not fit into `limit_bytes` of memory, it maps the file that it wrote, and does not verify it. If
    versions are differences, their files lack them. So we keep the newest that fit, and the last
    one in any case, because the next one is a difference from it.
    """

    def __init__(self, store: Store, limit_bytes: int = _LIMIT_BYTES) -> None:
        self.store = store
        self._limit_bytes = limit_bytes
        self._kept: dict[PublishedFile, Parameters] = {}
        self._order: Sequence[PublishedFile] = ()

    def follow(self, files: Sequence[PublishedFile]) -> None:
        """Remember which versions there are, oldest first, if some are steps."""
        self._order = files

    def read(self, file: PublishedFile) -> Parameters:
        """Return a version; callers must not change its tensors."""
        leading = self._order[: self._order.index(file)] if file in self._order else ()
        return self.read_after(leading, file)

    def read_after(self, leading: Sequence[PublishedFile], file: PublishedFile) -> Parameters:
        """Return a version to which the steps in `leading` lead; other threads may call this."""
        return read_version(self.store, file, leading, self._kept.get)

    def base_of(
        self, file: PublishedFile, compression: str, trained_from: PublishedFile | None = None
    ) -> Base:
        """Return a version as the base of updates, which may be `trained_from` an earlier one."""
        kept = self.read(file) if file in self._order else self._kept.get(file)
        if kept is not None and (data := _in_one(kept)) is not None:
            return Base.known(file, kept, data, compression, trained_from)
        return Base.opened(self.store, file, compression, trained_from)

    def keep(
        self, file: PublishedFile, tensors: Mapping[str, Array], metadata: Mapping[str, str]
    ) -> None:
        """Keep the content of a published file, which the caller must not change from now on."""
        layout = plan_layout(tensors)
        kept = Parameters(tensors=dict(tensors), metadata=dict(metadata), layout=layout)
        if layout.size_bytes + self._kept_bytes > self._limit_bytes:
            with suppress(StoreError):
                held = decode(self.store.read(file, verified=False), file.name)
                kept = held if base_of(held) is None else kept
        self._kept[file] = kept
        while len(self._kept) > 1 and self._kept_bytes > self._limit_bytes:
            del self._kept[next(iter(self._kept))]

    @property
    def _kept_bytes(self) -> int:
        in_memory = (one for one in self._kept.values() if not isinstance(one, ParameterFile))
        return sum(one.layout.size_bytes for one in in_memory)

    def clear(self) -> None:
        """Free all memory."""
        self._kept.clear()
        self._order = ()

    def forget(self, files: Iterable[PublishedFile]) -> None:
        """Free the memory of versions that are removed."""
        for file in files:
            self._kept.pop(file, None)


def _in_one(model: Parameters) -> Array | None:
    """Return the bytes of a model's tensors if they are contiguous, as the fold makes them.

    We don't join others, because that would cost more than reading the file.
    """
    if isinstance(model, ParameterFile):
        return model.data
    owner = next((tensor.base for tensor in model.tensors.values()), None)
    if not isinstance(owner, np.ndarray) or owner.nbytes != model.layout.size_bytes:
        return None
    data = owner.reshape(-1).view(np.uint8)
    begin = data.ctypes.data
    places = {entry.name: begin + entry.start for entry in model.layout.entries}
    found = {name: tensor.ctypes.data for name, tensor in model.tensors.items() if tensor.nbytes}
    return data if all(places[name] == place for name, place in found.items()) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """An update, the version from which it counts, and the factor of its step."""

    shard: int
    file: PublishedFile
    base: PublishedFile
    factor: float


_WINDOW = 64 * 1024  # numbers: those of model, base, update and a term fit a core's cache


def moved(
    versions: Versions, model: PublishedFile, moves: Sequence[Move], *, compression: str = WHOLE
) -> dict[str, Array]:
    """Return the model after some moves: x - Σ f_i (b_i - x_i), with b_i the base of update x_i.

    If the base is the model itself, the model moves toward the update's parameters. The buffers
    that the model's file names always move like this: steps of several shards from one old version
    add up, and would carry a running variance below zero. The moves apply in order, in float32
    (float64 in float64). Numbers of other types, such as a count of batches, come from the last
    move.

    Args:
        versions: Model and bases.
        model: The newest version.
        moves: The updates, each with its base; a factor is above 0 and at most 1.
        compression: The compression of all updates; a compressed update says how far it moved from
            its base.
    """
    begun = versions.read(model)
    tensors = {name: tensor.copy() for name, tensor in begun.tensors.items()}
    reasons: dict[int, str] = {}
    finite = True
    for move in moves:
        base = versions.read(move.base)
        form = UpdateFormat.of(base, move.base, compression)
        with refusing(reasons, move.shard):
            update, differences = _read(versions.store, move.file, form)
            # We look for unsound numbers only after the step, which shows whether there may be any.
            # The caller then discards the changed model.
            if not _step(tensors, base, form, update, differences, move.factor):
                finite = False
                check_sound(update, begun.tensors, move.file.name)
    if reasons:
        raise UpdatesRefused(reasons)
    if not finite and not all(is_sound(x, begun.tensors[name]) for name, x in tensors.items()):
        raise NonFinite("the sum of the updates overflows, although each one is finite")
    return tensors


def _step(
    tensors: Mapping[str, Array],
    base: Parameters,
    form: UpdateFormat,
    update: ParameterFile,
    differences: Mapping[str, Array],
    factor: float,
) -> bool:
    """Add an update's step to all tensors; return whether all numbers were finite."""
    finite = True
    for name, numbers in tensors.items():
        start = numbers if name in form.buffers else base.tensors[name]
        finite &= _add(numbers, start, update.tensors[name], differences.get(name), factor)
    return finite


def own_after(versions: Versions, model: PublishedFile, move: Move) -> dict[str, Array]:
    """Return a shard's own parameters after it has met the model: x_i - f (x_i - x).

    The model moves by the same distance, the other way (`moved`). Numbers that are not floats stay
    the shard's.
    """
    begun = versions.read(model)
    reasons: dict[int, str] = {}
    with refusing(reasons, move.shard):
        update, _ = _read(versions.store, move.file, UpdateFormat.of(begun, model, WHOLE))
        check_sound(update, begun.tensors, move.file.name)
    if reasons:
        raise UpdatesRefused(reasons)
    tensors = {name: tensor.copy() for name, tensor in update.tensors.items()}
    for name, numbers in tensors.items():
        if numbers.dtype.kind == "f":
            _add(numbers, update.tensors[name], begun.tensors[name], None, move.factor)
    return tensors


def _read(
    store: Store, file: PublishedFile, form: UpdateFormat
) -> tuple[ParameterFile, dict[str, Array]]:
    """Return an update, and the differences that it holds in place of numbers, by name."""
    update = decode(store.read(file), file.name)
    if misfit := form.misfit(update):
        raise FileCorrupt(file.name, misfit)
    return update, dict(decompressed(update))


def _add(numbers: Array, base: Array, update: Array, difference: Array | None, f: float) -> bool:
    """Add one tensor's step times a factor; the step is its difference if that is known.

    Returns:
        Whether all numbers are finite; then those of base and update are, too.
    """
    if numbers.dtype.kind != "f":
        np.copyto(numbers, update)
        return True
    x, held = numbers.reshape(-1), (base if difference is None else difference).reshape(-1)
    other = update.reshape(-1) if difference is None else None
    finite = True
    # A non-finite number in the model is a constant, such as an attention's mask, and stays.
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, len(x), _WINDOW):
            part = slice(start, start + _WINDOW)
            there, step = x[part], held[part]
            if other is not None:
                wide = np.promote_types(there.dtype, np.float32)
                step = np.subtract(step, other[part], dtype=wide)
            after = (there - f * step).astype(there.dtype, copy=False)
            if np.isfinite(after.sum(dtype=step.dtype)):
                there[...] = after
                continue
            finite = False
            np.copyto(there, after, where=np.isfinite(there))
    return finite
