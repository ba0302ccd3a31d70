"""What was kept of an event may end in the middle: the rest follows from what is there."""

from typing import Any
from unittest.mock import Mock

import pytest

from downpour.base.states import ExperimentState, FailureKind
from downpour.base.values import TrialSums
from downpour.core.node.journal import Journaling, JournalWriter
from downpour.core.scheduler import Checkpoint, Scheduler, checkpoint, durable
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from tests.core.scheduler import make
from tests.core.scheduler.stage import Play, of


class Kept(Play):
    """A core and what must be kept of it."""

    def replayed(self, count: int | None = None) -> Scheduler:
        """Return a core that has replayed only the first entries, or all."""
        core = Scheduler()
        for entry in self.entries[:count]:
            core.replay(0.0, entry)
        return core

    def restart(self) -> out.Command:
        """Let another manager take up all entries; return the command with which it begins."""
        self.core = self.replayed()
        (asked,) = self.core.resume()
        return asked


@pytest.fixture
def kept() -> Kept:
    """One shard is being trained by ann, and may not fail."""
    kept = Kept()
    fields: dict[str, Any] = {"epochs": 1, "retries": 0, "evaluate_every": 0}
    kept.submit(1, **fields)
    spec = make.spec(shards=1, **fields)
    kept.happen(on.ExperimentSubmitted, experiment="next", spec=spec)
    kept.join("ann")
    return kept


def test_a_shard_that_failed_too_often_has_failed_without_the_conclusion(kept: Kept) -> None:
    """With the same reason, and the next experiment has its turn."""
    kept.happen(on.WorkerLost, worker="ann", reason="silent")
    assert [type(entry) for entry in kept.entries[-2:]] == [out.GivenUp, out.Concluded]
    assert kept.core.state.experiments["one"].life.state == "failed"
    assert durable(kept.replayed(-1).state) == durable(kept.core.state)


def test_an_experiment_whose_result_is_there_is_finished_without_the_conclusion(kept: Kept) -> None:
    """The result is what counts."""
    kept.publish("ann")
    kept.aggregate()
    kept.happen(on.ModelPublished, experiment="one", model=make.file("model"))
    assert [type(entry) for entry in kept.entries[-2:]] == [on.ModelPublished, out.Concluded]
    assert durable(kept.replayed(-1).state) == durable(kept.core.state)


@pytest.mark.parametrize("shards", [2, 3])
def test_a_restart_sums_nothing_before_its_data_are_there(shards: int) -> None:
    """Neither a whole round nor a part of one."""
    kept = Kept()
    kept.submit(*(1,) * shards)
    kept.join("ann", "bob")
    kept.publish("ann")
    kept.restart()
    kept.join("bob", running=make.attempt("one", 0, 1, 0))
    [accepted] = kept.publish("bob", 1)
    assert isinstance(accepted, out.Accepted)
    ready = kept.prepare(*(1,) * shards)
    assert bool(of(ready, out.Aggregate)) == (shards == 2)


@pytest.mark.parametrize(("validation", "missing"), [(0.0, out.Publish), (0.25, out.Evaluate)])
def test_a_restart_asks_for_what_is_missing_at_the_end(
    validation: float, missing: type[out.Command]
) -> None:
    """The result, or the one test before it."""
    kept = Kept()
    kept.submit(1, epochs=1, validation=validation)
    kept.join("ann")
    kept.publish("ann")
    kept.aggregate()
    part = "validation" if validation else "test"
    measured = make.evaluation()
    kept.happen(on.Evaluated, experiment="one", round=0, evaluation=measured, part=part)
    kept.restart()
    assert [type(command) for command in kept.prepare(1)] == [missing]


