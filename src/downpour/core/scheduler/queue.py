"""The scheduler's whole state, the queue of its experiments, and the versions that each keeps.

The functions here and in `dispatch`, `updates` and `core` read and change a `SchedulerState`, and
add facts and commands to its output; the state itself decides nothing. Experiments wait, are
prepared, run and end, each in its turn.

With a `model_compression`, a version's file holds its step from the version before. So as long as
we need a version, we keep the earlier ones as well, back to a whole one. All versions from there on
stay, so that a version's number follows from its place among the kept ones.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from downpour.base.states import Ending, ExperimentState
from downpour.base.values import AttemptId, Part, PublishedFile
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import Round, ShardTask, TaskKey
from downpour.core.scheduler.workers import Worker, Workers
from downpour.core.stragglers.base import POLICIES, Policy

# `status` and `watch` show these; the record has the facts of all decisions.
_DECISIONS_KEPT = 12


class TaskContext(NamedTuple):
    """The task of an attempt, with its round and its experiment."""

    experiment: Experiment
    round: Round
    task: ShardTask


class Decision(NamedTuple):
    """A decision about an experiment in words, and its time; not for plain assignments."""

    at_seconds: float
    experiment: str
    text: str


class SchedulerState:
    """All experiments and workers; some experiments are open, the others wait for their turn.

    The `open` ones are in the order in which they began. The first one is the active one: it has
    all workers that it can use, and the next one has the others.

    `patience` scales every timeout (`base/states.py`). At 1, a worker that has sent too few
    heartbeats to learn from counts as lost after 10 s without one. An assignment counts as not
    received if the worker does not mention it for 10 s.

    A worker that does not know the `secret` cannot know which tasks we audit. The `quarantined`
    workers compute wrong; another process of that name has another try. We
    settle no audit before the workers of a manager that `resumed_at_seconds` can register.
    `policies` are the policies that a spec can name. While the state is `replaying` we ask no
    policy, because the decisions come from a journal. A policy last requested a worker at
    `asked_for_workers_at_seconds`. `decisions` are the last few, for people to read; the scheduler
    doesn't use them.
    """

    def __init__(
        self,
        patience: float = 1.0,
        policies: Mapping[str, Policy] = POLICIES,
        secret: bytes = b"",
    ) -> None:
        self.patience = patience
        self.secret = secret
        self.quarantined: dict[str, out.Quarantined] = {}
        self.resumed_at_seconds = -math.inf
        self.policies = policies
        self.workers = Workers()
        self.experiments: dict[str, Experiment] = {}
        self.open: list[Experiment] = []
        self.cause = 0  # the number of the event that it handles
        self.now_seconds = 0.0
        # Two numbers, because a requested worker looks like any other when it joins.
        self.wanted_workers = 0
        self.joined_since = 0
        self.replaying = False
        self.asked_for_workers_at_seconds = -math.inf
        self.output = out.Output()
        self.decisions: deque[Decision] = deque(maxlen=_DECISIONS_KEPT)

    def do(self, command: out.Command) -> None:
        """Ask the driver for something."""
        self.output.commands.append(command)

    def note(self, fact: out.Fact) -> None:
        """Add a fact to the output."""
        self.output.facts.append(replace(fact, cause=self.cause))

    def log(self, text: str) -> None:
        """Log a line about all open experiments, for users who watch them."""
        for experiment in self.open:
            self.decided(experiment.name, text)

    def decided(self, experiment: str, text: str) -> None:
        """Log a line about an experiment, for users who watch it."""
        self.decisions.append(Decision(self.now_seconds, experiment, text))

    @property
    def active(self) -> Experiment | None:
        """The first open experiment, if there is one."""
        return self.open[0] if self.open else None

    def open_as(self, name: str) -> Experiment | None:
        """Return the experiment of that name if it is open."""
        return next((each for each in self.open if each.name == name), None)

    def idle_for(self, experiment: Experiment) -> KeysView[str]:
        """Return the idle workers that an open experiment may have, longest idle first."""
        idle = self.workers.idle_for(experiment.name)
        if experiment is self.active or not idle:
            return idle
        kept = self.kept_for(self.open[: self.open.index(experiment)])
        return dict.fromkeys(name for name in idle if name not in kept).keys()

    def kept_for(self, experiments: Iterable[Experiment]) -> set[str]:
        """Return the idle workers that we keep for open experiments, which may soon use them.

        An experiment uses a worker for each shard, and one more to replace another. Workers that
        had its shards before come first.
        """
        kept: set[str] = set()
        for each in experiments:
            if each.paused or each.training_is_done:
                continue
            watches = self.policies[each.spec.policy].watches
            most = each.spec.shards + max(each.spec.standbys, watches or each.spec.audit > 0)
            running = (worker.running for worker in self.workers)
            most -= sum(one is not None and one.experiment == each.name for one in running)
            homes = set(each.homes.values())
            fitting = (n for n in self.workers.idle_for(each.name) if n not in kept)
            kept.update(sorted(fitting, key=lambda name: name not in homes)[: max(0, most)])
        return kept

    def find(self, attempt: AttemptId, *, set_aside: bool = False) -> TaskContext | None:
        """Return the task of an attempt, or None if no open round has it.

        With `set_aside`, the round may also be one of an experiment that was set aside.
        """
        name = attempt.experiment
        experiment = self.experiments.get(name) if set_aside else self.open_as(name)
        current = experiment.round_of(attempt.round) if experiment else None
        task = current.find(attempt) if current else None
        if experiment is None or current is None or task is None:
            return None
        return TaskContext(experiment, current, task)

    def discard(self, experiment: str, files: tuple[PublishedFile, ...]) -> None:
        """Ask the driver to remove files, if there are any."""
        if files:
            self.do(out.Discard(experiment=experiment, files=files))

    def exclude(self, worker: str, experiment: Experiment, reason: str) -> None:
        """Assign no more tasks of an experiment to a worker that cannot train it."""
        self.workers.exclude(worker, experiment.name, reason)
        self.decided(experiment.name, f"no more tasks for {worker}: {reason}")

    def cancel(self, worker: Worker, reason: str) -> None:
        """Free a worker from its attempt, if it has one, and ask it to stop."""
        attempt = worker.running
        if attempt is not None and self.workers.release(worker.name, attempt):
            self.do(out.Cancel(worker=worker.name, attempt=attempt, reason=reason))

    def record_forecast(self, worker: Worker) -> None:
        """Record the forecast of a worker's update, if it has a new one."""
        context = self.find(worker.running) if worker.running is not None else None
        if worker.remaining is None or worker.forecast == worker.recorded_forecast:
            return
        if context is not None and worker.running is not None:
            worker.recorded_forecast = worker.forecast
            began = context.task.began_at[worker.running.attempt]
            self.note(
                out.ForecastRecorded(
                    worker=worker.name,
                    attempt=worker.running,
                    done=worker.progress.share if worker.progress is not None else began,
                    elapsed_seconds=worker.stepped_seconds,
                    remaining=worker.remaining,
                )
            )


