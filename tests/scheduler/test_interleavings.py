"""Whatever happens in whatever order: the invariants hold, and in the end every experiment ends.

Hypothesis plays the surroundings: workers that come, go, fall silent, answer late, twice or with
nonsense, and effects that fail. A judge who knows the events and the commands, and not the core's
books, says whether what came out was right.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

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

from downpour.scheduler import Scheduler
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.invariants import check_invariants
from downpour.values import AttemptId, FailureKind, PublishedFile, Update

if TYPE_CHECKING:
    from tests.scheduler.conftest import Make

WORKERS = ("ann", "bob", "cid")
EXPERIMENTS = ("one", "two")
NUMBERS = st.sampled_from([-(2**31), -1, 0, 1, 2, 7, 2**31 - 1])

Effect = do.Prepare | do.Aggregate | do.Evaluate | do.Publish


class Judge:
    """Follows commands and keeps what they have promised."""

    def __init__(self) -> None:
        self.specs: dict[str, on.ExperimentSubmitted] = {}
        self.assigned: dict[AttemptId, do.Assign] = {}
        self.contributions: dict[tuple[str, int, int], Update] = {}
        self.aggregated: Counter[tuple[str, int]] = Counter()
        self.newest: dict[str, PublishedFile] = {}
        self.evaluated: Counter[tuple[str, int]] = Counter()
        self.measuring: set[tuple[str, int]] = set()
        self.asked_for: dict[str, PublishedFile] = {}
        self.results: dict[str, PublishedFile] = {}
        self.concluded: dict[str, do.Conclude] = {}
        self.here: set[str] = set()
        self.reported: set[tuple[str, str]] = set()
        self.discarded: set[tuple[str, str]] = set()

    def see(self, scheduler: Scheduler, event: on.Event, commands: list[do.Command]) -> None:
        """Take in what came out of an event; raises AssertionError where that was wrong."""
        self._see_event(event)
        for command in commands:
            assert command.cause == scheduler.events_handled
            self._in_time(command)
            self._see_command(scheduler, event, command)
        assert self.here == set(scheduler.workers.names), "who is gone is dismissed, once"
        if isinstance(event, on.WorkerLeft | on.WorkerLost):
            assert event.worker not in self.here, "who says goodbye is gone"

    def _see_command(  # noqa: C901 - one arm a command
        self, scheduler: Scheduler, event: on.Event, command: do.Command
    ) -> None:
        match command:
            case do.Assign():
                self._assign(command)
            case do.Accept():
                self._accept(event, command)
            case do.GiveUp():
                self._give_up(event, command)
            case do.Aggregate():
                self._aggregate(command)
            case do.Evaluate():
                self.evaluated[command.experiment, command.round] += 1
                self.measuring.add((command.experiment, command.round))
            case do.Publish():
                self._publish(command)
            case do.Discard():
                self._discard(scheduler, command)
            case do.Conclude():
                self._conclude(command)
            case do.Dismiss():
                self.here.remove(command.worker)
            case do.Prepare() | do.Cancel():
                pass

    def _see_event(self, event: on.Event) -> None:
        if isinstance(event, on.ExperimentSubmitted):
            self.specs.setdefault(event.experiment, event)
        if isinstance(event, on.WorkerJoined):
            self.here.add(event.worker)
        if isinstance(event, on.UpdatePublished) and event.attempt in self.assigned:
            self.reported |= {
                (event.attempt.experiment, file.name)
                for file in (event.update.file, event.update.optimizer_state)
                if file is not None
            }
        if isinstance(event, on.Aggregated):
            self.aggregated[event.experiment, event.round] += 1
            self.newest[event.experiment] = event.model
        if isinstance(event, on.Evaluated):
            self.measuring.remove((event.experiment, event.round))
        if isinstance(event, on.ModelPublished) and event.experiment in self.asked_for:
            self.results.setdefault(event.experiment, event.model)

    def _in_time(self, command: do.Command) -> None:
        late = _experiment(command) in self.concluded
        assert not late or isinstance(command, do.Discard), f"{command} comes after the end"

    def _assign(self, command: do.Assign) -> None:
        assert command.worker in self.here, "only who is here is asked"
        assert command.attempt not in self.assigned, "an attempt is made once"
        assert _task(command.attempt) not in self.contributions, "what counts is not done again"
        self.assigned[command.attempt] = command

    def _accept(self, event: on.Event, command: do.Accept) -> None:
        assert isinstance(event, on.UpdatePublished)
        assert (event.attempt, event.update) == (command.attempt, command.update)
        assert command.attempt in self.assigned, "only what was asked for counts"
        assert (command.attempt.experiment, command.update.file.name) not in self.discarded
        assert command.completion_seconds >= 0
        assert _task(command.attempt) not in self.contributions, "a task counts once"
        self.contributions[_task(command.attempt)] = command.update

    def _give_up(self, event: on.Event, command: do.GiveUp) -> None:
        if isinstance(event, on.UpdatesRefused):
            del self.contributions[_task(command.attempt)]
        else:
            assert _task(command.attempt) not in self.contributions

    def _aggregate(self, command: do.Aggregate) -> None:
        name, number = command.experiment, command.round
        shards = range(self.specs[name].spec.shards or 0)
        wanted = tuple(self.contributions[name, number, shard] for shard in shards)
        assert command.updates == wanted, "one update a shard, in shard order"
        assert self.aggregated[name, number] == 0
        assert number == 0 or self.aggregated[name, number - 1] == 1

    def _publish(self, command: do.Publish) -> None:
        name = command.experiment
        assert name not in self.asked_for, "the result is asked for once"
        assert command.model == self.newest[name], "the newest version is the result"
        assert (name, command.model.name) not in self.discarded
        assert self.aggregated[name, self.specs[name].spec.epochs - 1] == 1
        assert not any(who == name for who, _ in self.measuring), "all is measured before"
        self.asked_for[name] = command.model

    def _conclude(self, command: do.Conclude) -> None:
        name = command.experiment
        finished = command.ending == "finished"
        assert finished == (name in self.results), "published and finished are one"
        assert command.model == self.results.get(name)
        self.concluded[name] = command

    def _discard(self, scheduler: Scheduler, command: do.Discard) -> None:
        experiment = scheduler.experiments[command.experiment]
        current = experiment.round
        updates = current.updates() if current else ()
        needed = {file.name for file in experiment.models}
        needed |= {file.name for file in experiment.optimizer_states.values()}
        needed |= {update.file.name for update in updates}
        needed |= {u.optimizer_state.name for u in updates if u.optimizer_state is not None}
        if command.experiment in self.asked_for:
            needed.add(self.asked_for[command.experiment].name)
        names = {file.name for file in command.files}
        assert not names & needed, "a file that is needed stays"
        self.discarded |= {(command.experiment, name) for name in names}

    def see_the_end(self, scheduler: Scheduler) -> None:
        """Say whether all is as it should be when nothing is left to do."""
        assert set(self.concluded) == set(self.specs), "every experiment ends"
        assert self.reported <= self.discarded, "every update's file is removed in the end"
        for name, experiment in scheduler.experiments.items():
            ending, spec = self.concluded[name], experiment.spec
            assert experiment.life.state == ending.ending
            if ending.ending == "finished":
                rounds = range(spec.epochs)
                assert [self.aggregated[name, number] for number in rounds] == [1] * spec.epochs
                measured = any(self.evaluated[name, number] for number in rounds)
                assert measured == (spec.evaluate_every > 0)
                latest = experiment.last_evaluation
                assert latest is None or latest.accuracy == spec.epochs - 1, "the last counts"
                assert ending.model == experiment.result
                assert self.asked_for[name] == experiment.models[-1]
                assert len(experiment.models) <= spec.keep_models


class Surroundings(RuleBasedStateMachine):
    """Everything around the scheduler, at its worst."""

    make: ClassVar[Make]

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.judge = Judge()
        self.now_seconds = 0.0
        self.effects: list[Effect] = []
        self.reports: list[on.UpdatePublished] = []
        self.history: list[tuple[on.Event, list[do.Command]]] = []

    @initialize()
    def begin(self) -> None:
        """There is something to do, and somebody to do it."""
        self.submit("one", keep=True, shards=2, epochs=3, retries=3, keep_models=2)
        self.join("ann")

    # What happens to experiments

    @rule(
        name=st.sampled_from(EXPERIMENTS),
        shards=st.integers(1, 4),
        epochs=st.integers(1, 3),
        retries=st.integers(0, 4),
        evaluate_every=st.integers(0, 2),
        keep_models=st.integers(1, 2),
        keep=st.booleans(),
    )
    def submit(self, name: str, keep: bool, **fields: int) -> None:  # noqa: FBT001 - a strategy's
        """Somebody submits an experiment, perhaps once more."""
        state = "keep" if keep else "reset"
        spec = self.make.spec(optimizer_state=state, **fields)
        self._happen(on.ExperimentSubmitted, experiment=name, spec=spec)

    @rule(name=st.sampled_from(EXPERIMENTS), seldom=st.integers(0, 9))
    def cancel(self, name: str, seldom: int) -> None:
        """Somebody cancels an experiment, be it there or not."""
        if seldom == 0:
            self._happen(on.ExperimentCancelled, experiment=name, reason="no longer wanted")

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

    @precondition(lambda self: any(isinstance(e, do.Aggregate) for e in self.effects))
    @rule(data=st.data())
    def updates_are_refused(self, data: st.DataObject) -> None:
        """The files of some shards turn out to be unusable."""
        effect = next(e for e in self.effects if isinstance(e, do.Aggregate))
        self.effects.remove(effect)
        shards = data.draw(
            st.lists(st.integers(0, len(effect.updates) - 1), min_size=1, unique=True)
        )
        self._happen(
            on.UpdatesRefused,
            experiment=effect.experiment,
            round=effect.round,
            reasons=tuple((shard, "not finite") for shard in shards),
        )

    # What happens to workers

    @rule(worker=st.sampled_from(WORKERS))
    def join(self, worker: str) -> None:
        """A worker registers, perhaps anew."""
        self._happen(on.WorkerJoined, worker=worker)

    @rule(worker=st.sampled_from(WORKERS), politely=st.booleans())
    def go(self, worker: str, politely: bool) -> None:  # noqa: FBT001 - a strategy's
        """A worker goes, if it was there."""
        kind = on.WorkerLeft if politely else on.WorkerLost
        self._happen(kind, worker=worker, reason="gone")

    @rule(worker=st.sampled_from(WORKERS), mentions=st.booleans())
    def beat(self, worker: str, mentions: bool) -> None:  # noqa: FBT001 - a strategy's
        """A worker says that it lives, and perhaps what it is doing."""
        self._beat(worker, mentions=mentions)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]))
    def tick(self, seconds: float) -> None:
        """Time passes."""
        self.now_seconds += seconds
        self._happen(on.Tick)

    # What happens to attempts

    @precondition(lambda self: any(w.running for w in self.scheduler.workers))
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """A worker publishes what it was asked for."""
        busy = [(w.name, w.running) for w in self.scheduler.workers if w.running is not None]
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
        """An attempt fails, or is said to by somebody whose it is not."""
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
        """Somebody speaks of an attempt or a result that there need never have been."""
        attempt = self.make.attempt(name, *numbers)
        if attempt in self.judge.assigned:
            return
        if what == "publish":
            update = self.make.update(f"nonsense-{len(self.history)}")
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
            self._happen(on.ModelPublished, experiment=name, model=self.make.file("nonsense"))
        else:
            running = (self.make.progress(attempt),)
            self._happen(
                on.HeartbeatReceived, worker=worker, running=running, system=self.make.system()
            )

    # What must hold

    @invariant()
    def the_books_agree(self) -> None:
        """After each event everything is as the invariants say."""
        check_invariants(self.scheduler)

    def teardown(self) -> None:
        """Once the faults stop, every experiment ends; and the same events end it the same way."""
        self._happen(on.WorkerJoined, worker="dot")
        for _ in range(1000):
            if not self._step_on():
                break
        self.judge.see_the_end(self.scheduler)
        again = Scheduler()
        for event, commands in self.history:
            assert again.handle(event) == commands

    def _step_on(self) -> bool:
        """Let one thing happen that should; says whether there was one."""
        busy = [(w.name, w.running) for w in self.scheduler.workers if w.running is not None]
        if self.effects:
            self._done(self.effects.pop(0))
        elif busy and busy[0][1] is not None:
            self._publish(busy[0][0], busy[0][1])
        else:
            return False
        check_invariants(self.scheduler)
        return True

    def _beat(self, worker: str, *, mentions: bool) -> None:
        known = self.scheduler.workers.get(worker)
        held = known.running if known and mentions else None
        running = (self.make.progress(held),) if held is not None else ()
        assert self.scheduler.unwanted(worker, running) == []
        self._happen(
            on.HeartbeatReceived, worker=worker, running=running, system=self.make.system()
        )

    def _publish(self, worker: str, attempt: AttemptId) -> None:
        keeps = self.judge.specs[attempt.experiment].spec.optimizer_state == "keep"
        name = f"r{attempt.round}s{attempt.shard}a{attempt.attempt}-{len(self.history)}"
        update = self.make.update(name, keeps_state=keeps)
        self._happen(on.UpdatePublished, worker=worker, attempt=attempt, update=update)

    def _done(self, effect: Effect) -> None:
        name = effect.experiment
        if isinstance(effect, do.Prepare):
            samples = (10,) * (effect.spec.shards or 0)
            first = self.make.file("m0")
            self._happen(on.Prepared, experiment=name, shard_samples=samples, model=first)
        elif isinstance(effect, do.Aggregate):
            model = self.make.file(f"m{effect.round + 1}")
            self._happen(on.Aggregated, experiment=name, round=effect.round, model=model)
        elif isinstance(effect, do.Publish):
            self._happen(on.ModelPublished, experiment=name, model=self.make.file("result"))
        else:
            measure = self.make.evaluation(accuracy=effect.round)
            self._happen(on.Evaluated, experiment=name, round=effect.round, evaluation=measure)

    def _happen(self, kind: type[on.Event], **facts: Any) -> None:
        event = kind(at_seconds=self.now_seconds, **facts)
        commands = self.scheduler.handle(event)
        self.history.append((event, list(commands)))
        if isinstance(event, on.UpdatePublished) and event.attempt in self.judge.assigned:
            self.reports.append(event)
        self.judge.see(self.scheduler, event, commands)
        self.effects += [c for c in commands if isinstance(c, Effect)]


def _experiment(command: do.Command) -> str | None:
    if isinstance(command, do.Dismiss):
        return None
    if isinstance(command, do.Assign | do.Cancel | do.Accept | do.GiveUp):
        return command.attempt.experiment
    return command.experiment


def _task(attempt: AttemptId) -> tuple[str, int, int]:
    return (attempt.experiment, attempt.round, attempt.shard)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("examples", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_nothing_that_happens_breaks_the_scheduler(make: Make, examples: int) -> None:
    """Random interleavings keep the invariants, end every experiment, and replay identically."""
    Surroundings.make = make
    run_state_machine_as_test(
        Surroundings,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
