"""What was kept of an event may end in the middle: the rest follows from what is there."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from downpour.base.states import FailureKind
from downpour.base.values import TrialSums
from downpour.core.node.journal import Journaling, JournalWriter
from downpour.core.scheduler import Checkpoint, Entry, Scheduler, checkpoint, durable
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from tests.core.scheduler.conftest import Make


class Kept:
    """A core and what must be kept of it."""

    def __init__(self) -> None:
        self.core = Scheduler()
        self.entries: list[Entry] = []

    def happen(self, *events: on.Event) -> None:
        """Let the core take in some events."""
        for event in events:
            happened = (event, *self.core.handle(event).facts)
            self.entries += [one for one in happened if isinstance(one, Entry)]

    def replayed(self, count: int) -> Scheduler:
        """Return a core that has replayed only the first entries."""
        core = Scheduler()
        for entry in self.entries[:count]:
            core.replay(0.0, entry)
        return core


@pytest.fixture
def kept(make: Make) -> Kept:
    """One shard is being trained by ann, and may not fail."""
    kept = Kept()
    spec = make.spec(shards=1, epochs=1, retries=0, evaluate_every=0)
    kept.happen(
        on.ExperimentSubmitted(at_seconds=0.0, experiment="e", spec=spec),
        on.ExperimentSubmitted(at_seconds=0.0, experiment="next", spec=spec),
        make.prepared("e", (1,)),
        on.WorkerJoined(at_seconds=0.0, worker="ann"),
    )
    return kept


def test_a_shard_that_failed_too_often_has_failed_without_the_conclusion(kept: Kept) -> None:
    """With the same reason, and the next experiment has its turn."""
    kept.happen(on.WorkerLost(at_seconds=1.0, worker="ann", reason="silent"))
    assert [type(entry) for entry in kept.entries[-2:]] == [out.GivenUp, out.Concluded]
    assert kept.core.state.experiments["e"].life.state == "failed"
    assert durable(kept.replayed(-1).state) == durable(kept.core.state)
    assert durable(kept.replayed(len(kept.entries)).state) == durable(kept.core.state)


def test_an_experiment_whose_result_is_there_is_finished_without_the_conclusion(
    kept: Kept, make: Make
) -> None:
    """The result is what counts."""
    attempt = make.attempt("e", 0, 0, 0)
    kept.happen(
        on.UpdatePublished(at_seconds=1.0, worker="ann", attempt=attempt, update=make.update("u")),
        on.Aggregated(at_seconds=2.0, experiment="e", round=0, model=make.file("m1")),
        on.ModelPublished(at_seconds=3.0, experiment="e", model=make.file("model")),
    )
    assert [type(entry) for entry in kept.entries[-2:]] == [on.ModelPublished, out.Concluded]
    assert durable(kept.replayed(-1).state) == durable(kept.core.state)


@pytest.mark.parametrize("shards", [2, 3])
def test_a_restart_sums_nothing_before_its_data_are_there(make: Make, shards: int) -> None:
    """Neither a whole round nor a part of one."""
    kept = Kept()
    attempts = [make.attempt("e", 0, shard, 0) for shard in (0, 1)]
    kept.happen(
        on.ExperimentSubmitted(at_seconds=0.0, experiment="e", spec=make.spec(shards=shards)),
        make.prepared("e", (1,) * shards),
        on.WorkerJoined(at_seconds=0.0, worker="ann"),
        on.WorkerJoined(at_seconds=0.0, worker="bob"),
        on.UpdatePublished(
            at_seconds=1.0, worker="ann", attempt=attempts[0], update=make.update("u0")
        ),
    )
    core = kept.replayed(len(kept.entries))
    core.resume()
    core.handle(on.WorkerJoined(at_seconds=2.0, worker="bob", running=attempts[1]))
    update = make.update("u1")
    published = on.UpdatePublished(at_seconds=3.0, worker="bob", attempt=attempts[1], update=update)
    assert core.handle(published).commands == []
    ready = core.handle(make.prepared("e", (1,) * shards, at_seconds=4.0)).commands
    assert any(isinstance(command, out.Aggregate) for command in ready) == (shards == 2)


@pytest.mark.parametrize(("validation", "missing"), [(0.0, out.Publish), (0.25, out.Evaluate)])
def test_a_restart_asks_for_what_is_missing_at_the_end(
    make: Make, validation: float, missing: type[out.Command]
) -> None:
    """The result, or the one test before it."""
    kept = Kept()
    spec = make.spec(shards=1, epochs=1, validation=validation)
    attempt = make.attempt("e", 0, 0, 0)
    kept.happen(
        on.ExperimentSubmitted(at_seconds=0.0, experiment="e", spec=spec),
        make.prepared("e", (1,)),
        on.WorkerJoined(at_seconds=0.0, worker="ann"),
        on.UpdatePublished(at_seconds=1.0, worker="ann", attempt=attempt, update=make.update("u")),
        on.Aggregated(at_seconds=2.0, experiment="e", round=0, model=make.file("m1")),
        on.Evaluated(
            at_seconds=3.0,
            experiment="e",
            round=0,
            evaluation=make.evaluation(),
            part="validation" if validation else "test",
        ),
    )
    core = kept.replayed(len(kept.entries))
    core.resume()
    output = core.handle(make.prepared("e", (1,), at_seconds=4.0))
    assert [type(command) for command in output.commands] == [missing]


def test_the_best_of_a_resumed_experiment_survives_a_restart(kept: Kept, make: Make) -> None:
    """The best model so far, and the evaluation that an earlier experiment did not make."""
    kept.happen(on.ExperimentCancelled(at_seconds=1.0, experiment="e", reason="over"))
    kept.happen(on.ExperimentCancelled(at_seconds=1.0, experiment="next", reason="over"))
    fields = {"init_from": "x", "rounds_before": 5, "best_checksum": "0", "keep_best": "loss"}
    spec = make.spec(shards=1, epochs=9, stop_after=3, **fields)
    best = on.Best(round=-4, value=0.25, model=make.file("best"))
    handed = on.HandedOn(best=best, unevaluated=((-1, make.file("m-1")),))
    kept.happen(
        on.ExperimentSubmitted(at_seconds=2.0, experiment="f", spec=spec),
        make.prepared("f", (1,), at_seconds=2.0, handed_on=handed),
    )
    core = kept.replayed(len(kept.entries))
    assert durable(core.state) == durable(kept.core.state)
    experiment = core.state.experiments["f"]
    assert (experiment.best, list(experiment.evaluating)) == (best, [-1])
    assert experiment.rounds == [], "the evaluation may end the training"
    ends = on.Evaluated(
        at_seconds=3.0, experiment="f", round=-1, part="test", evaluation=make.evaluation(loss=0.5)
    )
    kept.happen(ends)
    done = kept.replayed(len(kept.entries)).state.experiments["f"]
    assert (done.publishing, done.kept_best) == (True, make.file("best"))
    assert done.why_it_ends == "no better loss since epoch 2"
    assert done.last_evaluation == make.evaluation(loss=0.5)


@pytest.mark.parametrize("failure", [FailureKind.LOST, FailureKind.STORE])
def test_a_checkpoint_keeps_what_decides_about_a_retry(make: Make, failure: FailureKind) -> None:
    """The workers that may try again, and the wait before a retry."""
    kept = Kept()
    spec = make.spec(mode="fedasync", shards=2, retries=9)
    attempt = make.attempt("e", 0, 0, 0)
    ends: dict[FailureKind, on.Event] = {
        FailureKind.LOST: on.WorkerLost(at_seconds=1.0, worker="ann", reason="silent"),
        FailureKind.STORE: on.AttemptFailed(
            at_seconds=1.0, worker="ann", attempt=attempt, failure=failure, reason="away"
        ),
    }
    kept.happen(
        on.ExperimentSubmitted(at_seconds=0.0, experiment="e", spec=spec),
        make.prepared("e", (1, 1)),
        on.WorkerJoined(at_seconds=0.0, worker="ann"),
        ends[failure],
    )
    active = kept.core.state.active
    assert active is not None
    anew = kept.replayed(2)
    anew.replay(1.0, checkpoint(active))
    [before], [after] = active.rounds, anew.state.experiments["e"].rounds
    assert after.tasks[0].offer.lost_on == before.tasks[0].offer.lost_on
    assert after.waiting == before.waiting
    assert bool(after.tasks[0].offer.lost_on or after.waiting)


def test_the_lines_outnumber_the_tasks_in_checkpoints(make: Make) -> None:
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
    happen(make.prepared("e", (1, 1)))
    for worker in ("ann", "bob"):
        happen(on.WorkerJoined(at_seconds=0.0, worker=worker))
    for number in range(200):
        attempt, update = make.attempt("e", number, 0, 0), make.update(f"u{number}")
        model = make.file(f"m{number + 1}")
        happen(on.UpdatePublished(at_seconds=0.0, worker="ann", attempt=attempt, update=update))
        happen(on.Aggregated(at_seconds=0.0, experiment="e", round=number, model=model))
    _, lines = journal.under_way
    assert 0 < tasks < len(lines)


def test_the_steps_that_processes_repeat_survive_a_restart(kept: Kept, make: Make) -> None:
    """The workers of the next manager compare with the same checksums."""
    kept.happen(on.ExperimentCancelled(at_seconds=1.0, experiment="e", reason="over"))
    trial = TrialSums(numeric_class="torch on cpu", looks=("a", "b", "c"))
    kept.happen(make.prepared("next", (1,), at_seconds=2.0, trial=trial))
    core = kept.replayed(len(kept.entries))
    (asked,) = core.resume()
    assert isinstance(asked, out.Prepare)
    assert asked.trial == trial


def test_a_restart_asks_for_the_same_beginning(kept: Kept, make: Make) -> None:
    """A core that resumes names the dataset, and takes no other one for it."""
    core = kept.replayed(len(kept.entries))
    (asked,) = core.resume()
    assert isinstance(asked, out.Prepare)
    assert asked.dataset == "d"
    assert asked.model == make.file("m0")
    other = on.Prepared(
        at_seconds=1.0, experiment="e", dataset="another", shard_samples=(1,), model=make.file("m0")
    )
    core.handle(other)
    assert core.state.experiments["e"].life.state == "failed"
    assert "not the one that this experiment began with" in core.state.experiments["e"].reason
