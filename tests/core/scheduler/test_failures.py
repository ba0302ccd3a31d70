"""What cannot succeed is not tried again, and what may succeed later is not tried at once."""

from typing import Any

import pytest

from downpour.base.states import FailureKind
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from tests.core.scheduler import make
from tests.core.scheduler.stage import Play, of

NAN = "the loss became NaN or infinite by step 3 of 9"
KEY = "KeyError: 'x' (mine.py:12) at step 0"


class Tried(Play):
    """One shard, three retries, and some workers; an attempt fails as soon as it is made."""

    def __init__(self, *workers: str, patience: float = 1.0, shards: int = 1, **spec: Any) -> None:
        super().__init__(patience=patience)
        self.join(*workers, at_seconds=0.0)
        self.submit(*(1,) * shards, at_seconds=0.0, **{"epochs": 1, "learning_rate": 0.5, **spec})

    @property
    def asked(self) -> out.Assign:
        """The last request to a worker."""
        asked: out.Assign = of(self.happened, out.Assign)[-1]
        return asked

    @property
    def why(self) -> str | None:
        """Why the experiment has ended; None while it goes on."""
        return next((fact.reason for fact in of(self.happened, out.Concluded)), None)

    def fails(self, kind: FailureKind, reason: str, at_seconds: float | None = None) -> None:
        """Let the last attempt fail."""
        last = self.assigned[-1]
        self.fail(last.worker, last.attempt, kind, reason, at_seconds)

    def save(self, step: int) -> None:
        """Let the last attempt publish a snapshot."""
        last = self.assigned[-1]
        self.beat(last.worker, make.progress(last.attempt, steps_done=step, saved=f"s{step}"))

    def lose(self) -> None:
        """Lose the worker of the last attempt; another one joins under its name."""
        worker = self.assigned[-1].worker
        self.happen(on.WorkerLost, worker=worker, reason="gone")
        self.join(worker)


def test_an_attempt_that_got_further_is_not_held_against_its_task() -> None:
    """A long task ends on workers that die often; without progress the retries still end it."""
    stage = Tried("w1", "w2", retries=2)
    for number in range(1, 30):
        stage.save(number)
        stage.lose()
        assert len(stage.assigned) == number + 1
    assert stage.why is None
    for _ in range(3):
        assert stage.why is None
        stage.lose()
    reason = "shard 0 of round 1 failed 3 times without progress (on w1, w2), last: gone"
    assert stage.why == reason


def test_a_dying_worker_that_gets_further_may_try_again_beside_a_busy_one() -> None:
    """The shard does not wait for a worker that trains something else all the while."""
    stage = Tried("w1", "w2", shards=2, policy="wait")
    assert [one.worker for one in stage.assigned] == ["w1", "w2"]
    for number in range(1, 5):
        stage.save(number)
        stage.lose()
        assert stage.assigned[-1].worker == "w2"
        assert len(stage.assigned) == number + 2


def test_the_same_snapshot_again_is_no_progress() -> None:
    """Only the attempt that published it got further."""
    stage = Tried("w1", retries=1)
    stage.save(5)
    for _ in range(2):
        stage.lose()
        stage.save(5)
    assert stage.why is None
    stage.lose()
    assert "failed 2 times without progress" in str(stage.why)


def test_a_refused_update_counts_however_far_its_attempt_came() -> None:
    """Its snapshots are gone, so the shard begins anew."""
    stage = Tried("w1", retries=0)
    stage.save(5)
    stage.publish("w1")
    stage.happen(on.AggregationFailed, experiment="one", round=0, reasons=((0, "altered"),))
    assert str(stage.why) == "shard 0 of round 1 failed once (on w1), last: altered"


def test_progress_makes_no_deterministic_failure_another() -> None:
    """What fails alike on two workers would fail everywhere, also far into the task."""
    stage = Tried("w1", "w2", "w3")
    stage.save(2)
    stage.fails(FailureKind.NON_FINITE, NAN, at_seconds=2.0)
    stage.fails(FailureKind.NON_FINITE, NAN, at_seconds=3.0)
    assert "failed alike on w1 and w2" in str(stage.why)


@pytest.mark.parametrize("kind", [FailureKind.NON_FINITE, FailureKind.TASK])
def test_the_same_failure_on_two_workers_would_happen_everywhere(kind: FailureKind) -> None:
    """Two attempts, not four; the reason says why no other worker tries."""
    stage = Tried("w1", "w2", "w3")
    stage.fails(kind, KEY)
    stage.fails(kind, KEY)
    assert len(stage.assigned) == 2
    assert str(stage.why).startswith(
        f"shard 0 of round 1 failed alike on w1 and w2, so this is deterministic: {KEY}"
    )


def test_a_deterministic_nan_names_the_learning_rate_first() -> None:
    """It is what usually helps, and the value is there to be lowered."""
    stage = Tried("w1", "w2", "w3")
    stage.fails(FailureKind.NON_FINITE, NAN)
    stage.fails(FailureKind.TASK, KEY)
    stage.fails(FailureKind.NON_FINITE, NAN)
    assert str(stage.why).endswith("; lower learning_rate first (it is 0.5)")


def test_where_one_worker_is_all_there_is_two_trainings_are_enough() -> None:
    """No second worker can show whether the first is at fault."""
    stage = Tried("w1")
    stage.fails(FailureKind.TASK, KEY)
    assert stage.why is None
    stage.fails(FailureKind.TASK, KEY)
    assert "failed alike twice on w1" in str(stage.why)


