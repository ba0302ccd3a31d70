"""What cannot succeed is not tried again, and what may succeed later is not tried at once."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.base.states import FailureKind
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.invariants import check_invariants
from tests.core.scheduler.conftest import Make

NAN = "the loss became NaN or infinite by step 3 of 9"
KEY = "KeyError: 'x' (mine.py:12) at step 0"


class Stage:
    """One shard, three retries, and some workers; an attempt fails as soon as it is made."""

    def __init__(
        self, make: Make, *workers: str, patience: float = 1.0, shards: int = 1, **fields: Any
    ) -> None:
        self.make = make
        self.core = Scheduler(patience)
        self.asked: list[out.Assign] = []
        self.assigned: list[out.Assigned] = []
        self.ended: list[out.Concluded] = []
        spec = make.spec(**{"shards": shards, "epochs": 1, "learning_rate": 0.5, **fields})
        for worker in workers:
            self.happen(on.WorkerJoined(at_seconds=0.0, worker=worker))
        self.happen(on.ExperimentSubmitted(at_seconds=0.0, experiment="e", spec=spec))
        self.happen(make.prepared("e", (1,) * shards))

    def happen(self, event: on.Event) -> None:
        """Let the core take in an event."""
        output = self.core.handle(event)
        self.asked += (one for one in output.commands if isinstance(one, out.Assign))
        for fact in output.facts:
            if isinstance(fact, out.Assigned):
                self.assigned.append(fact)
            elif isinstance(fact, out.Concluded):
                self.ended.append(fact)
        check_invariants(self.core.state)

    def fail(self, failure: FailureKind, reason: str, at_seconds: float = 0.0) -> None:
        """Let the last attempt fail."""
        last = self.assigned[-1]
        self.happen(
            on.AttemptFailed(
                at_seconds=at_seconds,
                worker=last.worker,
                attempt=last.attempt,
                failure=failure,
                reason=reason,
            )
        )

    def save(self, step: int, at_seconds: float) -> None:
        """Let the last attempt publish a snapshot."""
        last = self.assigned[-1]
        progress = self.make.progress(last.attempt, steps_done=step, saved=f"s{step}")
        self.happen(self.make.beat(last.worker, progress, at_seconds=at_seconds))

    def lose(self, at_seconds: float) -> None:
        """Lose the worker of the last attempt; another one joins under its name."""
        worker = self.assigned[-1].worker
        self.happen(on.WorkerLost(at_seconds=at_seconds, worker=worker, reason="gone"))
        self.happen(on.WorkerJoined(at_seconds=at_seconds, worker=worker))


def test_an_attempt_that_got_further_is_not_held_against_its_task(make: Make) -> None:
    """A long task ends on workers that die often; without progress the retries still end it."""
    stage = Stage(make, "w1", "w2", retries=2)
    for number in range(1, 30):
        stage.save(number, at_seconds=float(number))
        stage.lose(at_seconds=float(number))
        assert len(stage.assigned) == number + 1
    assert not stage.ended
    for _ in range(3):
        assert not stage.ended
        stage.lose(at_seconds=40.0)
    reason = "shard 0 of round 1 failed 3 times without progress (on w1, w2), last: gone"
    assert [ended.reason for ended in stage.ended] == [reason]


def test_a_dying_worker_that_gets_further_may_try_again_beside_a_busy_one(make: Make) -> None:
    """The shard does not wait for a worker that trains something else all the while."""
    stage = Stage(make, "w1", "w2", shards=2, policy="wait")
    assert [one.worker for one in stage.assigned] == ["w1", "w2"]
    for number in range(1, 5):
        stage.save(number, at_seconds=float(number))
        stage.lose(at_seconds=float(number))
        assert stage.assigned[-1].worker == "w2"
        assert len(stage.assigned) == number + 2


def test_the_same_snapshot_again_is_no_progress(make: Make) -> None:
    """Only the attempt that published it got further."""
    stage = Stage(make, "w1", retries=1)
    stage.save(5, at_seconds=1.0)
    for second in (1.0, 2.0):
        stage.lose(at_seconds=second)
        stage.save(5, at_seconds=second)
    assert not stage.ended
    stage.lose(at_seconds=3.0)
    assert "failed 2 times without progress" in stage.ended[0].reason


def test_a_refused_update_counts_however_far_its_attempt_came(make: Make) -> None:
    """Its snapshots are gone, so the shard begins anew."""
    stage = Stage(make, "w1", retries=0)
    stage.save(5, at_seconds=1.0)
    update, attempt = make.update("u"), stage.assigned[-1].attempt
    stage.happen(on.UpdatePublished(at_seconds=2.0, worker="w1", attempt=attempt, update=update))
    refused = ((0, "altered"),)
    stage.happen(on.AggregationFailed(at_seconds=3.0, experiment="e", round=0, reasons=refused))
    assert stage.ended[0].reason == "shard 0 of round 1 failed once (on w1), last: altered"


def test_progress_makes_no_deterministic_failure_another(make: Make) -> None:
    """What fails alike on two workers would fail everywhere, also far into the task."""
    stage = Stage(make, "w1", "w2", "w3")
    stage.save(2, at_seconds=1.0)
    stage.fail(FailureKind.NON_FINITE, NAN, at_seconds=2.0)
    stage.fail(FailureKind.NON_FINITE, NAN, at_seconds=3.0)
    assert "failed alike on w1 and w2" in stage.ended[0].reason


@pytest.mark.parametrize("kind", [FailureKind.NON_FINITE, FailureKind.TASK])
def test_the_same_failure_on_two_workers_would_happen_everywhere(
    make: Make, kind: FailureKind
) -> None:
    """Two attempts, not four; the reason says why no other worker tries."""
    stage = Stage(make, "w1", "w2", "w3")
    stage.fail(kind, KEY)
    stage.fail(kind, KEY)
    [ended] = stage.ended
    assert len(stage.assigned) == 2
    assert ended.reason.startswith(
        f"shard 0 of round 1 failed alike on w1 and w2, so this is deterministic: {KEY}"
    )


def test_a_deterministic_nan_names_the_learning_rate_first(make: Make) -> None:
    """It is what usually helps, and the value is there to be lowered."""
    stage = Stage(make, "w1", "w2", "w3")
    stage.fail(FailureKind.NON_FINITE, NAN)
    stage.fail(FailureKind.TASK, KEY)
    stage.fail(FailureKind.NON_FINITE, NAN)
    assert stage.ended[0].reason.endswith("; lower learning_rate first (it is 0.5)")


def test_where_one_worker_is_all_there_is_two_trainings_are_enough(make: Make) -> None:
    """No second worker can show whether the first is at fault."""
    stage = Stage(make, "w1")
    stage.fail(FailureKind.TASK, KEY)
    assert not stage.ended
    stage.fail(FailureKind.TASK, KEY)
    assert "failed alike twice on w1" in stage.ended[0].reason


@pytest.mark.parametrize("kind", [FailureKind.STORE, FailureKind.LOST, FailureKind.OUT_OF_MEMORY])
def test_a_failure_of_the_surroundings_is_never_alike(make: Make, kind: FailureKind) -> None:
    """A directory that is away and workers that are lost say nothing of the task."""
    stage = Stage(make, "w1", "w2", "w3", "w4")
    for number in range(4):
        assert not stage.ended
        stage.fail(kind, "the same words", at_seconds=100.0 * number)
        stage.happen(on.WorkerJoined(at_seconds=100.0 * (number + 1), worker="w1"))
    assert "failed 4 times" in stage.ended[0].reason


def test_at_another_step_it_is_another_failure(make: Make) -> None:
    """Then it does not repeat, and another worker may fare better."""
    stage = Stage(make, "w1", "w2", "w3", "w4")
    for step in range(4):
        assert not stage.ended
        stage.fail(FailureKind.TASK, f"KeyError: 'x' at step {step}")
    assert "failed 4 times" in stage.ended[0].reason


def test_a_shard_whose_files_failed_waits_longer_each_time(make: Make) -> None:
    """Its retries are not used up within a moment; half a second, one, two, times the patience."""
    stage = Stage(make, "w1", "w2", "w3", "w4", patience=2.0)
    now = 0.0
    for wait in (1.0, 2.0, 4.0):
        stage.fail(FailureKind.STORE, "Input/output error", at_seconds=now)
        before = len(stage.assigned)
        for worker in ("w1", "w2", "w3", "w4"):
            stage.happen(make.beat(worker, at_seconds=now + wait - 0.1))
        stage.happen(on.Tick(at_seconds=now + wait - 0.1))
        assert len(stage.assigned) == before
        now += wait
        stage.happen(on.Tick(at_seconds=now))
        assert (len(stage.assigned), stage.asked[-1].unread) == (before + 1, True)
    assert not stage.ended


def test_a_version_that_could_not_be_read_is_asked_for_in_one_file(make: Make) -> None:
    """A step needs the versions before it, and one of their files may be gone; a whole one none."""
    stage = Stage(make, "w1", "w2", epochs=3, model_compression="int3")
    assert (stage.asked[-1].leading, stage.asked[-1].unread) == ((), False)
    stage.happen(
        on.UpdatePublished(
            at_seconds=0.0, worker="w1", attempt=stage.assigned[0].attempt, update=make.update("u")
        )
    )
    stage.happen(on.Aggregated(at_seconds=0.0, experiment="e", round=0, model=make.file("m1")))
    assert (stage.asked[-1].leading, stage.asked[-1].unread) == ((make.file("m0"),), False)
    stage.fail(FailureKind.LOST, "it is silent")
    assert not stage.asked[-1].unread
    stage.fail(FailureKind.STORE, "m0: no such file")
    stage.happen(on.Tick(at_seconds=9.0))
    assert len(stage.asked) == 4
    assert stage.asked[-1].unread


def test_only_the_shard_whose_files_failed_waits(make: Make) -> None:
    """All other shards go on, on its worker as well, whose report is a sign of life."""
    stage = Stage(make, "w1", shards=3)
    stage.fail(FailureKind.STORE, "Input/output error", at_seconds=5.0)
    assert [one.attempt.shard for one in stage.assigned] == [0, 1]
    assert [worker.seen_at_seconds for worker in stage.core.state.workers] == [5.0]


def test_a_late_update_of_a_shard_that_waits_counts(make: Make) -> None:
    """It is pending like any other shard without a worker."""
    stage = Stage(make, "w1")
    first = stage.assigned[0].attempt
    stage.fail(FailureKind.STORE, "Input/output error")
    update = make.update("u")
    stage.happen(on.UpdatePublished(at_seconds=0.1, worker="w1", attempt=first, update=update))
    assert stage.core.state.experiments["e"].round is not None
    assert stage.core.state.experiments["e"].round.complete


def test_a_missing_dataset_is_prepared_again_and_costs_no_attempt(make: Make) -> None:
    """The experiment goes on meanwhile, for workers look for the dataset for a while."""
    stage = Stage(make, "w1", retries=0)
    first = stage.assigned[-1]
    missing = on.AttemptFailed(
        at_seconds=1.0,
        worker=first.worker,
        attempt=first.attempt,
        failure=FailureKind.DATASET,
        reason="d/facts.json: no such file",
    )
    commands = stage.core.handle(missing).commands
    [again] = [one for one in commands if isinstance(one, out.Prepare)]
    assert (again.dataset, again.model) == ("d", make.file("m0"))
    assert [one.assigned.worker for one in commands if isinstance(one, out.Assign)] == ["w1"]
    prepared = make.prepared("e", (1,), at_seconds=2.0)
    assert not stage.core.handle(prepared).commands
    check_invariants(stage.core.state)
    assert not stage.ended


def test_a_standby_trains_where_all_others_have_other_code(make: Make) -> None:
    """A shard that was handed back blamelessly is one that no worker has failed at."""
    stage = Stage(make, "w1", "w2", policy="blacklist", standbys=1)
    first = stage.assigned[-1].worker
    stage.fail(FailureKind.OTHER_CODE, "mine.py is another one")
    assert len(stage.assigned) == 2
    assert stage.assigned[-1].worker != first


def test_a_standby_trains_where_all_others_hang(make: Make) -> None:
    """Nobody waits for a worker that makes no step: it may never make one."""
    stage = Stage(make, "w1", "w2", policy="blacklist", standbys=1, shards=2)
    hung = stage.assigned[-1]
    second = 0
    while stage.assigned[-1] is hung:
        second += 4
        for worker in ("w1", "w2"):
            running = (make.progress(hung.attempt, 0),) if worker == hung.worker else ()
            beat = make.beat(worker, *running, at_seconds=float(second))
            stage.happen(beat)
        stage.happen(on.Tick(at_seconds=float(second)))
    again = stage.assigned[-1]
    assert again.worker != hung.worker
    update = make.update("u")
    stage.happen(
        on.UpdatePublished(
            at_seconds=second, worker=again.worker, attempt=again.attempt, update=update
        )
    )
    elsewhere = [one for one in stage.assigned if one.worker != hung.worker]
    assert {one.attempt.shard for one in elsewhere} == {0, 1}
