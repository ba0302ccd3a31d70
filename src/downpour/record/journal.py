"""A journal on disk, and its replay.

Each segment of a journal is a file of checksummed lines in the experiment's folder. A line is JSON:
the entry's number, its time, and the entry (`core/scheduler/replay.py` lists the kinds). A crash
may tear the last line, and a bad disk may alter any. Readers get back only complete lines.
`core/node/journal.py` has the rules about when to write, and which lines count.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import msgspec
import xxhash
from pydantic import TypeAdapter, ValidationError

from downpour.base.errors import FileCorrupt, SpecError, StoreError
from downpour.core.node.journal import (
    JournalWriter,
    Line,
    Part,
    Segment,
    has_checkpoint,
    since_checkpoint,
)
from downpour.core.scheduler import Checkpoint, Journaled, Observed, Scheduler, TakenUp
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.files.store.directory import names_in, open_regular
from downpour.files.store.publish import reading, sync_directory, writing
from downpour.record.record_lines import word_for


def seal(text: bytes) -> bytes:
    """Return the line for a text that has no line end."""
    return xxhash.xxh3_64_hexdigest(text).encode() + b" " + text + b"\n"


def whole_lines(content: bytes) -> Iterator[bytes]:
    """Yield the texts of the lines whose checksum is right."""
    # After the last line end comes a torn line, or nothing.
    for line in content.split(b"\n")[:-1]:
        checksum, _, text = line.partition(b" ")
        if xxhash.xxh3_64_hexdigest(text).encode() == checksum:
            yield text


@dataclass(frozen=True, slots=True)
class ReplayedJournals:
    """The experiments that can continue, in the order of submission, and why others cannot."""

    experiments: dict[str, Experiment]
    left_out: dict[str, str]


def replay_each(
    journals: Mapping[str, Sequence[Line]],
    patience: float,
    known: Mapping[str, Experiment] = MappingProxyType({}),
) -> ReplayedJournals:
    """Replay each journal into a separate core.

    If we cannot replay a journal, we leave out its experiment, with a reason, and no other is
    affected. The `known` experiments have been replayed already.
    """
    replayed: dict[str, Experiment] = {}
    left_out: dict[str, str] = {}
    for name in sorted(journals, key=lambda name: [line.order for line in journals[name][:1]]):
        try:
            replayed[name] = known.get(name) or replay_one(journals[name], patience)
        except FileCorrupt as error:
            left_out[name] = str(error)
    return ReplayedJournals(replayed, left_out)


def replay_one(journal: Sequence[Line], patience: float) -> Experiment:
    """Return the experiment that results from a journal."""
    if not journal or not isinstance(journal[0].entry, on.ExperimentSubmitted):
        raise FileCorrupt("journal", "does not begin with a submission")
    core = Scheduler(patience)
    try:
        for line in journal:
            core.replay(line.at_seconds, line.entry)
        [experiment] = core.state.experiments.values()
    # We catch every kind, because a damaged journal may make the core do anything. That core serves
    # only this experiment, and we drop it.
    except Exception as error:
        reason = f"cannot be replayed ({type(error).__name__}: {error})"
        raise FileCorrupt("journal", reason) from error
    return experiment


def replay(core: Scheduler, journals: Mapping[str, Sequence[Line]]) -> dict[str, str]:
    """Continue experiments in an empty core; return those left out, each with the reason."""
    known = replay_each(journals, core.state.patience)
    take_in(core, known, journals)
    return known.left_out


def take_in(
    core: Scheduler, known: ReplayedJournals, journals: Mapping[str, Sequence[Line]]
) -> None:
    """Put the experiments into an empty core; its time continues from the latest entry."""
    at_seconds = max((journals[name][-1].at_seconds for name in known.experiments), default=0.0)
    core.take_in(known.experiments.values(), at_seconds)


def belongs_elsewhere(journal: Sequence[Line], folder: str, cluster: str) -> str | None:
    """Return why a journal does not belong to this folder and cluster; None if it does.

    A folder copied from a backup or from another cluster brings its journal along. Without this
    check, we would train its experiment a second time.
    """
    first = journal[0]
    if first.cluster != cluster:
        return f"another cluster's ({first.cluster}; this one is {cluster})"
    if isinstance(first.entry, on.ExperimentSubmitted) and first.entry.experiment != folder:
        return f"a copy of {first.entry.experiment}"
    return None


def next_order(journals: Mapping[str, Sequence[Line]]) -> int:
    """Return the number of the next entry, counted over all experiments."""
    return max((line.order for journal in journals.values() for line in journal), default=0) + 1


# These words are on disk: if one changes, a manager refuses older journals. A fact's word comes
# from its class: `GivenUp` is "given-up".
KINDS: dict[str, type[Journaled]] = {
    "submitted": on.ExperimentSubmitted,
    "prepared": on.Prepared,
    "aggregated": on.Aggregated,
    "evaluated": on.Evaluated,
    "published": on.ModelPublished,
    "checkpoint": Checkpoint,
    "observed": Observed,
    "taken-up": TakenUp,
    **{word_for(fact.__name__): fact for fact in get_args(out.Fact)},
}
_KIND_OF = {entry: kind for kind, entry in KINDS.items()}
_ADAPTERS: dict[str, TypeAdapter[Any]] = {kind: TypeAdapter(e) for kind, e in KINDS.items()}
PIECE_BYTES = 1 << 21
"""We read a segment in pieces, because its entries take many times their bytes in memory."""
_SEGMENT = re.compile(r"journal-(\d+)-(\d+)\.jsonl")


class DiskSegments:
    """The segments of one experiment's journal, as files in its folder, which exists.

    Without `syncs`, they survive a crash of this process, but not of the machine.
    """

    def __init__(self, folder: Path, *, syncs: bool = True) -> None:
        self._folder = folder
        self._syncs = syncs
        self._file: int | None = None
        self._segment: Segment | None = None

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to the last segment, or to a new one."""
        try:
            with writing(self._folder, "journal"):
                descriptor = self._open(segment)
                content = b"".join(map(_written, lines))
                while content:
                    # A disk that fills up takes only a part.
                    content = content[os.write(descriptor, content) :]
                if durably and self._syncs:
                    os.fsync(descriptor)
        except StoreError:
            # The file may now end with a part of a line, so nothing may follow: the next append
            # begins a new segment.
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            descriptor, self._file = self._file, None
            with suppress(OSError):  # everything that counts is synced already
                os.close(descriptor)

    def _open(self, segment: Segment) -> int:
        if self._file is None or segment != self._segment:
            self.close()
            # Never append to an existing file: its last line may be torn, and nothing may follow
            # that.
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._file = os.open(self._folder / _name_of(segment), flags, 0o666)
            self._segment = segment
            # The name must be as durable as the lines: without it a power cut would take all of
            # them.
            if self._syncs:
                sync_directory(self._folder)
        return self._file