@pytest.mark.parametrize("kind", [FailureKind.STORE, FailureKind.LOST, FailureKind.OUT_OF_MEMORY])
def test_a_failure_of_the_surroundings_is_never_alike(kind: FailureKind) -> None:
    """A directory that is away and workers that are lost say nothing of the task."""
    stage = Tried("w1", "w2", "w3", "w4")
    for number in range(4):
        assert stage.why is None
        stage.fails(kind, "the same words", at_seconds=100.0 * number)
        stage.join("w1", at_seconds=100.0 * (number + 1))
    assert "failed 4 times" in str(stage.why)


def test_at_another_step_it_is_another_failure() -> None:
    """Then it does not repeat, and another worker may fare better."""
    stage = Tried("w1", "w2", "w3", "w4")
    for step in range(4):
        assert stage.why is None
        stage.fails(FailureKind.TASK, f"KeyError: 'x' at step {step}")
    assert "failed 4 times" in str(stage.why)


def test_a_shard_whose_files_failed_waits_longer_each_time() -> None:
    """Its retries are not used up within a moment; half a second, one, two, times the patience."""
    stage = Tried("w1", "w2", "w3", "w4", patience=2.0)
    now = 0.0
    for wait in (1.0, 2.0, 4.0):
        stage.fails(FailureKind.STORE, "Input/output error", at_seconds=now)
        before = len(stage.assigned)
        for worker in ("w1", "w2", "w3", "w4"):
            stage.beat(worker, at_seconds=now + wait - 0.1)
        stage.happen(on.Tick, now + wait - 0.1)
        assert len(stage.assigned) == before
        now += wait
        stage.happen(on.Tick, now)
        assert (len(stage.assigned), stage.asked.unread) == (before + 1, True)
    assert stage.why is None


def test_a_version_that_could_not_be_read_is_asked_for_in_one_file() -> None:
    """A step needs the versions before it, and one of their files may be gone; a whole one none."""
    stage = Tried("w1", "w2", epochs=3, model_compression="int3")
    assert (stage.asked.leading, stage.asked.unread) == ((), False)
    stage.publish("w1")
    stage.aggregate()
    assert (stage.asked.leading, stage.asked.unread) == ((make.file("m0"),), False)
    stage.fails(FailureKind.LOST, "it is silent")
    assert not stage.asked.unread
    stage.fails(FailureKind.STORE, "m0: no such file")
    stage.happen(on.Tick, 9.0)
    assert len(of(stage.happened, out.Assign)) == 4
    assert stage.asked.unread


def test_only_the_shard_whose_files_failed_waits() -> None:
    """All other shards go on, on its worker as well, whose report is a sign of life."""
    stage = Tried("w1", shards=3)
    stage.fails(FailureKind.STORE, "Input/output error", at_seconds=5.0)
    assert [one.attempt.shard for one in stage.assigned] == [0, 1]
    assert [worker.seen_at_seconds for worker in stage.core.state.workers] == [5.0]


def test_a_late_update_of_a_shard_that_waits_counts() -> None:
    """It is pending like any other shard without a worker."""
    stage = Tried("w1")
    stage.fails(FailureKind.STORE, "Input/output error", at_seconds=0.0)
    stage.publish("w1", at_seconds=0.1)
    current = stage.core.state.experiments["one"].round
    assert current is not None
    assert current.complete


def test_a_missing_dataset_is_prepared_again_and_costs_no_attempt() -> None:
    """The experiment goes on meanwhile, for workers look for the dataset for a while."""
    stage = Tried("w1", retries=0)
    before = len(stage.happened)
    stage.fails(FailureKind.DATASET, "d/facts.json: no such file")
    happened = stage.happened[before:]
    [again] = of(happened, out.Prepare)
    assert (again.dataset, again.model) == ("d", make.file("m0"))
    assert [one.assigned.worker for one in of(happened, out.Assign)] == ["w1"]
    assert stage.prepare(1) == []
    assert stage.why is None


def test_a_standby_trains_where_all_others_have_other_code() -> None:
    """A shard that was handed back blamelessly is one that no worker has failed at."""
    stage = Tried("w1", "w2", policy="blacklist", standbys=1)
    first = stage.assigned[-1].worker
    stage.fails(FailureKind.OTHER_CODE, "mine.py is another one")
    assert len(stage.assigned) == 2
    assert stage.assigned[-1].worker != first


def test_a_standby_trains_where_all_others_hang() -> None:
    """Nobody waits for a worker that makes no step: it may never make one."""
    stage = Tried("w1", "w2", policy="blacklist", standbys=1, shards=2)
    hung = stage.assigned[-1]
    second = 0
    while stage.assigned[-1] is hung:
        second += 4
        for worker in ("w1", "w2"):
            running = (make.progress(hung.attempt, 0),) if worker == hung.worker else ()
            stage.beat(worker, *running, at_seconds=float(second))
        stage.happen(on.Tick, float(second))
    again = stage.assigned[-1]
    assert again.worker != hung.worker
    stage.publish(again.worker, again.attempt.shard, again.attempt.attempt)
    elsewhere = [one for one in stage.assigned if one.worker != hung.worker]
    assert {one.attempt.shard for one in elsewhere} == {0, 1}
