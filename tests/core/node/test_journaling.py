"""Which entries are logged, and when they must be durable."""

from collections.abc import Sequence
from typing import Any

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