class Journal(JournalWriter):
    """Appends to the journal of the experiment in an existing folder; see `JournalWriter`.

    `files` are its segments if they are more than files in that folder (`mirror.py`).
    """

    def __init__(
        self,
        folder: Path,
        term: int,
        lines: Sequence[Line] = (),
        *,
        cluster: str = "",
        files: DiskSegments | None = None,
    ) -> None:
        self._files = files or DiskSegments(folder)
        super().__init__(self._files, term, lines, cluster=cluster)

    def close(self) -> None:
        """Close the file; uncommitted entries are lost."""
        self._files.close()


def read_journal(folder: Path) -> list[Line]:
    """Return the lines of an experiment's journal that replay needs, in order; empty without one.

    Leave out a torn line at the end; the returned lines are durable.
    """
    parts: list[Part] = []
    for segment in reversed(segments(folder)):
        parts.insert(0, _read(segment))
        if any(line.head for line in parts[0][1]) and has_checkpoint(parts):
            break
    return since_checkpoint(parts)


def lines_from(segment: Path, offset: int) -> tuple[list[Line], int]:
    """Return whole lines of a segment from an offset on, and the offset where they end.

    The lines have about `PIECE_BYTES`; if they have fewer, the segment has no more. We
    skip checkpoints, which tell people nothing.
    """
    with reading(segment.parent, segment.name), open(open_regular(segment), "rb") as file:
        file.seek(offset)
        content = file.read(PIECE_BYTES)
        # We read a line to its end even if it is longer than a piece.
        content += file.readline() if len(content) == PIECE_BYTES else b""
    return list(_lines(content, segment, checkpoints=False)), offset + content.rfind(b"\n") + 1