def submitted(state: SchedulerState, event: on.ExperimentSubmitted) -> None:
    """Add an experiment to the queue."""
    # If an answer is lost, the client repeats its submission under the same name.
    if event.experiment in state.experiments:
        return
    experiment = Experiment(event.experiment, event.spec, event.at_seconds)
    experiment.owner, experiment.priority = event.owner, event.priority
    state.experiments[event.experiment] = experiment
    activate_next(state)


def activate_next(state: SchedulerState) -> None:
    """Open the next waiting experiment, unless one is open."""
    if not state.open and (following := next_one(state)) is not None:
        activate(state, following)


def next_one(state: SchedulerState) -> Experiment | None:
    """Return the waiting experiment whose turn comes next, if there is one."""
    return next((each for each in waiting(state) if not each.paused), None)


def activate(state: SchedulerState, experiment: Experiment) -> None:
    """Open a waiting experiment."""
    state.open.append(experiment)
    experiment.life.step("activate")
    prepare(state, experiment)


def waiting(state: SchedulerState) -> list[Experiment]:
    """Return the waiting experiments: by priority, and in the order of submission; paused last."""
    experiments = state.experiments.values()
    waits = (each for each in experiments if each.life.state is ExperimentState.WAITING)
    # Sorting keeps the dictionary's order, which is that of submission.
    return sorted(waits, key=lambda each: (each.paused, -each.priority))


