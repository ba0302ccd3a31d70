"""Whatever happens in whatever order: the invariants hold, and in the end every experiment ends.

Hypothesis plays the surroundings: workers that come, go, fall silent, answer late, twice or with
nonsense, and effects that fail. A judge who knows the events and the commands, and not the core's
state, says whether what came out was right.
"""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from downpour.base.states import FailureKind
from downpour.base.values import AttemptId
from downpour.core.modes import MODES
from downpour.core.scheduler import Checkpoint, Entry, Output, Scheduler, checkpoint, durable
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.invariants import check_invariants
from tests.core.scheduler import make
from tests.core.scheduler.judge import Judge

WORKERS = ("ann", "bob", "cid")
EXPERIMENTS = ("one", "two")
NUMBERS = st.sampled_from([-(2**31), -1, 0, 1, 2, 7, 2**31 - 1])

LOSSES = 0.5, 0.75, 0.5, 0.25, 0.25, 0.5

Effect = out.Prepare | out.Aggregate | out.Evaluate | out.Publish


class Surroundings(RuleBasedStateMachine):
    """Everything around the scheduler, at its worst."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.replica = Scheduler()
        self.judge = Judge()
        self.restarts = 0
        self.now_seconds = 0.0
        self.effects: list[Effect] = []
        self.reports: list[on.UpdatePublished] = []
        self.history: list[tuple[on.Event, Output]] = []
        self.kept: list[tuple[float, Entry]] = []

    @initialize()
    def begin(self) -> None:
        """A shard is pending, and a worker is idle."""
        self.submit(
            "one", keep=True, shards=2, epochs=3, retries=3, keep_models=2, evaluate_every=1
        )
        self.join("ann")

    # What happens to experiments

    @rule(
        name=st.sampled_from(EXPERIMENTS),
        shards=st.integers(1, 4),
        epochs=st.integers(1, 4),
        retries=st.integers(0, 4),
        evaluate_every=st.integers(0, 2),
        keep_models=st.integers(1, 2),
        keep=st.booleans(),
        keep_best=st.sampled_from([None, "loss"]),
        stop_after=st.sampled_from([None, 1, 2]),
        validation=st.sampled_from([0.0, 0.5]),
        mode=st.sampled_from(["sync", *MODES]),
        overlap=st.sampled_from([0, 1]),
        model_compression=st.sampled_from(["none", "int3"]),
    )
    def submit(self, name: str, keep: bool, **fields: Any) -> None:  # noqa: FBT001 - a strategy's
        """A client submits an experiment, perhaps for the second time."""
        state = "keep" if keep else "reset"
        if not fields["evaluate_every"]:
            fields |= {"keep_best": None, "stop_after": None, "validation": 0.0}
        if fields.get("mode", "sync") != "sync":
            fields |= {"stop_after": None, "overlap": 0}
        if fields.get("mode") == "easgd":
            fields |= {"model_compression": "none"}
        if fields.get("overlap"):
            fields |= {"stop_after": None}
        spec = make.spec(optimizer_state=state, **fields)
        self._happen(on.ExperimentSubmitted, experiment=name, spec=spec)

    @rule(name=st.sampled_from(EXPERIMENTS), seldom=st.integers(0, 9))
    def cancel(self, name: str, seldom: int) -> None:
        """A client cancels an experiment, which may not exist."""
        if seldom == 0:
            self._happen(on.ExperimentCancelled, experiment=name, reason="no longer wanted")

    @rule(
        name=st.sampled_from(EXPERIMENTS),
        paused=st.booleans() | st.none(),
        priority=st.integers(0, 2) | st.none(),
    )
    def pause(self, name: str, paused: bool | None, priority: int | None) -> None:  # noqa: FBT001
        """A client pauses an experiment, continues it or prioritizes it; it may not exist."""
        self._happen(on.PauseAsked, experiment=name, paused=paused, priority=priority)

    @precondition(lambda self: self.effects)
    @rule(data=st.data())
    def an_effect_is_done(self, data: st.DataObject) -> None:
        """One of the outstanding effects comes back, whichever."""
        index = data.draw(st.integers(0, len(self.effects) - 1))
        self._done(self.effects.pop(index))

    @precondition(lambda self: self.effects)
    @rule(seldom=st.integers(0, 19))
    def an_effect_fails(self, seldom: int) -> None:
        """The oldest effect cannot be done."""
        if seldom == 0:
            name = self.effects.pop(0).experiment
            self._happen(on.EffectFailed, experiment=name, reason="the disk is full")

    @precondition(lambda self: any(isinstance(e, out.Aggregate) for e in self.effects))
    @rule(data=st.data())
    def updates_are_refused(self, data: st.DataObject) -> None:
        """The files of some shards turn out to be unusable."""
        effect = next(e for e in self.effects if isinstance(e, out.Aggregate))
        self.effects.remove(effect)
        shards = data.draw(st.lists(st.sampled_from(effect.shards), min_size=1, unique=True))
        self._happen(
            on.AggregationFailed,
            experiment=effect.experiment,
            round=effect.round,
            reasons=tuple((shard, "not finite") for shard in shards),
        )

    # What happens to the manager

    @rule(seldom=st.integers(0, 9))
    def restart(self, seldom: int) -> None:
        """The manager dies; another takes in what was kept, and asks for what was outstanding."""
        if seldom > 0:
            return
        self.restarts += 1
        before, active = durable(self.scheduler.state), self.scheduler.state.active
        # If none runs, another one may be next by now: one that has a turn again, or is not paused.
        is_settled = active is None or active.life.may("finish")
        self.scheduler, self.replica = self._each_by_itself(), self._each_by_itself()
        self.effects = []
        assert not is_settled or durable(self.scheduler.state) == before
        commands = self.scheduler.resume()
        self.judge.see_a_restart(self.scheduler)
        self.effects += [c for c in commands if isinstance(c, Effect)]

    # What happens to workers

    @rule(worker=st.sampled_from(WORKERS))
    def return_busy(self, worker: str) -> None:
        """A worker registers anew and says what it is doing still."""
        known = self.scheduler.state.workers.get(worker)
        running = known.running if known else None
        self._happen(on.WorkerJoined, worker=worker, running=running)
        known = self.scheduler.state.workers.get(worker)
        assert known is not None
        assert known.running == running or running is None, "it goes on with that"

    @rule(worker=st.sampled_from(WORKERS))
    def join(self, worker: str) -> None:
        """A worker registers, perhaps anew."""
        self._happen(on.WorkerJoined, worker=worker)

    @rule(worker=st.sampled_from(WORKERS), politely=st.booleans())
    def go(self, worker: str, politely: bool) -> None:  # noqa: FBT001 - a strategy's
        """A worker goes, if it was there."""
        kind = on.WorkerLeft if politely else on.WorkerLost
        self._happen(kind, worker=worker, reason="gone")

    @rule(
        worker=st.sampled_from(WORKERS),
        mentions=st.booleans(),
        step=st.integers(1, 3),
        saved=st.sampled_from([None, 1, 2, 3]),
    )
    def beat(
        self,
        worker: str,
        mentions: bool,  # noqa: FBT001 - a strategy's
        step: int,
        saved: int | None,
    ) -> None:
        """A worker says that it lives, and perhaps what it is doing and what it has saved."""
        self._beat(worker, mentions=mentions, step=step, saved=saved)

    @precondition(lambda self: self.judge.assigned)
    @rule(data=st.data(), worker=st.sampled_from(WORKERS))
    def return_astray(self, data: st.DataObject, worker: str) -> None:
        """A worker registers that is at something which is not, or no longer, its own."""
        attempt = data.draw(st.sampled_from(list(self.judge.assigned)[-6:]))
        former = self.scheduler.state.workers.get(worker)
        held = former.running if former is not None and former.is_awaited else None
        self._happen(on.WorkerJoined, worker=worker, running=attempt)
        known = self.scheduler.state.workers.get(worker)
        assert known is not None
        assert known.running in {held, attempt}, "it gets nothing else before that has ended"

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def tick(self, seconds: float) -> None:
        self.now_seconds += seconds
        self._happen(on.Tick)

    # What happens to attempts

    @precondition(lambda self: any(w.running for w in self.scheduler.state.workers))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """A worker publishes what it was asked for."""
        busy = [(w.name, w.running) for w in self.scheduler.state.workers if w.running is not None]
        self._publish(*data.draw(st.sampled_from(busy)))

    @precondition(lambda self: self.judge.assigned)
    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """An attempt succeeds, be it wanted or long forgotten."""
        attempt = data.draw(st.sampled_from(list(self.judge.assigned)[-6:]))
        self._publish(self.judge.assigned[attempt].worker, attempt)

    @precondition(lambda self: self.reports)
    @rule(data=st.data(), worker=st.sampled_from(WORKERS))
    def repeat(self, data: st.DataObject, worker: str) -> None:
        """A report comes again, word for word, perhaps under another name."""
        report = data.draw(st.sampled_from(self.reports[-6:]))
        self._happen(
            on.UpdatePublished, worker=worker, attempt=report.attempt, update=report.update
        )

    @precondition(lambda self: self.judge.assigned)
    @rule(
        data=st.data(),
        worker=st.sampled_from((None, *WORKERS)),
        failure=st.sampled_from(FailureKind),
    )
    def fail(self, data: st.DataObject, worker: str | None, failure: FailureKind) -> None:
        """An attempt fails, or a worker reports the failure of an attempt that it does not have."""
        attempt = data.draw(st.sampled_from(list(self.judge.assigned)[-6:]))
        self._happen(
            on.AttemptFailed,
            worker=worker or self.judge.assigned[attempt].worker,
            attempt=attempt,
            failure=failure,
            reason="it went wrong",
        )

    @rule(
        worker=st.sampled_from((*WORKERS, "stranger")),
        name=st.sampled_from((*EXPERIMENTS, "unknown")),
        numbers=st.tuples(NUMBERS, NUMBERS, NUMBERS) | st.tuples(st.just(0), st.just(0), NUMBERS),
        what=st.sampled_from(["publish", "fail", "beat", "result"]),
    )
    def nonsense(self, worker: str, name: str, numbers: tuple[int, int, int], what: str) -> None:
        """A report names an attempt or a result that may never have been."""
        attempt = make.attempt(name, *numbers)
        if attempt in self.judge.assigned:
            return
        if what == "publish":
            update = make.update(f"nonsense-{len(self.history)}")
            self._happen(on.UpdatePublished, worker=worker, attempt=attempt, update=update)
        elif what == "fail":
            self._happen(
                on.AttemptFailed,
                worker=worker,
                attempt=attempt,
                failure=FailureKind.SPEC,
                reason="nonsense",
            )
        elif what == "result":
            # Not between a restart and its preparation: only a manager's own command publishes a
            # result, and the next manager gives that command afterwards.
            known = self.scheduler.state.experiments.get(name)
            if known is None or known.ready:
                self._happen(on.ModelPublished, experiment=name, model=make.file("nonsense"))
        else:
            running = (make.progress(attempt),)
            self._happen(on.HeartbeatReceived, worker=worker, running=running, system=make.SYSTEM)

    # What must hold

    @invariant()
    def the_states_agree(self) -> None:
        """After each event everything is as the invariants say."""
        check_invariants(self.scheduler.state)

    @invariant()
    def what_was_kept_is_enough(self) -> None:
        """Who takes in only what must survive comes to the same state."""
        assert durable(self.replica.state) == durable(self.scheduler.state)

    def teardown(self) -> None:
        """Once the faults stop, every experiment ends; and the same events end it the same way."""
        self._happen(on.WorkerJoined, worker="dot")
        for name in EXPERIMENTS:
            self._happen(on.PauseAsked, experiment=name, paused=False)
        for _ in range(1000):
            if not self._step_on():
                break
        self.judge.see_the_end(self.scheduler)
        again = Scheduler()
        for event, output in self.history if self.restarts == 0 else ():
            assert again.handle(event) == output

    def _step_on(self) -> bool:
        """Let one thing happen that should; says whether there was one."""
        busy = [(w.name, w.running) for w in self.scheduler.state.workers if w.running is not None]
        if self.effects:
            self._done(self.effects.pop(0))
        elif busy and busy[0][1] is not None:
            self._publish(busy[0][0], busy[0][1])
        elif self._any_waits():
            self.now_seconds += 1.0
            self._beat("dot", mentions=True, step=1, saved=None)
            self._happen(on.Tick)
        else:
            return False
        check_invariants(self.scheduler.state)
        return True

    def _any_waits(self) -> bool:
        """Whether a shard waits for the shared directory to work again."""
        active = self.scheduler.state.active
        return active is not None and any(current.waiting for current in active.rounds)

    def _beat(self, worker: str, *, mentions: bool, step: int, saved: int | None) -> None:
        known = self.scheduler.state.workers.get(worker)
        held = known.running if known and mentions else None
        # A file has one name: of this worker's life, this attempt and this step.
        name = f"{held}-{worker}-{len(self.history)}-s{saved}" if saved and held else None
        running = (make.progress(held, step, name),) if held is not None else ()
        assert self.scheduler.unwanted(worker, running) == []
        self._happen(on.HeartbeatReceived, worker=worker, running=running, system=make.SYSTEM)

    def _publish(self, worker: str, attempt: AttemptId) -> None:
        keeps = self.judge.specs[attempt.experiment].spec.optimizer_state == "keep"
        name = f"r{attempt.round}s{attempt.shard}a{attempt.attempt}-{len(self.history)}"
        update = make.update(name, keeps_state=keeps)
        self._happen(on.UpdatePublished, worker=worker, attempt=attempt, update=update)

    def _done(self, effect: Effect) -> None:
        name = effect.experiment
        if isinstance(effect, out.Prepare):
            samples = (10,) * effect.spec.shards
            first = effect.model or make.file("m0")
            self._happen(
                on.Prepared, experiment=name, dataset="d", shard_samples=samples, model=first
            )
        elif isinstance(effect, out.Aggregate):
            model = make.file(f"m{effect.round + 1}")
            made = {"round": effect.round, "model": model, "parts": effect.parts}
            if effect.elastic:
                made["own"] = tuple(make.file(f"o{effect.round}-{n}") for n in effect.shards)
            self._happen(on.Aggregated, experiment=name, **made)
        elif isinstance(effect, out.Publish):
            self._happen(on.ModelPublished, experiment=name, model=make.file("result"))
        else:
            # The same for a round however often it is evaluated; some rounds are as good as others.
            loss = LOSSES[effect.round % len(LOSSES)]
            measure = make.evaluation(accuracy=effect.round, loss=loss)
            facts = {"round": effect.round, "evaluation": measure, "part": effect.part}
            self._happen(on.Evaluated, experiment=name, **facts)

    def _each_by_itself(self) -> Scheduler:
        """Return a core that has taken in what was kept, each experiment's story alone."""
        alone = {name: Scheduler() for name in self.scheduler.state.experiments}
        for at_seconds, entry in self.kept:
            if entry.experiment in alone:  # not of one that never was
                alone[entry.experiment].replay(at_seconds, entry)
        together = Scheduler()
        replayed = [core.state.experiments[name] for name, core in alone.items()]
        together.take_in(replayed, max(core.state.now_seconds for core in alone.values()))
        return together

    def _begin_anew(self, anew: Checkpoint) -> None:
        """Keep a checkpoint in place of what it stands for."""
        heads = on.ExperimentSubmitted, on.Prepared
        self.kept = [
            (at_seconds, entry)
            for at_seconds, entry in self.kept
            if isinstance(entry, heads) or entry.experiment != anew.experiment
        ]
        self.kept.append((self.now_seconds, anew))
        self.replica = self._each_by_itself()

    def _happen(self, kind: type[on.Event], **facts: Any) -> None:
        event = kind(at_seconds=self.now_seconds, **facts)
        output = self.scheduler.handle(event)
        self.history.append((event, output))
        for entry in (one for one in (event, *output.facts) if isinstance(one, Entry)):
            self.kept.append((self.now_seconds, entry))
            self.replica.replay(self.now_seconds, entry)
        active, opened = self.scheduler.state.active, self.scheduler.state.open
        runs = active is not None and active.round is not None and active.life.may("finish")
        # One that is preparing beside it would begin anew.
        runs = runs and not any(each.life.state == "preparing" for each in opened)
        if active is not None and runs and len(self.history) % 4 == 0:
            self._begin_anew(checkpoint(active))
        if isinstance(event, on.UpdatePublished) and event.attempt in self.judge.assigned:
            self.reports.append(event)
        self.judge.see(self.scheduler, event, output)
        self.effects += [c for c in output.commands if isinstance(c, Effect)]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_that_happens_breaks_the_scheduler(examples: int) -> None:
    """Random interleavings keep the invariants, end every experiment, and replay identically."""
    run_state_machine_as_test(
        Surroundings,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
