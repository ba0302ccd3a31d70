"""What a record tells of deaths and their cost."""

from __future__ import annotations

from pathlib import Path

from downpour.record.journal import Journal, read_journal
from downpour.record.record_lines import AssignedLine, AttemptFailedLine, RecordLine
from downpour.record.view import observed
from tests.chaos.watching import Seen, Watcher, until_next_assignment, until_reassignment


def assigned(shard: int, attempt: int, worker: str) -> AssignedLine:
    """A task is given out."""
    return AssignedLine(round=0, shard=shard, attempt=attempt, worker=worker, reason="")


def failed(shard: int, attempt: int, worker: str) -> AttemptFailedLine:
    """It comes to nothing."""
    return AttemptFailedLine(
        round=0, shard=shard, attempt=attempt, worker=worker, failure="lost", reason=""
    )


def story(*told: tuple[float, RecordLine]) -> list[Seen]:
    """Facts, and when each was seen."""
    return [Seen(at_seconds=at, fact=fact) for at, fact in told]


DEATH = story(
    (1.0, assigned(0, 0, "one")),
    (1.0, assigned(1, 0, "two")),
    (5.5, failed(0, 0, "one")),
    (5.5, failed(1, 0, "two")),
    (6.0, assigned(1, 1, "three")),
    (7.0, assigned(0, 1, "three")),
)


def test_a_workers_death_ends_when_its_own_task_is_given_out_again() -> None:
    """Whatever else is given out before."""
    assert until_reassignment(DEATH, "one", 5.0) == 2.0
    assert until_reassignment(DEATH, "two", 5.0) == 1.0


def test_the_death_of_an_idle_worker_costs_nothing() -> None:
    """Neither who never had a task, nor who had lost it before its death."""
    assert until_reassignment(DEATH, "three", 5.0) is None
    assert until_reassignment(DEATH, "one", 5.9) is None


def test_a_managers_death_ends_with_the_next_assignment() -> None:
    """Of whatever task."""
    assert until_next_assignment(DEATH, 5.0) == 1.0
    assert until_next_assignment(DEATH, 7.5) is None


def test_a_watcher_reads_what_is_there_in_the_end(tmp_path: Path) -> None:
    """Lines that come while it looks, and not those that count no more."""
    folder = tmp_path / "experiments" / "one"
    folder.mkdir(parents=True)
    with Watcher(tmp_path) as watcher:
        journal = Journal(folder, 1)
        for shard in range(3):
            journal.append(1, 0.0, observed("one", assigned(shard, 0, "one")))
            journal.commit()
    assert [seen.fact for seen in watcher.story] == [assigned(n, 0, "one") for n in range(3)]
    other = Journal(folder, 2, read_journal(folder)[:1])
    other.append(1, 0.0, observed("one", assigned(2, 0, "one")))
    other.commit()
    watcher._look()
    assert [seen.fact for seen in watcher.story] == [assigned(n, 0, "one") for n in (0, 2)]
