"""The rules of a journal, on a disk that fails, tears and forgets.

The judge knows what was confirmed, and reads the journal back after every step. It finds every
writer that has a defect.
"""

import os
from collections.abc import Sequence
from itertools import count, product
from pathlib import Path

import pytest

from downpour.base.errors import FileCorrupt, SharedDirectoryError, StoreError
from downpour.core.node.journal import JournalWriter, Line, Segment
from downpour.core.scheduler import Checkpoint, Journaled, TakenUp
from downpour.record.journal import DiskSegments, read_journal
from downpour.record.record import RecordReader
from tests.core.node.journal_defects import DEFECTS
from tests.record.test_journal import CHECKPOINT, ONE_OF_EACH

SUBMITTED, PREPARED, ASSIGNED = ONE_OF_EACH[:3]
ANEW = CHECKPOINT
STEPS: tuple[tuple[Journaled, bool], ...] = (
    (SUBMITTED, True),
    (PREPARED, False),
    (ASSIGNED, True),
    (ASSIGNED, False),
    (ANEW, True),
    (ASSIGNED, False),
    (ASSIGNED, True),
)
"""The journaled entries, and whether each must survive the machine when it is committed."""


class Unreliable(DiskSegments):
    """Files of which one operation fails, halfway; what was not synced is forgotten on demand."""

    def __init__(self, folder: Path, fails_at: int) -> None:
        super().__init__(folder)
        self.folder = folder
        self._operations = 0
        self._fails_at = fails_at
        self._synced: dict[str, int] = {}

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append, or tear the last line."""
        failing = self._fails()
        super().append(segment, lines, durably=durably and not failing)
        path = self._path(segment)
        if failing:
            os.truncate(path, max(self._synced.get(path.name, 0), path.stat().st_size - 5))
            raise SharedDirectoryError("journal", "is full")
        if durably:
            self._synced[path.name] = path.stat().st_size

    def forget(self) -> None:
        """Lose the lines that were not synced, as a machine that dies does."""
        for path in self.folder.iterdir():
            os.truncate(path, self._synced.get(path.name, 0))

    def _path(self, segment: Segment) -> Path:
        term, number = segment
        return self.folder / f"journal-{term:06d}-{number:04d}.jsonl"

    def _fails(self) -> bool:
        self._operations += 1
        return self._operations == self._fails_at


def is_kept(disk: Unreliable, entries: Sequence[Journaled]) -> bool:
    """Whether entries are read back, and in their order; by replay those since a checkpoint."""
    try:
        lines = read_journal(disk.folder)
        reader = RecordReader(disk.folder)
        told = [line.entry for line in reader._gained()]
    except StoreError:
        return False
    last = max((n for n, entry in enumerate(entries) if entry == ANEW), default=None)
    wanted = [*entries] if last is None else [*ONE_OF_EACH[:2], *entries[last:]]
    replayed = [line.entry for line in lines]
    people = [entry for entry in entries if entry != ANEW]
    return replayed[: len(wanted)] == wanted and told[: len(people)] == people


def keeps_what_it_confirms(
    kind: type[JournalWriter], folder: Path, fails_at: int, dies_at: int
) -> bool:
    """Write a journal while one operation fails, and the machine dies after a step."""
    disk = Unreliable(folder, fails_at)
    writer = kind(disk, 1)
    written: list[Journaled] = []
    lasting: list[Journaled] = []
    for step, (entry, durably) in enumerate(STEPS):
        if isinstance(entry, Checkpoint):
            writer.begin_anew(step, 1.0, entry)
        else:
            writer.append(step, 1.0, entry)
        following = [*written, entry]
        try:
            writer.commit(durably=durably)
        except SharedDirectoryError:
            if not is_kept(disk, written):
                return False
            writer.commit(durably=durably)
        written, lasting = following, following if durably else lasting
        if not is_kept(disk, written):
            return False
        if step == dies_at:
            disk.forget()
            return is_kept(disk, lasting)
    return True


def leaves_nothing_to_who_came_before(kind: type[JournalWriter], folder: Path) -> bool:
    """Have a manager that does not know that it was replaced write on, before its successor."""
    earlier = JournalWriter(DiskSegments(folder), 1)
    earlier.append(1, 1.0, SUBMITTED)
    earlier.commit()
    later = kind(DiskSegments(folder), 2, read_journal(folder))
    later.commit()
    earlier.append(2, 2.0, PREPARED)
    earlier.begin_anew(3, 3.0, CHECKPOINT)
    earlier.commit()
    return [line.entry for line in read_journal(folder)] == [SUBMITTED, TakenUp()]


def add(writer: JournalWriter, *entries: Journaled) -> None:
    """Append and commit each."""
    for order, entry in enumerate(entries):
        if isinstance(entry, Checkpoint):
            writer.begin_anew(order, 1.0, entry)
        else:
            writer.append(order, 1.0, entry)
        writer.commit()


def survives_a_damaged_checkpoint(kind: type[JournalWriter], folder: Path) -> bool:
    """Alter the last checkpoint, then the one before: replay begins earlier, and loses no line."""
    writer = kind(DiskSegments(folder), 1)
    add(writer, SUBMITTED, PREPARED, ANEW, ASSIGNED, ANEW, ASSIGNED)
    for damaged, wanted in ((3, [SUBMITTED, PREPARED, ANEW]), (2, [SUBMITTED, PREPARED])):
        segment = folder / f"journal-000001-{damaged:04d}.jsonl"
        segment.write_bytes(segment.read_bytes().replace(b"checkpoint", b"chequepoint"))
        try:
            read = [line.entry for line in read_journal(folder)]
        except FileCorrupt:
            return False
        if read != [*wanted, ASSIGNED, ASSIGNED]:
            return False
    return True


def does_its_duty(kind: type[JournalWriter], folder: Path) -> bool:
    """Have each operation fail once, at every moment."""
    folders = (folder / str(number) for number in count())
    for fails_at, dies_at in product(range(len(STEPS) + 3), range(len(STEPS))):
        place = next(folders)
        place.mkdir()
        if not keeps_what_it_confirms(kind, place, fails_at, dies_at):
            return False
    for holds in (leaves_nothing_to_who_came_before, survives_a_damaged_checkpoint):
        place = next(folders)
        place.mkdir()
        if not holds(kind, place):
            return False
    return True


def test_confirmed_lines_are_read_back_after_any_failure(tmp_path: Path) -> None:
    """On a disk: an operation that fails, a line that is torn, a machine that dies."""
    assert does_its_duty(JournalWriter, tmp_path)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_of_the_rules_is_found_on_a_disk(
    tmp_path: Path, defect: type[JournalWriter]
) -> None:
    """A confirmed line is not read back."""
    assert not does_its_duty(defect, tmp_path)