def pause_asked(state: SchedulerState, event: on.PauseAsked) -> None:
    """Pause an experiment, continue it, or change its priority.

    The workers of a paused one hand over if others could continue with the same bytes; otherwise
    they end their tasks.
    """
    experiment = state.experiments.get(event.experiment)
    if experiment is None or experiment.life.state.ended:
        return
    if event.priority is not None and event.priority != experiment.priority:
        experiment.priority = event.priority
        reschedule(state, experiment, "prioritized")
    if event.paused is not None and event.paused != experiment.paused:
        experiment.paused = event.paused
        reschedule(state, experiment, "paused" if event.paused else "continued")
        holders = (one for current in experiment.rounds for one in current.holders())
        for attempt, worker in holders if event.paused and experiment.spec.repeatable else ():
            state.do(out.HandOver(worker=worker, attempt=attempt))
    activate_next(state)


def reschedule(state: SchedulerState, experiment: Experiment, change: out.Change) -> None:
    """Note that an experiment has another place in the queue."""
    name, priority = experiment.name, experiment.priority
    state.decided(name, f"{change}: {priority}" if change == "prioritized" else change)
    state.note(out.Rescheduled(experiment=name, change=change, priority=priority))


def set_aside_if_drained(state: SchedulerState) -> None:
    """Let the next experiment have the workers, once nothing of a paused one goes on."""
    for one in list(state.open):
        if not (one.paused and one.ready and one.life.state is ExperimentState.RUNNING):
            continue
        goes_on = one.preparing or one.applying or one.evaluating or one.training_is_done
        if not goes_on and not any(current.holders() for current in one.rounds):
            set_aside(state, one)


def set_aside(state: SchedulerState, experiment: Experiment) -> None:
    """Put a paused experiment back into the queue, and activate the next one."""
    experiment.life.step("set-aside")
    experiment.ready, experiment.told_waits = False, ""
    _close(state, experiment)
    reschedule(state, experiment, "set aside")
    activate_next(state)


def _close(state: SchedulerState, experiment: Experiment) -> None:
    state.open.remove(experiment)
    # We excluded workers because of this experiment's code or labels; others have their own.
    state.workers.readmit(experiment.name)


def prepare(state: SchedulerState, experiment: Experiment) -> None:
    """Ask the driver to prepare an experiment before its first round or its continuation."""
    experiment.preparing += 1
    state.do(
        out.Prepare(
            experiment=experiment.name,
            spec=experiment.spec,
            dataset=experiment.dataset,
            frozen=experiment.frozen,
            trial=experiment.trial,
            model=experiment.models[-1] if experiment.models else None,
            outer=experiment.outer,
        )
    )


def effect_failed(state: SchedulerState, event: on.EffectFailed) -> None:
    """Fail an experiment because the driver could not carry out a command for it."""
    # An experiment that a user cancelled meanwhile no longer needs its commands.
    experiment = state.open_as(event.experiment)
    if experiment is not None:
        fail(state, experiment, event.reason, asked_wrongly=event.asked_wrongly)


