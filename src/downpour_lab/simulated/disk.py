"""The shared directory, in memory: slow and stale, refuses operations, forgets unsynced data.

A file appears whole, or not at all if its writer died first. Other hosts may see it late. Written
journal lines outlive their writer, but only synced lines outlive its machine. A file of parameters
holds a short digest as its only tensor. Nothing here decides what to write.
"""

import errno
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal, get_args

import numpy as np

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError
from downpour.base.values import PublishedFile
from downpour.core.node.journal import Line, Segment, in_order, since_checkpoint
from downpour.files.store import Array, decode
from downpour.files.store.layout import Buffer, MemoryStore, Moved, described, unnoticed
from downpour.files.store.publish import RetryPolicy, reading, writing
from downpour.record.journal import belongs_elsewhere
from downpour.record.record_lines import Dated
from downpour.record.view import View
from downpour_lab.simulated.threads import Clock, Process

_FOLDER = Path("shared")
_TENSOR = "digest"
Operation = Literal["publish", "read", "list", "delete", "lock", "claim", "append", "sync"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
_READS = {"read", "list"}
ERRORS = "EACCES", "EROFS", "EIO", "ESTALE", "ETIMEDOUT", "ENOSPC", "ENOENT"
"""The errors of a file server. If every operation raises the last one, the server is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An error with which one or all operations of the directory fail, on one or all hosts."""

    error: str = "ENOENT"
    operation: Operation | None = None
    host: str = ""

    def strikes(self, host: str, operation: Operation) -> bool:
        """Whether this operation fails on this host."""
        return self.operation in {None, operation} and self.host in {"", host}


AWAY = Trouble()
"""Every operation fails on every host."""


def refuse(trouble: Trouble, operation: Operation, name: str) -> None:
    """Raise the store's error for a system error."""
    one_file = bool(name) and operation == "read" == trouble.operation
    if trouble.error == "ENOENT" and one_file:
        raise FileMissing(name)  # the folder itself can be listed
    code = getattr(errno, trouble.error)
    translated = reading(_FOLDER, name) if operation in _READS else writing(_FOLDER, name)
    with translated:
        raise OSError(code, os.strerror(code))


_LINKED_SHARE = 0.3
"""The share of failed publishings whose file exists anyway, because only the answer was lost."""

Damage = Literal[
    "journal's end", "journal's middle", "journal", "copied", "foreign", "update lost",
    "update altered", "snapshot lost", "snapshot altered", "optimizer lost", "model lost",
    "model altered",
]  # fmt: skip
DAMAGES: tuple[Damage, ...] = get_args(Damage)
CLUSTER = "here"


@dataclass(slots=True)
class DiskState:
    """The directory's present faults: how much slower it is, how late files appear, what fails.

    Each trouble in `once` makes one operation fail. `slower_at` says how much slower the directory
    is for single hosts.
    """

    slower: float = 1.0
    slower_at: dict[str, float] = field(default_factory=dict)
    stale_seconds: float = 0.0
    troubles: list[Trouble] = field(default_factory=list)
    once: list[Trouble] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTimings:
    """The seconds it takes to read a file, to write one, and to sync a journal."""

    read_seconds: float = 0.01
    write_seconds: float = 0.02
    sync_seconds: float = 0.005
    patience_seconds: float = 30.0


@dataclass(slots=True)
class _Lines:
    """A segment, and how many of its lines are synced; if `torn`, it ends in half a line."""

    host: str
    lines: list[Line]
    synced: int = 0
    torn: bool = False


class Disk:
    """Files, journals, the lock and the terms of a cluster."""

    def __init__(self, clock: Clock, random: Random, timings: DiskTimings) -> None:
        self.state = DiskState()
        self.timings = timings
        self.holder: Process | None = None
        self.terms: list[str] = []
        self.damaged: set[str] = set()
        self.wrong: set[bytes] = set()
        self.computing_wrong: set[str] = set()
        self.left_over: set[str] = set()
        self._swept: set[str] = set()
        self._published_late: dict[str, Process] = {}
        self.harmed: set[str] = set()
        self.left_out: dict[str, str] = {}
        self._clock = clock
        self._random = random
        self._stores: defaultdict[str, MemoryStore] = defaultdict(MemoryStore)
        self._seen_by_all_at: dict[str, tuple[str, float]] = {}
        self._journals: dict[str, dict[Segment, _Lines]] = {}
        self._locked_until = 0.0

    def ask(self, host: str, operation: Operation, name: str = "") -> None:
        """Raise the error of an operation that fails at present."""
        state = self.state
        if not state.troubles and not state.once:
            return
        for trouble in [*state.once, *state.troubles]:
            if trouble.strikes(host, operation):
                if trouble in state.once:
                    state.once.remove(trouble)
                refuse(trouble, operation, name)

    # Files

    def store(self, experiment: str) -> MemoryStore:
        """Return an experiment's files, as the directory's server has them."""
        return self._stores[experiment]

    def names(self, host: str, experiment: str) -> list[str]:
        """Return the names of an experiment's files; may raise SharedDirectoryError."""
        self.ask(host, "list")
        return self.store(experiment).list()

    def delete(self, host: str, experiment: str, name: str) -> None:
        """Remove a file; if the directory fails, the file stays and only takes up room."""
        try:
            self.ask(host, "delete", name)
        except SharedDirectoryError:
            self.left_over.add(name)
            raise
        self.store(experiment).delete(name)

    def sweep(self, experiment: str) -> None:
        """Note that an ended experiment has only the files that it needs."""
        self._swept.add(experiment)

    def may_stay(self, name: str) -> bool:
        """Whether no process can remove a file of an ended experiment.

        Either an attempt to remove it failed, or a worker that was cut off published it later.
        That worker then died before it could report the file, or hear that the manager did not want
        it. Or it never knew that it had published the file.
        """
        writer = self._published_late.get(name)
        return name in self.left_over or (writer is not None and not writer.alive)

    def publish(self, writer: Process, experiment: str, name: str, content: bytes) -> PublishedFile:
        """Add a file, which is visible and durable on return."""
        store = self.store(experiment)
        try:
            self.ask(writer.host, "publish", name)
        except SharedDirectoryError:
            if name not in store and self._random.random() < _LINKED_SHARE:
                store.put_new(name, [content])
                if experiment in self._swept:  # its writer believes that it failed
                    self.left_over.add(name)
            raise
        if name not in store or bytes(store.read(store.describe(name))) != content:
            store.put_new(name, [content])
        if experiment in self._swept:
            self._published_late[name] = writer
        if self.state.stale_seconds:
            late = self.state.stale_seconds * self._random.random()
            self._seen_by_all_at[name] = (writer.host, self._clock.now_seconds + late)
        return store.describe(name)

    def look(self, reader: Process, experiment: str, file: PublishedFile) -> bytes:
        """Return the content of a file, as a process sees it now."""
        self.ask(reader.host, "read", file.name)
        writer, seen_at = self._seen_by_all_at.get(file.name, ("", 0.0))
        if writer != reader.host and seen_at > self._clock.now_seconds:
            raise FileMissing(file.name)
        if file.name in self.damaged:
            raise FileCorrupt(file.name, "has another checksum than was published")
        return bytes(self.store(experiment).read(file))

    def digest(self, experiment: str, file: PublishedFile) -> bytes | None:
        """Return the digest in a file; None if the file does not exist."""
        store = self.store(experiment)
        return digest_in(store.read(file)) if file.name in store else None

    def is_doubtful(self, name: str) -> bool:
        """Whether a file was damaged, or became visible late on some hosts."""
        return name in self.damaged or name in self._seen_by_all_at

    # Journals

    def write_lines(
        self, writer: Process, experiment: str, segment: Segment, lines: list[Line], *, sync: bool
    ) -> None:
        """Append to a journal."""
        term, _ = segment
        if lines and lines[0].number == 1 and term < len(self.terms):
            # Shipped managers choose the names, so a journal that a manager begins after it has
            # lost its lead has a name that no client knows.
            return
        written = self._journals.setdefault(experiment, {}).setdefault(
            segment, _Lines(writer.host, [])
        )
        try:
            self.ask(writer.host, "append")
        except SharedDirectoryError:
            whole = self._random.randint(0, len(lines))
            written.lines += lines[:whole]
            written.torn = written.torn or whole < len(lines)
            raise
        # A line that follows half a line cannot be read.
        written.lines += lines[1:] if written.torn else lines
        written.torn = False
        if sync:
            self.ask(writer.host, "sync")
            written.synced = len(written.lines)

    def lose_unsynced(self, host: str) -> None:
        """Lose some or all of the lines that a machine had not synced when it died."""
        for segments in self._journals.values():
            for segment in segments.values():
                if segment.host == host:
                    kept = self._random.randint(segment.synced, len(segment.lines))
                    del segment.lines[kept:]

    def stories(self) -> dict[str, list[Line]]:
        """Read the journals that managers of this cluster have written, one at a time.

        Journals that cannot be read go to `left_out`, with the reason.
        """
        stories = {}
        for experiment in sorted(self._journals):
            segments = sorted(self._journals[experiment].items())
            try:
                lines = since_checkpoint((term, segment.lines) for (term, _), segment in segments)
            except FileCorrupt as error:
                self.left_out[experiment] = str(error)
                continue
            if lines and belongs_elsewhere(lines, experiment, CLUSTER) is None:
                stories[experiment] = lines
        return stories

    def journal(self, experiment: str) -> list[Line]:
        """Return all lines of a journal that count; FileCorrupt if one is missing."""
        segments = sorted(self._journals.get(experiment, {}).items())
        return in_order((term, segment.lines) for (term, _), segment in segments)

    def record(self, experiment: str) -> list[Dated]:
        """Return the lines of an experiment's record, as far as its journal goes."""
        view = View()
        return [dated for line in self.journal(experiment) for dated in view.take(line)]

    def settle(self) -> None:
        """Sync all lines of all journals."""
        for segments in self._journals.values():
            for segment in segments.values():
                segment.synced = len(segment.lines)

    # Damage while no manager runs

    def damage(self, experiment: str, what: Damage) -> None:
        """Alter or remove a file of an experiment, or copy its folder."""
        match what:
            case "copied":
                self._journals[f"{experiment}-copy"] = deepcopy(self._journals[experiment])
                return
            case "foreign":
                self._journals["foreign"] = {
                    key: _Lines(
                        one.host, [replace(line, cluster="elsewhere") for line in one.lines]
                    )
                    for key, one in self._journals[experiment].items()
                }
                return
            case "journal's end" | "journal's middle" | "journal":
                self._damage_journal(experiment, what)
            case _:
                kind, how = what.split()
                names = [name for name in self.store(experiment).list() if name.startswith(kind)]
                for name in names[-1:]:
                    self.damaged.add(name)
                    if how == "lost":
                        self.store(experiment).delete(name)
        self.harmed.add(experiment)

    def _damage_journal(self, experiment: str, what: str) -> None:
        segments = self._journals[experiment]
        last = segments[max(segments)]
        if what == "journal":
            del self._journals[experiment]
        elif what == "journal's end":
            del last.lines[-self._random.randint(1, 3) :]
        elif len(last.lines) > 2:
            del last.lines[self._random.randrange(1, len(last.lines) - 1)]
        last.synced = min(last.synced, len(last.lines))

    # The lock and the terms

    def lock(self, process: Process) -> bool:
        """Try to become the leading manager; return whether that worked."""
        self.ask(process.host, "lock")
        held = self.holder is not None and self.holder.alive
        if held or self._clock.now_seconds < self._locked_until:
            return False
        self.holder = process
        return True

    def unlock_later(self, process: Process, seconds: float) -> None:
        """Keep the lock of a dead machine until the server notices."""
        if self.holder is process:
            self._locked_until = self._clock.now_seconds + seconds

    def lose_lock(self, holder: Process | None = None) -> None:
        """Free the lock if this process holds it, without its knowledge; None means any holder."""
        if holder is None or self.holder is holder:
            self.holder = None

    def claim(self, address: str) -> int:
        """Begin a term; return its number. May raise SharedDirectoryError."""
        self.ask(address, "claim")
        self.terms.append(address)
        return len(self.terms)

    def takes(self, seconds: float, host: str) -> float:
        """Return how long something that usually takes `seconds` takes a host at present."""
        # We use the slower factor, not the product: a plan says how long a transfer takes at most.
        slower = max(self.state.slower, self.state.slower_at.get(host, 1.0))
        return seconds * slower * (0.5 + self._random.random())


_PART_SECONDS = 10.0
"""After how long a part of a file is there, or has been read."""


class SimulatedStore:
    """One experiment's files, as a process sees them: slow, stale and retried like real ones.

    One of the process's threads reads and writes; `retry_policy` sleeps in virtual time.
    """

    def __init__(
        self,
        disk: Disk,
        process: Process,
        experiment: str,
        retry_policy: RetryPolicy,
        moved: Moved = unnoticed,
    ) -> None:
        self._disk = disk
        self._process = process
        self._experiment = experiment
        self._retry_policy = retry_policy
        self._moved = moved

    def put_new(
        self,
        name: str,
        chunks: Sequence[Buffer],
        *,
        packs: bool = False,  # noqa: ARG002 - digests are small
    ) -> PublishedFile:
        """Publish a file; see `Store.put_new`."""
        content = b"".join(chunks)
        name = described(name, content).name
        self._take(self._disk.timings.write_seconds)
        publish = partial(self._disk.publish, self._process, self._experiment, name, content)
        return self._retry_policy.call_through_outage(publish)

    def link(self, file: PublishedFile, name: str) -> PublishedFile:
        """Publish a file under a second name; see `Store.link`."""
        return self.put_new(name, [self.look(file)])

    def read(self, file: PublishedFile, *, verified: bool = True) -> memoryview:
        """Read a file, which is always verified; see `Store.read`."""
        del verified
        self._take(self._disk.timings.read_seconds)
        return self.look(file)

    def look(self, file: PublishedFile) -> memoryview:
        """Read a file as part of work whose duration includes the reading."""
        look = partial(self._disk.look, self._process, self._experiment, file)
        return memoryview(self._retry_policy.call(look))

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file; see `Store.read_unchecked`."""
        return bytes(self.read(self.describe(name))[:limit_bytes])

    def describe(self, name: str) -> PublishedFile:
        """Return a file's size and checksum; see `Store.describe`."""
        self._process.check_alive()
        return self._disk.store(self._experiment).describe(name)

    def list(self) -> list[str]:
        """Return the names of all files; see `Store.list`."""
        self._process.check_alive()
        names = partial(self._disk.names, self._process.host, self._experiment)
        return self._retry_policy.call_through_outage(names)

    def delete(self, name: str) -> None:
        """Remove a file; see `Store.delete`."""
        self._process.check_alive()
        self._disk.delete(self._process.host, self._experiment, name)

    def remove_leftovers(self) -> None:
        """Note that nothing else is removed from now on."""
        self._disk.sweep(self._experiment)

    def _take(self, seconds: float) -> None:
        left_seconds = self._disk.takes(seconds, self._process.host)
        while left_seconds > _PART_SECONDS:
            self._process.sleep(_PART_SECONDS)
            self._moved(1)
            left_seconds -= _PART_SECONDS
        self._process.sleep(left_seconds)


class MemorySegments:
    """The segments of one experiment's journal in the simulated directory, for one manager."""

    def __init__(self, disk: Disk, writer: Process, experiment: str) -> None:
        self._disk = disk
        self._writer = writer
        self._experiment = experiment

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to a segment; if the directory fails, some of the lines may be written."""
        self._disk.write_lines(self._writer, self._experiment, segment, list(lines), sync=durably)


def tensors_of(digest: bytes) -> dict[str, Array]:
    """Return a digest as the tensors of a file; callers may change them."""
    return {_TENSOR: np.frombuffer(bytearray(digest), np.uint8)}


def digest_of(tensors: Mapping[str, Array]) -> bytes:
    """Return the digest in the tensors of a file."""
    return tensors[_TENSOR].tobytes()


def digest_in(content: Buffer) -> bytes:
    """Return the digest in the content of a file."""
    return digest_of(decode(content, _TENSOR).tensors)
