"""Journals in an object store, so that a manager on any machine can continue from them.

A manager writes them to its own folder, as it would to a shared one. It also puts durable lines
into the bucket before it acts on them (docs/internals/decisions.md, "An object store needs one
condition").

A manager that does not know that it was replaced may still put objects there. They carry its term,
and do not count once the manager of a later term has put its first object.
"""

import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Self

import msgspec

from downpour.base.errors import FileCorrupt, StoreError
from downpour.core.node.journal import Line, Segment
from downpour.files.store import SharedDirectory
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import open_regular
from downpour.files.store.layout import check_bare_name
from downpour.files.store.lease import Leader
from downpour.files.store.publish import TEMPORARY_PREFIX, reading, sync_directory, writing
from downpour.record.journal import DiskSegments, Journal, segments, term_of
from downpour.record.record_lines import Size

log = logging.getLogger(__name__)

FOLDER = "journals"
GAINS_MAX = 256
"""The most objects of one journal before we merge them; readers fetch up to this many."""
_FETCHES = 16
_WHOLE = "whole"
_GAIN = "gain"


class _Key(NamedTuple):
    """The parsed name of a mirror's object; keys sort in the order in which we put the objects."""

    term: int
    number: int
    kind: str

    def __str__(self) -> str:
        return f"{self.term:06d}-{self.number:06d}-{self.kind}"

    @classmethod
    def of(cls, name: str) -> Self | None:
        """Parse a name; return None if it is not a mirror's."""
        term, _, rest = name.partition("-")
        number, _, kind = rest.partition("-")
        if not (term.isdecimal() and number.isdecimal() and kind in {_WHOLE, _GAIN}):
            return None
        return cls(int(term), int(number), kind)


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of a file, from an offset on."""

    name: str
    offset: int
    content: bytes


class Mirror:
    """Puts the journal in an experiment's folder into a bucket; use it from one thread."""

    def __init__(self, bucket: Bucket, folder: Path, term: int) -> None:
        self._bucket = bucket
        self._folder = folder
        self._term = term
        self._number = 0
        self._sent: dict[str, int] = {}
        self._former: list[str] | None = None

    def put_gains(self) -> None:
        """Put the segments' new lines since the last call; they are durable on return."""
        if not self._sent or len(self._former or ()) >= GAINS_MAX:
            self.put_whole()
            return
        sent = ((path, self._sent.get(path.name, 0)) for path in segments(self._folder))
        grown = [_part(path, offset) for path, offset in sent if path.stat().st_size > offset]
        self._put(_GAIN, grown)

    def put_whole(self) -> None:
        """Put the whole segments, in place of all earlier objects."""
        if self._former is None:
            names = self._bucket.names(self._place)
            # Only objects of this term and earlier ones: the request may have waited for the
            # network, and a successor may have put objects meanwhile.
            self._former = [n for n in names if (key := _Key.of(n)) and key.term <= self._term]
        former = self._former
        self._sent = {}
        self._put(_WHOLE, [_part(path, 0) for path in segments(self._folder)])
        # We remove these last, because before the new object they are all there is.
        for name in former:
            with suppress(StoreError):  # readers ignore any that stay
                self._bucket.remove(f"{self._place}/{name}")
        self._former = self._former[len(former) :]

    def close(self) -> None:
        """Leave one object, with the journal's lines since the last sync; best effort."""
        if self._sent:
            with suppress(StoreError, OSError):
                self.put_whole()

    @property
    def _place(self) -> str:
        return f"{FOLDER}/{self._folder.name}"

    def _put(self, kind: str, parts: Sequence[_Part]) -> None:
        # We don't reuse a number after an error, because the object may exist anyway. We then put
        # its content once more, and reading it twice changes nothing.
        self._number += 1
        key = _Key(self._term, self._number, kind)
        self._bucket.put_new(f"{self._place}/{key}", _packed(parts))
        self._sent |= {part.name: part.offset + len(part.content) for part in parts}
        self._former = [*(self._former or []), str(key)]


class MirroredSegments(DiskSegments):
    """Segments on this machine's disk, durable only once they are in the bucket as well."""

    def __init__(self, folder: Path, mirror: Mirror) -> None:
        super().__init__(folder)
        self._mirror = mirror

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to a segment; see `SegmentStorage`."""
        super().append(segment, lines, durably=durably)
        if durably:
            self._mirror.put_gains()

    def close(self) -> None:
        """Close the file, and leave one object."""
        super().close()
        self._mirror.close()


def journal_of(
    shared: SharedDirectory,
    experiment: str,
    leader: Leader,
    lines: Sequence[Line] = (),
    *,
    syncs: bool = True,
) -> Journal:
    """Return the journal of an experiment whose folder exists; see `JournalWriter`."""
    folder = shared.experiment_path(experiment)
    files = DiskSegments(folder, syncs=syncs)
    if shared.bucket is not None:
        files = MirroredSegments(folder, Mirror(shared.bucket, folder, leader.term))
    return Journal(folder, leader.term, lines, cluster=leader.cluster, files=files)


def fetch_journals(shared: SharedDirectory) -> None:
    """Fetch the journals that another machine wrote last."""
    if shared.bucket is None:
        return
    newest = dict(_newest(shared.bucket.keys(FOLDER)))
    behind = [name for name, keys in newest.items() if keys[-1].term > _own_term(shared, name)]
    if behind:
        log.info("fetching the journals of %d experiments from %s", len(behind), shared.where)
    for name, parts in _fetch_all(shared, {name: newest[name] for name in behind}):
        if parts:
            _replace(shared.experiments / check_bare_name(name), parts)


class MirrorCopy:
    """A copy of a bucket's journals below a folder, for readers to follow while they grow."""

    def __init__(self, shared: SharedDirectory, folder: Path) -> None:
        self._shared = shared
        self._folder = folder
        self._known: dict[str, set[_Key]] = {}

    def fetch(self, experiment: str = "", last: int | None = None) -> None:
        """Fetch the new lines of one experiment's journal, of the `last` ones, or of all."""
        bucket = self._shared.bucket
        assert bucket is not None  # noqa: S101 - a folder needs no copy
        place = f"{FOLDER}/{check_bare_name(experiment)}" if experiment else FOLDER
        newest = sorted(_newest(bucket.keys(place)))[-last if last else None :]
        gained = {name: set(keys) - self._known.get(name, set()) for name, keys in newest}
        for name, parts in _fetch_all(self._shared, gained):
            folder = self._folder / check_bare_name(name)
            with writing(self._folder, name):
                for part in parts:
                    folder.mkdir(exist_ok=True)
                    _write(part, folder)
            self._known.setdefault(name, set()).update(gained[name])