def cancelled(state: SchedulerState, event: on.ExperimentCancelled) -> None:
    """End an experiment that its user has cancelled."""
    experiment = state.experiments.get(event.experiment)
    # An experiment that has ended stays as it is, because the request may have come too late.
    if experiment is not None and experiment.life.may("cancel"):
        experiment.life.step("cancel")
        conclude(state, experiment, ExperimentState.CANCELLED, event.reason)


def disturbed(state: SchedulerState, event: on.Disturbed) -> None:
    """Tell viewers that someone disturbs a process on purpose; this has no other effect."""
    if event.experiment in state.experiments:
        state.decided(event.experiment, f"on purpose: {event.who} {event.what}")


def fail(
    state: SchedulerState,
    experiment: Experiment,
    reason: str,
    *,
    asked_wrongly: bool = False,
    back_to: PublishedFile | None = None,
) -> None:
    """End an experiment that cannot go on; one that continues it begins with a version."""
    experiment.life.step("fail")
    experiment.asked_wrongly = asked_wrongly
    conclude(state, experiment, ExperimentState.FAILED, reason, back_to)


def publish_if_done(state: SchedulerState, experiment: Experiment) -> None:
    """Publish the result if nothing else is outstanding; first run a test if one is due.

    The test measures the best model, or the last one. The best one is published with the last.
    """
    best, kept, last = experiment.best, experiment.kept_best, experiment.model
    if experiment.needs_test and not experiment.testing:
        experiment.testing = True
        number = best.round if best is not None and kept else experiment.rounds_done - 1
        evaluate(state, experiment, number, kept or last, "test")
    if experiment.may_publish:
        experiment.publishing = True
        leading, name = leading_to(experiment, last), experiment.name
        last, kept = experiment.shown(last), kept and experiment.shown(kept)
        state.do(out.Publish(experiment=name, model=last, best=kept, leading=leading))


def evaluate(
    state: SchedulerState, experiment: Experiment, number: int, model: PublishedFile, part: Part
) -> None:
    """Ask the driver to measure the model version of a round, or the mean that it is ahead of."""
    leading, name = leading_to(experiment, model), experiment.name
    model = experiment.shown(model)
    state.do(out.Evaluate(experiment=name, round=number, model=model, part=part, leading=leading))


def model_published(state: SchedulerState, event: on.ModelPublished) -> None:
    """Finish an experiment whose result is published."""
    experiment = state.open_as(event.experiment)
    if experiment is not None and experiment.publishing:
        experiment.result = event.model
        experiment.life.step("finish")
        conclude(state, experiment, ExperimentState.FINISHED, experiment.why_it_ends)


def conclude(
    state: SchedulerState,
    experiment: Experiment,
    ending: Ending,
    reason: str,
    back_to: PublishedFile | None = None,
) -> None:
    """End an experiment, and activate the next one."""
    experiment.reason = reason
    if back_to is not None:
        _go_back(state, experiment, back_to)
    if experiment in state.open:
        _close(state, experiment)
        # We iterate over a copy, because `cancel` removes awaited workers.
        for worker in list(state.workers):
            if worker.running is not None and worker.running.experiment == experiment.name:
                state.cancel(worker, reason)
    # This comes before `Conclude`, because the driver then removes the remaining files.
    state.discard(experiment.name, (*experiment.close(), *spent_models(experiment)))
    state.note(
        out.Concluded(
            experiment=experiment.name,
            ending=ending,
            reason=reason,
            asked_wrongly=experiment.asked_wrongly,
            model=experiment.result,
            back_to=back_to,
        )
    )
    state.do(
        out.Conclude(
            experiment=experiment.name,
            ending=ending,
            kept=experiment.files_of_shards(),
            versions=experiment.files_of_versions(),
            since_outer=tuple(experiment.since_outer),
        )
    )
    activate_next(state)


