"""Examples by index over blocks: what a user's task returns for data that fit no machine.

It fetches the blocks of a task's next examples into the machine's cache, while it trains. A worker
knows the whole order of its task, and of the shard's next epoch. So it fetches each block before a
step needs it, in the order of the steps, with several requests at a time. It stays a bound of bytes
ahead, because a block that it fetches too early could drive another out of the cache that a step
needs sooner. And it tells the cache when it needs a block again (`BlockPlace.keep_until`).
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from threading import Condition, Thread
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, SpecError
from downpour.learning.blame import message_of
from downpour.learning.blocks import formats
from downpour.learning.blocks.indexed import Mds, Parquet
from downpour.learning.blocks.places import BlockPlace, cache_bytes, place_of, refusal

_MEGABYTE = 1 << 20
_READERS = 8
_FETCHERS = 8
_GUESSED_SECONDS = 0.001
"""For an example, before any was read."""
_WINDOW_BYTES = 256 * _MEGABYTE
_WINDOW_BLOCKS = 2
_CONTAINERS = {"tar", "tgz", "mds"}
_DIGESTS_MAX = 100_000
"""With more blocks, most of them single files, each process would need more than 35 MB for them."""
_NONE = np.empty(0, np.int64)
_AHEAD_SHARE = 8
"""Blocks fetched ahead take one part in eight of the cache, so those of eight workers of a machine
fit into it."""


class Blocks:
    """Example i of a folder or bucket of Parquet, MDS, WebDataset tars, tokens or single files.

    The files stay as they are. A process reads a block at once: a row group of Parquet, a shard of
    MDS, some megabytes of a tar or of tokens, or a file. An example is a dictionary of its
    columns, which torch's `default_collate` makes a batch of: numbers, text, bytes, tensors, and
    images as uint8 [c, h, w]. Pickled columns are refused. With `order = "auto"`, the default, a
    shard has whole blocks where `split` allows it, and an epoch reads each of them once.

    Args:
        address: a folder, a file, or a URL of an object store.
        files: which files below the address to read, as a pattern: `"*train*"`.
        columns: which columns to read; a mapping says how: image, bytes, text, json, integer,
            number or tensor. Absent: all, as their format suggests.
        transform: makes an example of the dictionary.
        length: tokens in a window. The files are then plain integers of `dtype` without a header.
            An example is (x, y), int64 [length]; y is x one token later.
        dtype: the integers' type by its name in numpy.
        memory_megabytes: how much of opened blocks a process keeps; with less than a window, it
            opens blocks again and again. Beside these, it has one open
            while it reads, or eight that it fetches from a bucket at once.

    Attributes:
        block_ends: the index that follows each block's last example [blocks].
        window_blocks: how many blocks an epoch mixes at a time: 256 MiB of opened ones, at least 2.
        digests: XXH3-128 of the bytes of each block read so far, by its file and number.

    Raises:
        SpecError: no such files, or damage; from `[i]`: names the file, and the example.
    """

    _ahead: ReadAhead | None = None

    def __init__(
        self,
        address: str | os.PathLike[str],
        *,
        files: str = "*",
        columns: Sequence[str] | Mapping[str, str] | None = None,
        transform: Callable[[Any], Any] | None = None,
        length: int | None = None,
        dtype: str = "uint16",
        memory_megabytes: int = 512,
    ) -> None:
        self._place = place_of(address, files)
        wanted = _named(columns)
        self._format: formats.BlockFormat = (
            _format_of(self._place, wanted)
            if length is None
            else formats.Tokens(self._place, length, dtype)
        )
        self._blocks = [block for block in self._format.blocks if block.count]
        counts = np.array([block.count for block in self._blocks], np.int64)
        self.block_ends: NDArray[np.int64] = np.cumsum(counts)
        if not len(counts):
            raise SpecError("address", str(address), "its files hold no examples")
        opened_bytes = sum(block.opened_bytes or block.size_bytes for block in self._blocks)
        windows = max(1, opened_bytes // _WINDOW_BYTES)
        self.window_blocks = max(_WINDOW_BLOCKS, -(-len(self._blocks) // windows))
        self._transform = transform
        self._opened: OrderedDict[int, formats.OpenBlock] = OrderedDict()
        self.digests: dict[str, str] = {}
        self._room_bytes, self._used_bytes = memory_megabytes * _MEGABYTE, 0
        self._pace = Pace()

    def __del__(self) -> None:
        self._expect_nothing()

    @property
    def fingerprint(self) -> str:
        """The names and sizes of the files, and a bucket's entity tags: alike on all machines."""
        words = [
            (key, file.size_bytes, file.tag if self._place.is_remote else "")
            for key, file in self._place.files.items()
        ]
        return sha256(repr(words).encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.block_ends[-1])

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return some examples; each of their blocks is read once, and rows block by block."""
        chosen = np.asarray(indices, np.int64)
        if len(chosen) and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            raise IndexError(f"{len(self)} examples have none of index {indices}")
        chosen = chosen % len(self)
        numbers = np.searchsorted(self.block_ends, chosen, side="right").tolist()
        places: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            places.setdefault(number, []).append(place)
        rows: list[Any] = [None] * len(chosen)
        for number, opened in self._open(list(places)):
            for place in places[number]:
                rows[place] = self._row(number, opened, int(chosen[place]))
        return rows if self._transform is None else [self._transform(row) for row in rows]

    def expect(self, indices: NDArray[np.int64], later: NDArray[np.int64] = _NONE) -> None:
        """Fetch the blocks of these examples [n] before they are read, in this order.

        Only a bucket's blocks are fetched. Each call replaces the one before. `later` are examples
        of the blocks that are needed after these, in order. This fetches them next, so that the
        next round need not wait, and the machine's cache prefers the first of them.
        """
        self._expect_nothing()
        if not self._place.is_remote:
            return
        first, last = self._first_places(indices), self._first_places(indices[::-1])
        next_each = len(indices) / max(1, len(first))
        again = {
            number: len(indices) + int(rank * next_each)
            for rank, number in enumerate(self._first_places(later))
        }
        needs = [
            Need(self._blocks[number], place, len(indices) - 1 - last[number], again.get(number))
            for number, place in first.items()
        ]
        needs += [
            Need(self._blocks[number], place, place, None)
            for number, place in again.items()
            if number not in first
        ]
        self._pace.begin(len(indices))
        # Its threads do not hold these examples, so that who drops them ends the threads.
        self._ahead = ReadAhead(needs, self._place, self._pace, cache_bytes() // _AHEAD_SHARE)

    def reach(self, place: int) -> None:
        """Say that the expected examples before a place have been read."""
        if self._ahead is not None:
            self._ahead.reach(place)

    def _first_places(self, indices: NDArray[np.int64]) -> dict[int, int]:
        """Return the first place of each block among some examples, in their order."""
        numbers = np.searchsorted(self.block_ends, indices, side="right")
        places = np.full(len(self.block_ends), len(indices))
        np.minimum.at(places, numbers, np.arange(len(indices)))  # without sorting millions
        present = np.flatnonzero(places < len(indices))
        order = present[np.argsort(places[present])]
        return dict(zip(order.tolist(), places[order].tolist(), strict=True))

    def _expect_nothing(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _row(self, number: int, opened: formats.OpenBlock, index: int) -> Any:
        block = self._blocks[number]
        row = index - int(self.block_ends[number]) + block.count
        where = f"{block.key}, block {number}, row {row}"
        try:
            return opened.row(row)
        except MemoryError:
            raise
        except SpecError as error:
            raise refusal(where, str(error)) from None
        except Exception as error:  # noqa: BLE001 - decoders raise anything about damage
            raise FileCorrupt(where, f"cannot be decoded: {message_of(error)}") from None

    def _open(self, numbers: list[int]) -> Iterator[tuple[int, formats.OpenBlock]]:
        """Yield blocks, those first that are open, and keep as many as the memory holds."""
        missing = [number for number in numbers if number not in self._opened]
        for number in [number for number in numbers if number in self._opened]:
            self._opened.move_to_end(number)
            yield number, self._opened[number]
        at_once = _READERS if self._place.is_remote else 1
        for start in range(0, len(missing), at_once):
            some = missing[start : start + at_once]
            for number, opened in zip(some, self._read(some), strict=True):
                self._opened[number] = opened
                self._used_bytes += opened.nbytes
                while self._used_bytes > self._room_bytes and len(self._opened) > 1:
                    self._used_bytes -= self._opened.popitem(last=False)[1].nbytes
                yield number, opened

    def _read(self, numbers: list[int]) -> list[formats.OpenBlock]:
        if len(numbers) == 1:
            return [self._read_one(numbers[0])]
        with ThreadPoolExecutor(_READERS) as readers:
            return list(readers.map(self._read_one, numbers))

    def _read_one(self, number: int) -> formats.OpenBlock:
        block = self._blocks[number]
        content = self._place.read(block.key, block.begin, block.end)
        if len(self._blocks) <= _DIGESTS_MAX:
            where, digest = f"{block.key}, block {number}", xxhash.xxh3_128_hexdigest(content)
            if self.digests.setdefault(where, digest) != digest:
                raise FileCorrupt(where, "has changed since it was first read")
        return self._format.open(block, content)


def _named(columns: Sequence[str] | Mapping[str, str] | None) -> dict[str, str] | None:
    if columns is None:
        return None
    kinds = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns, "")
    for name, kind in kinds.items():
        if kind not in formats.KINDS:
            known = ", ".join(sorted(one for one in formats.KINDS if one))
            raise SpecError("columns", f"{name}: {kind}", f"must be one of {known}")
    return kinds


def _format_of(place: BlockPlace, wanted: formats.Wanted) -> formats.BlockFormat:
    """Return the format of a place's files, by their names."""
    names = [key.rpartition("/")[2] for key in place.files]
    suffixes = {formats.suffix_of(name) for name in names}
    if "index.json" in names:
        return Mds(place, wanted)
    if ".parquet" in suffixes:
        return Parquet(place, wanted)
    if suffixes == {".tar"}:
        return formats.Tars(place, wanted)
    for key, name in zip(place.files, names, strict=True):
        if not _CONTAINERS.isdisjoint(name.lower().split(".")[1:]):
            accepted = (
                "holds many examples: leave out other files by files='*.tar', or keep index.json"
            )
            if ".tar." in name.lower():
                accepted = "a compressed tar cannot be read by index: unpack it to a plain one"
            raise refusal(key, accepted)
    return formats.Files(place, wanted)


