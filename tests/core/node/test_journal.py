"""The rules of a journal, on a disk that fails, tears and forgets; and what is journaled."""

import os
from collections.abc import Sequence
from itertools import count, product
from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import FileCorrupt, SharedDirectoryError, StoreError
from downpour.core.node.journal import Journaling, JournalWriter, Line, Segment, in_order
from downpour.core.scheduler import Checkpoint, Journaled, Observed, Scheduler, TakenUp
from downpour.core.scheduler import events as on
from downpour.record.journal import DiskSegments, read_journal
from downpour.record.record import RecordReader
from tests.core.node.journal_defects import DEFECTS
from tests.record.test_journal import CHECKPOINT, ONE_OF_EACH
from tests.specs import plain_file, plain_spec

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
    for holds in (leaves_nothing_to_who_came_before, survives_a_damaged_checkpoint):
        place = next(folders)
        place.mkdir()
        if not holds(kind, place):
            return False
    for fails_at, dies_at in product(range(len(STEPS) + 3), range(len(STEPS))):
        place = next(folders)
        place.mkdir()
        if not keeps_what_it_confirms(kind, place, fails_at, dies_at):
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


class Memory:
    """Segments in memory that fail as often as the test has set."""

    def __init__(self) -> None:
        self.held: dict[Segment, list[Line]] = {}
        self.synced: list[Segment] = []
        self.refusals = 0

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Keep the lines, or fail."""
        if self.refusals:
            self.refusals -= 1
            raise SharedDirectoryError("memory", "is away")
        self.held.setdefault(segment, []).extend(lines)
        self.synced += [segment] if durably else []

    def kinds(self) -> list[str]:
        """Name the entries, in order."""
        parts = [(term, lines) for (term, _), lines in sorted(self.held.items())]
        return [type(line.entry).__name__ for line in in_order(parts)]


def submitted(name: str, **fields: Any) -> on.ExperimentSubmitted:
    """Return the event that a client wants to run an experiment of two shards."""
    spec = plain_spec(shards=2, **fields)
    return on.ExperimentSubmitted(at_seconds=0.0, experiment=name, spec=spec)


class House(Journaling):
    """A core, its journaling, and the storage of some experiments, which are submitted."""

    def __init__(self, *names: str, **fields: Any) -> None:
        self.memories = {name: Memory() for name in names}
        self.core = Scheduler()
        journals = {name: JournalWriter(memory, 1) for name, memory in self.memories.items()}
        super().__init__(journals.get)
        for name in names:
            self.happen(submitted(name, **fields))

    def happen(self, event: on.Event) -> int:
        """Handle and journal an event; returns the number of entries."""
        return len(self.keep(self.core, event, [event, *self.core.handle(event).facts]))

    @property
    def memory(self) -> Memory:
        """The storage of the first experiment."""
        return next(iter(self.memories.values()))


@pytest.fixture
def house() -> House:
    """One experiment is submitted, and nothing is committed."""
    return House("one")


ENDED = on.ExperimentCancelled(at_seconds=1.0, experiment="one", reason="enough")


def test_nothing_is_written_before_it_is_committed(house: House) -> None:
    """Those that change results are synced."""
    assert house.memory.held == {}
    assert house.must_sync
    house.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted"]
    assert house.memory.synced == [(1, 1)]
    assert not house.must_sync


@pytest.mark.parametrize(
    ("fields", "must_sync"),
    [
        ({"mode": "sync", "policy": "handoff"}, False),
        ({"mode": "sync", "policy": "dylu"}, True),
        ({"mode": "fedasync", "policy": "wait"}, True),
    ],
)
def test_an_assignment_is_synced_where_the_next_one_might_ask_for_something_else(
    fields: dict[str, str], *, must_sync: bool
) -> None:
    """From another version, or for fewer steps: a lost attempt's update would count as its own."""
    house, model = House("one", **fields), plain_file("m0")
    house.happen(
        on.Prepared(
            at_seconds=1.0, experiment="one", dataset="d", shard_samples=(10, 10), model=model
        )
    )
    house.commit()
    assert house.happen(on.WorkerJoined(at_seconds=2.0, worker="ann")) == 1
    assert house.must_sync == must_sync


def test_entries_that_change_no_result_force_no_sync(house: House) -> None:
    """Replay needs none of it, and it is synced with the next entry that must be."""
    house.commit()
    assert house.happen(on.WorkerJoined(at_seconds=1.0, worker="ann")) == 0
    assert not house.touched
    assert house.happen(on.WorkerLeft(at_seconds=2.0, worker="ann", reason="lunch")) == 0
    assert house.touched == ("one",)
    assert not house.must_sync
    house.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted", "Dismissed"]
    assert house.memory.synced == [(1, 1)]


def test_an_observation_has_its_place_in_the_story(house: House) -> None:
    """Before and after the entries that it belongs to."""
    seen = [Observed(experiment="one", line={"kind": word}) for word in ("first", "last")]
    house.happen(on.WorkerJoined(at_seconds=1.0, worker="ann"))
    left = on.WorkerLeft(at_seconds=2.0, worker="ann", reason="lunch")
    house.keep(house.core, left, (seen[0], *house.core.handle(left).facts, seen[1]))
    house.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted", "Observed", "Dismissed", "Observed"]


def test_after_its_end_nothing_more_is_kept_of_an_experiment(house: House) -> None:
    """Its last entry says how it ended."""
    house.happen(ENDED)
    late = on.Evaluated(
        at_seconds=2.0,
        experiment="one",
        round=0,
        evaluation=None,  # type: ignore[arg-type]
    )
    assert house.keep(house.core, late, [late]) == []
    house.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted", "Concluded"]


def test_an_experiment_without_a_log_keeps_nothing(house: House) -> None:
    """Its folder was never opened here."""
    assert house.happen(submitted("two")) == 0


def test_a_commit_that_failed_may_be_repeated(house: House) -> None:
    """No line is lost or written twice."""
    house.memory.refusals = 1
    with pytest.raises(SharedDirectoryError):
        house.commit()
    assert house.must_sync
    house.happen(ENDED)
    house.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted", "Concluded"]


def test_an_experiment_whose_place_is_gone_holds_up_no_other() -> None:
    """The others become durable at once; its own entries wait until its place is back."""
    house = House("gone", "stays")
    gone, stays = house.memories.values()
    gone.refusals = 2
    with pytest.raises(SharedDirectoryError):
        house.commit()
    house.commit(is_gone={"gone"}.__contains__)
    assert (gone.kinds(), stays.kinds()) == ([], ["ExperimentSubmitted"])
    assert house.must_sync
    house.commit()
    assert gone.kinds() == ["ExperimentSubmitted"]
    assert not house.must_sync


def test_an_experiment_that_ended_without_its_folder_is_forgotten(house: House) -> None:
    """Nothing is left to write it to, and no later commit waits for it."""
    house.commit()
    house.memory.refusals = 1
    house.happen(ENDED)
    house.commit(is_gone={"one"}.__contains__)
    assert not house.must_sync
    assert house.touched == ()