def _go_back(state: SchedulerState, experiment: Experiment, model: PublishedFile) -> None:
    """Forget later versions and states, so that another experiment continues from a version."""
    state.discard(experiment.name, experiment.files_of_shards())
    experiment.models = experiment.models[: experiment.models.index(model) + 1]
    if experiment.kept_best not in experiment.models:
        experiment.best = None
    experiment.means = {n: mean for n, mean in experiment.means.items() if n == model.name}
    experiment.optimizer_states, experiment.steps, experiment.since_outer = {}, {}, []
    experiment.outer = None


WHOLE_EVERY = 32
"""If the manager publishes versions as steps, one in this many versions is whole, and all workers
read it. That adds one bit per number to what a worker reads for each version. A new worker reads a
whole version and at most 31 steps. In three bits per number, these steps are as large as three
whole versions."""


def is_whole(experiment: Experiment, version: int) -> bool:
    """Whether a version's file holds the whole model; works for the version in the making, too."""
    if not experiment.spec.publishes_steps or version % WHOLE_EVERY == 0 or version < 0:
        return True
    # A version that may become the best one outlives the versions before it.
    if experiment.spec.keep_best is None:
        is_last = experiment.spec.in_step and version == experiment.spec.rounds
        return is_last and not experiment.spec.looks_ahead  # if so, the result is a link to it
    if experiment.spec.in_step:
        return experiment.wants_evaluation(version - 1)
    if version <= experiment.version:
        return version in experiment.evaluated_versions
    return any(map(experiment.wants_evaluation, _ending(experiment)))


def _ending(experiment: Experiment) -> Iterator[int]:
    """Yield the rounds that end with the version in the making."""
    applying = set(experiment.applying)
    for each in experiment.rounds:
        open_tasks = (TaskKey(each.number, t.shard) for t in each.tasks if not t.is_over)
        if not applying.issuperset(open_tasks):
            return
        yield each.number


def leading_to(experiment: Experiment, model: PublishedFile) -> tuple[PublishedFile, ...]:
    """Return the versions whose steps lead to a kept version and its mean, the whole one first.

    The result is empty if these are whole themselves.
    """
    if not experiment.spec.publishes_steps or model == experiment.kept_best:
        return ()
    place = experiment.models.index(model)
    return tuple(experiment.models[_whole_before(experiment, place) : place])


def linked(experiment: Experiment, needed: Collection[str]) -> Sequence[PublishedFile]:
    """Return the versions that must stay because steps lead from them to a needed version.

    `needed` names the needed versions, except the best and the newest ones.
    """
    if not experiment.spec.publishes_steps:
        return ()
    newest = max(0, len(experiment.models) - experiment.kept_newest)
    named = (place for place, file in enumerate(experiment.models) if file.name in needed)
    return experiment.models[_whole_before(experiment, min([newest, *named])) :]


def spent_models(experiment: Experiment) -> tuple[PublishedFile, ...]:
    """Remove and return the versions that are neither kept nor being evaluated, and their means."""
    needed = {file.name for file in (*experiment.evaluating.values(), *experiment.bases())}
    if experiment.spec.stop_if_wrong and experiment.result is None:
        needed |= {each.before.name for each in experiment.unaudited.values()}
    needed |= {file.name for file in (*linked(experiment, needed), *experiment.means.values())}
    # Once there is a result, the best version has its own file beside it.
    if experiment.kept_best is not None and experiment.result is None:
        needed.add(experiment.kept_best.name)
    newest = experiment.kept_newest
    older, experiment.models = experiment.models[:-newest], experiment.models[-newest:]
    experiment.models[:0] = [file for file in older if file.name in needed]
    spent = [file for file in older if file.name not in needed]
    means = (experiment.means.pop(file.name, None) for file in spent)
    return (*spent, *filter(None, means))


def _whole_before(experiment: Experiment, place: int) -> int:
    """Return the place of the whole version from which the steps to a version begin."""
    last = len(experiment.models) - 1
    while place > 0 and not is_whole(experiment, experiment.version - (last - place)):
        place -= 1
    return place
