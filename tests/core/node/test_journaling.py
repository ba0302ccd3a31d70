"""Which entries are logged, and when they must be durable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from downpour.base.errors import SharedDirectoryError
from downpour.core.node.journal import Journaling, JournalWriter, Line, Segment, in_order
from downpour.core.scheduler import Observed, Scheduler
from downpour.core.scheduler import events as on
from tests.specs import plain_file, plain_spec


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


class House:
    """A core, its journaling, and the storage of one experiment."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.core = Scheduler()
        journal = JournalWriter(self.memory, 1)
        self.journaling = Journaling(lambda name: journal if name == "one" else None)

    def keep(self, event: on.Event) -> int:
        """Handle and journal an event; returns the number of entries."""
        return len(self.journaling.keep(self.core, event, [event, *self.core.handle(event).facts]))


SUBMITTED = on.ExperimentSubmitted(at_seconds=0.0, experiment="one", spec=plain_spec(shards=2))
ENDED = on.ExperimentCancelled(at_seconds=1.0, experiment="one", reason="enough")


def test_nothing_is_written_before_it_is_committed() -> None:
    """Those that change results are synced."""
    house = House()
    house.keep(SUBMITTED)
    assert house.memory.held == {}
    assert house.journaling.must_sync
    house.journaling.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted"]
    assert house.memory.synced == [(1, 1)]
    assert not house.journaling.must_sync


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
    house = House()
    spec = plain_spec(shards=2, **fields)
    house.keep(on.ExperimentSubmitted(at_seconds=0.0, experiment="one", spec=spec))
    model = plain_file("m0")
    house.keep(
        on.Prepared(
            at_seconds=1.0, experiment="one", dataset="d", shard_samples=(10, 10), model=model
        )
    )
    house.journaling.commit()
    assert house.keep(on.WorkerJoined(at_seconds=2.0, worker="ann")) == 1
    assert house.journaling.must_sync == must_sync


def test_entries_that_change_no_result_force_no_sync() -> None:
    """Replay needs none of it, and it is synced with the next entry that must be."""
    house = House()
    house.keep(SUBMITTED)
    house.journaling.commit()
    assert house.keep(on.WorkerJoined(at_seconds=1.0, worker="ann")) == 0
    assert not house.journaling.touched
    assert house.keep(on.WorkerLeft(at_seconds=2.0, worker="ann", reason="lunch")) == 0
    assert house.journaling.touched == ("one",)
    assert not house.journaling.must_sync
    house.journaling.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted", "Dismissed"]
    assert house.memory.synced == [(1, 1)]


def test_an_observation_has_its_place_in_the_story() -> None:
    """Before and after the entries that it belongs to."""
    house = House()
    seen = [Observed(experiment="one", line={"kind": word}) for word in ("first", "last")]
    output = house.core.handle(SUBMITTED)
    story = (SUBMITTED, seen[0], *output.facts, seen[1])
    kept = house.journaling.keep(house.core, SUBMITTED, story)
    assert [one.entry for one in kept] == [SUBMITTED]
    house.journaling.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted", "Observed", "Observed"]


def test_after_its_end_nothing_more_is_kept_of_an_experiment() -> None:
    """Its last entry says how it ended."""
    house = House()
    house.keep(SUBMITTED)
    house.keep(ENDED)
    late = on.Evaluated(
        at_seconds=2.0,
        experiment="one",
        round=0,
        evaluation=None,  # type: ignore[arg-type]
    )
    assert house.journaling.keep(house.core, late, [late]) == []
    house.journaling.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted", "Concluded"]


def test_an_experiment_without_a_log_keeps_nothing() -> None:
    """Its folder was never opened here."""
    house = House()
    other = on.ExperimentSubmitted(at_seconds=0.0, experiment="two", spec=plain_spec(shards=2))
    assert house.keep(other) == 0


def test_a_commit_that_failed_may_be_repeated() -> None:
    """No line is lost or written twice."""
    house = House()
    house.keep(SUBMITTED)
    house.memory.refusals = 1
    with pytest.raises(SharedDirectoryError):
        house.journaling.commit()
    assert house.journaling.must_sync
    house.keep(ENDED)
    house.journaling.commit()
    assert house.memory.kinds() == ["ExperimentSubmitted", "Concluded"]


def test_an_experiment_whose_place_is_gone_holds_up_no_other() -> None:
    """The others become durable at once; its own entries wait until its place is back."""
    memories = {"gone": Memory(), "stays": Memory()}
    journals = {name: JournalWriter(memory, 1) for name, memory in memories.items()}
    core, journaling = Scheduler(), Journaling(journals.get)
    memories["gone"].refusals = 2
    for name in memories:
        event = replace(SUBMITTED, experiment=name)
        journaling.keep(core, event, [event, *core.handle(event).facts])
    with pytest.raises(SharedDirectoryError):
        journaling.commit()
    journaling.commit(is_gone={"gone"}.__contains__)
    assert memories["stays"].kinds() == ["ExperimentSubmitted"]
    assert memories["gone"].kinds() == []
    assert journaling.must_sync
    journaling.commit()
    assert memories["gone"].kinds() == ["ExperimentSubmitted"]
    assert not journaling.must_sync


def test_an_experiment_that_ended_without_its_folder_is_forgotten() -> None:
    """Nothing is left to write it to, and no later commit waits for it."""
    house = House()
    house.keep(SUBMITTED)
    house.journaling.commit()
    house.memory.refusals = 1
    house.keep(ENDED)
    house.journaling.commit(is_gone={"one"}.__contains__)
    assert not house.journaling.must_sync
    assert house.journaling.touched == ()