@dataclass(frozen=True, slots=True)
class Need:
    """A block, the first and last place in a task's order that needs it, and the next one later.

    Places go on behind the task, for blocks of the next one; `later` is None if none is known.
    """

    block: formats.Block
    first: int
    last: int
    later: int | None


class Pace:
    """How fast these examples are read, with all pauses, over all tasks so far."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._before = self._place = self._count = 0

    def begin(self, count: int) -> None:
        """Begin a task of `count` examples."""
        self._before, self._place, self._count = self._before + self._place, 0, count

    def reach(self, place: int) -> None:
        """Say that the task's examples before a place have been read."""
        self._place = place

    def due_at(self, place: int) -> float:
        """Return when a place comes [s since 1970], and later by a task's time.

        So a block is still expected if the training slows down, or waits for others.
        """
        passed = self._before + self._place
        seconds = (time.monotonic() - self._began) / passed if passed else _GUESSED_SECONDS
        return time.time() + (place - self._place + self._count) * seconds


class ReadAhead:
    """Fetches the needs of a task, in the order of their first places."""

    def __init__(
        self, needs: Sequence[Need], place: BlockPlace, pace: Pace, ahead_bytes: int
    ) -> None:
        self._needs = needs
        self._leaving = sorted(needs, key=lambda need: need.last, reverse=True)
        self._place = place
        self._pace = pace
        self._ahead_bytes = ahead_bytes
        self._next, self._reached, self._held_bytes = 0, 0, 0
        self._changed = Condition()
        for _ in range(min(_FETCHERS, len(needs))):
            # A daemon, because a request may wait for its store longer than a process for its end.
            Thread(target=self._work, name="read ahead", daemon=True).start()

    def reach(self, place: int) -> None:
        """Say that the examples before a place have been read; what only they need is too late."""
        self._pace.reach(place)
        with self._changed:
            while self._reached < len(self._needs) and self._needs[self._reached].first < place:
                if self._reached < self._next:
                    self._held_bytes -= self._needs[self._reached].block.size_bytes
                self._reached += 1
            self._next = max(self._next, self._reached)
            self._changed.notify_all()
        while self._leaving and self._leaving[-1].last < place:
            left = self._leaving.pop()
            self._keep(left.block, left.later)

    def close(self) -> None:
        """Begin no further requests."""
        with self._changed:
            self._next = len(self._needs)
            self._changed.notify_all()

    def _keep(self, block: formats.Block, place: int | None) -> None:
        if place is not None:
            self._place.keep_until(block.key, block.begin, block.end, self._pace.due_at(place))

    def _work(self) -> None:
        while (need := self._taken()) is not None:
            block = need.block
            with suppress(Exception):  # who reads the block finds the reason, and tries again
                self._place.read(block.key, block.begin, block.end)
                self._keep(block, need.first)

    def _taken(self) -> Need | None:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._next in {len(self._needs), self._reached}
                    or self._held_bytes < self._ahead_bytes
                )
            )
            if self._next == len(self._needs):
                return None
            need = self._needs[self._next]
            self._next += 1
            self._held_bytes += need.block.size_bytes
            return need