def lines_with(segment: Path, words: bytes) -> Iterator[Line]:
    """Yield the lines of a segment that have these words, but no checkpoints; parse no others."""
    with reading(segment.parent, segment.name), open(open_regular(segment), "rb") as file:
        for text in file:
            if words in text:
                yield from _lines(text, segment, checkpoints=False)


def first_number(segment: Path) -> int | None:
    """Return the number of a segment's first line; None if it is not whole."""
    with reading(segment.parent, segment.name), open(open_regular(segment), "rb") as file:
        first = whole_lines(file.readline())
    return next((int(json.loads(text)["number"]) for text in first), None)


def segments(folder: Path) -> list[Path]:
    """Return the files of a journal, in reading order."""
    return segments_among(folder, names_in(folder))


def segments_among(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the journal's files among these names of a folder, in the order of `segments`."""
    found = ((_SEGMENT.fullmatch(name), folder / name) for name in names)
    # We sort by the numbers, because a name with one digit more sorts before its predecessors.
    numbered = [((int(match[1]), int(match[2])), path) for match, path in found if match]
    return [path for _, path in sorted(numbered)]


def _written(line: Line) -> bytes:
    return seal(json.dumps(_body(line), separators=(",", ":")).encode())


def _body(line: Line) -> dict[str, Any]:
    kind = _KIND_OF[type(line.entry)]
    return {
        "number": line.number,
        "order": line.order,
        "at": line.at_seconds,
        "kind": kind,
        "entry": _ADAPTERS[kind].dump_python(line.entry, mode="json"),
        **({"cluster": line.cluster} if line.cluster else {}),
        **({"head": list(map(_body, line.head))} if line.head else {}),
    }


def _read(segment: Path) -> Part:
    """Read a segment's term and its lines, and sync it."""
    # The writer may have died before its sync. This manager syncs the lines that it adds. Without a
    # sync here, they could survive a power cut while earlier lines are lost.
    with reading(segment.parent, segment.name), open(open_regular(segment), "rb") as file:
        content = file.read()
        os.fsync(file.fileno())
    return term_of(segment), list(_lines(content, segment))


def term_of(segment: Path) -> int:
    """Return the term of the manager that wrote a segment."""
    match = _SEGMENT.fullmatch(segment.name)
    return int(match[1]) if match else 0


def _name_of(segment: Segment) -> str:
    term, number = segment
    return f"journal-{term:06d}-{number:04d}.jsonl"


def lacks_fields(error: Exception) -> bool:
    """Whether something stored cannot be read because an older build left out a field."""
    if isinstance(error, SpecError):
        return error.value is None
    found = error.errors() if isinstance(error, ValidationError) else []
    return any(each["type"] == "missing" for each in found)


def _lines(content: bytes, segment: Path, *, checkpoints: bool = True) -> Iterator[Line]:
    """Parse the lines of a segment that are whole; the others do not count."""
    # We leave out a damaged line here; the code that orders lines refuses a journal that lacks one
    # before others.
    for text in whole_lines(content):
        try:
            body = msgspec.json.decode(text)
        except msgspec.DecodeError:
            body = json.loads(text)  # ten times as slow, but it knows NaN
        if checkpoints or not body.get("head"):
            yield _line(body, segment)


def _line(body: dict[str, Any], segment: Path) -> Line:
    try:
        entry = _ADAPTERS[body["kind"]].validate_python(body["entry"])
    except (KeyError, ValidationError, SpecError) as error:
        # The line is whole, so an entry that is not valid here was valid where it was written.
        build = f"{'an older' if lacks_fields(error) else 'another'} build of Downpour"
        raise FileCorrupt(segment.name, f"{build} wrote entry {body.get('number')}") from error
    return Line(
        number=body["number"],
        order=body["order"],
        at_seconds=body["at"],
        entry=entry,
        cluster=body.get("cluster", ""),
        head=tuple(_line(one, segment) for one in body.get("head", ())),
    )