def test_the_best_of_a_resumed_experiment_survives_a_restart(kept: Kept) -> None:
    """The best model so far, and the evaluation that an earlier experiment did not make."""
    for name in ("one", "next"):
        kept.happen(on.ExperimentCancelled, experiment=name, reason="over")
    fields = {"init_from": "x", "rounds_before": 5, "best_checksum": "0", "keep_best": "loss"}
    spec = make.spec(shards=1, epochs=9, stop_after=3, **fields)
    kept.happen(on.ExperimentSubmitted, experiment="f", spec=spec)
    best = on.Best(round=-4, value=0.25, model=make.file("best"))
    handed = on.HandedOn(best=best, unevaluated=((-1, make.file("m-1")),))
    kept.prepare(1, name="f", handed_on=handed)
    experiment = kept.replica.state.experiments["f"]
    assert (experiment.best, list(experiment.evaluating)) == (best, [-1])
    assert experiment.rounds == [], "the evaluation may end the training"
    kept.happen(on.Evaluated, experiment="f", round=-1, evaluation=make.evaluation(loss=0.5))
    done = kept.replica.state.experiments["f"]
    assert (done.publishing, done.kept_best) == (True, make.file("best"))
    assert done.why_it_ends == "no better loss since epoch 2"
    assert done.last_evaluation == make.evaluation(loss=0.5)


@pytest.mark.parametrize("failure", [FailureKind.LOST, FailureKind.STORE])
def test_a_checkpoint_keeps_what_decides_about_a_retry(failure: FailureKind) -> None:
    """The workers that may try again, and the wait before a retry."""
    kept = Kept()
    kept.submit(1, 1, mode="fedasync", retries=9)
    kept.join("ann")
    if failure is FailureKind.LOST:
        kept.happen(on.WorkerLost, worker="ann", reason="silent")
    else:
        kept.fail("ann", make.attempt("one", 0, 0, 0), failure, "away")
    active = kept.core.state.active
    assert active is not None
    anew = kept.replayed(2)
    anew.replay(kept.now, checkpoint(active))
    [before], [after] = active.rounds, anew.state.experiments["one"].rounds
    assert after.tasks[0].offer.lost_on == before.tasks[0].offer.lost_on
    assert after.waiting == before.waiting
    assert bool(after.tasks[0].offer.lost_on or after.waiting)


def test_the_lines_outnumber_the_tasks_in_checkpoints() -> None:
    """However far a shard is ahead of the slowest one."""
    core, tasks = Scheduler(), 0
    journal = JournalWriter(Mock(), 1)
    journaling = Journaling({"e": journal}.get, checkpoint_rounds=12)

    def happen(event: on.Event) -> None:
        nonlocal tasks
        kept = journaling.keep(core, event, [event, *core.handle(event).facts])
        checkpoints = [one.entry for one in kept if isinstance(one.entry, Checkpoint)]
        tasks += sum(len(each) for one in checkpoints for each in one.tasks)

    spec = make.spec(mode="fedasync", shards=2, epochs=999)
    happen(on.ExperimentSubmitted(at_seconds=0.0, experiment="e", spec=spec))
    model = make.file("m0")
    happen(
        on.Prepared(at_seconds=0.0, experiment="e", dataset="d", shard_samples=(1, 1), model=model)
    )
    for worker in ("ann", "bob"):
        happen(on.WorkerJoined(at_seconds=0.0, worker=worker))
    for number in range(200):
        attempt, update = make.attempt("e", number, 0, 0), make.update(f"u{number}")
        model = make.file(f"m{number + 1}")
        happen(on.UpdatePublished(at_seconds=0.0, worker="ann", attempt=attempt, update=update))
        happen(on.Aggregated(at_seconds=0.0, experiment="e", round=number, model=model))
    _, lines = journal.under_way
    assert 0 < tasks < len(lines)


def test_the_steps_that_processes_repeat_survive_a_restart(kept: Kept) -> None:
    """The workers of the next manager compare with the same checksums."""
    kept.happen(on.ExperimentCancelled, experiment="one", reason="over")
    trial = TrialSums(numeric_class="torch on cpu", looks=("a", "b", "c"))
    kept.prepare(1, name="next", trial=trial)
    asked = kept.restart()
    assert isinstance(asked, out.Prepare)
    assert asked.trial == trial


def test_a_restart_asks_for_the_same_beginning(kept: Kept) -> None:
    """A core that resumes names the dataset, and takes no other one for it."""
    asked = kept.restart()
    assert isinstance(asked, out.Prepare)
    assert (asked.dataset, asked.model) == ("d", make.file("m0"))
    [fact, *_] = kept.prepare(1, dataset="another")
    assert isinstance(fact, out.Concluded)
    assert fact.ending is ExperimentState.FAILED
    assert "not the one that this experiment began with" in fact.reason