def recorded_in(shared: SharedDirectory) -> set[str]:
    """Return the experiments whose journals a bucket has; none without a bucket."""
    keys = shared.bucket.keys(FOLDER) if shared.bucket is not None else []
    return {key.removeprefix(f"{FOLDER}/").partition("/")[0] for key in keys}


def _newest(keys: Iterable[str]) -> Iterator[tuple[str, list[_Key]]]:
    """Yield each experiment, and the objects that count: the last whole one and its successors."""
    found: dict[str, list[_Key]] = {}
    for path in keys:
        experiment, _, name = path.removeprefix(f"{FOLDER}/").rpartition("/")
        if experiment and (key := _Key.of(name)):
            found.setdefault(experiment, []).append(key)
    for experiment, several in found.items():
        if wholes := [key for key in several if key.kind == _WHOLE]:
            first = max(wholes)
            yield experiment, sorted(k for k in several if k.term == first.term and k >= first)


def _own_term(shared: SharedDirectory, experiment: str) -> int:
    """Return the last term in which this machine wrote an experiment's journal; -1 if none."""
    # The local copy of that term holds everything in the bucket, because we wrote it first.
    folder = shared.experiment_path(experiment)
    return max(map(term_of, segments(folder)), default=-1) if folder.is_dir() else -1


def _fetch(shared: SharedDirectory, experiment: str, keys: Iterable[_Key]) -> list[_Part]:
    """Return the files of an experiment; none if one of its objects is damaged."""
    place, bucket = f"{FOLDER}/{experiment}", shared.bucket
    assert bucket is not None  # noqa: S101 - its caller has looked
    contents = (
        shared.retry_policy.call_through_outage(partial(bucket.get, f"{place}/{key}"))
        for key in sorted(keys)
    )
    try:
        return [part for content in contents for part in _unpacked(content)]
    except FileCorrupt as error:
        log.warning("%s/%s cannot be read: %s", shared.where, place, error)
        return []


def _fetch_all(
    shared: SharedDirectory, newest: Mapping[str, Iterable[_Key]]
) -> Iterator[tuple[str, list[_Part]]]:
    """Fetch the files of experiments from these objects, some at a time."""
    with ThreadPoolExecutor(_FETCHES) as fetching:
        fetched = fetching.map(lambda name: _fetch(shared, name, newest[name]), newest)
        yield from zip(newest, fetched, strict=True)


def _write(part: _Part, folder: Path, *, syncs: bool = False) -> None:
    """Write a part at its offset; bytes that a file already has there are the same."""
    path = folder / part.name
    with open(path, "r+b" if path.exists() else "xb") as file:
        file.seek(part.offset)
        file.write(part.content)
        if syncs:
            file.flush()
            os.fsync(file.fileno())


def _replace(folder: Path, parts: Sequence[_Part]) -> None:
    """Replace this machine's own files, which are older."""
    made = folder.parent / f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}"
    with writing(folder.parent, folder.name):
        made.mkdir()
        try:
            for part in parts:
                _write(part, made, syncs=True)
            sync_directory(made)
            shutil.rmtree(folder, ignore_errors=True)
            made.rename(folder)
            sync_directory(folder.parent)
        finally:
            shutil.rmtree(made, ignore_errors=True)


def _part(path: Path, offset: int) -> _Part:
    with reading(path.parent, path.name), open(open_regular(path), "rb") as file:
        file.seek(offset)
        return _Part(path.name, offset, file.read())


def _packed(parts: Sequence[_Part]) -> bytes:
    """Return the bytes of an object: a line of JSON that describes the parts, and the parts."""
    index = [[part.name, part.offset, len(part.content)] for part in parts]
    return json.dumps(index).encode() + b"\n" + b"".join(part.content for part in parts)


def _unpacked(content: bytes) -> Iterator[_Part]:
    line, _, rest = content.partition(b"\n")
    try:
        index = msgspec.json.decode(line, type=list[tuple[str, Size, Size]])
        parts = [(check_bare_name(name), offset, size) for name, offset, size in index]
    except (ValueError, StoreError) as error:
        raise FileCorrupt("journal", "its first line does not describe the rest") from error
    if sum(size for _, _, size in parts) != len(rest):
        raise FileCorrupt("journal", "its first line contradicts the rest")
    for name, offset, size in parts:
        yield _Part(name, offset, rest[:size])
        rest = rest[size:]
