"""Asks the policy what to do, and does it; a policy that asks for what cannot be is not heard.

A policy that does not watch is asked when somebody is idle and something is pending. One that
watches is asked also when time has passed or something has happened to a task or a worker. Of
heartbeats there are many, so they lead to a look only once in a twentieth of a task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from statistics import median
from typing import assert_never

from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.books import Books, Decision
from downpour.scheduler.contributions import Contributions
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.round import Round, Task
from downpour.scheduler.viewing import view_of
from downpour.stragglers import (
    POLICIES,
    Action,
    Assignment,
    Close,
    HandOver,
    Request,
    Resize,
    RoundView,
    Withdrawal,
)
from downpour.stragglers.outlook import Outlook
from downpour.values import AttemptId, FailureKind, Forecast, TaskState

_BETWEEN_REQUESTS_SECONDS = 30.0
_SHARDS_NAMED = 4
_QUIET = on.HeartbeatReceived, on.Forecasts, on.Evaluated
_LOOKS_A_TASK = 20
_BETWEEN_LOOKS_SECONDS = 0.1, 0.5
_BETWEEN_LOOKS_SECONDS_A_TASK = 0.005
"""A look takes about 25 microseconds for each running task: half a percent of a core, so often."""


class Directing:
    """What becomes of a policy's wishes; while it is `at_rest`, no policy is asked."""

    def __init__(self, books: Books, contributions: Contributions) -> None:
        self._books = books
        self._contributions = contributions
        self.at_rest = False
        self._asked_for_workers_at = -_BETWEEN_REQUESTS_SECONDS
        self._look_again_at = 0.0

    def decide(self, event: on.Event | None = None) -> None:
        """Let the policy act on what has happened."""
        experiment = self._books.active
        current = experiment.round if experiment else None
        if experiment is None or current is None or not experiment.ready or current.aggregating:
            return
        if self.at_rest:
            return
        self._ask_again(experiment, current)
        current.offer_again(self._books.now_seconds)
        policy = POLICIES[experiment.spec.policy]
        waiting = current.any_pending and self._books.workers.any_idle
        if not waiting and not (policy.watches and self._may_have_news(event)):
            return
        view = view_of(self._books, experiment, current, policy)
        if policy.watches:
            self._look_again_at = view.at_seconds + _between_looks(view)
        for action in policy.decide(view):
            if current.complete:
                return
            self._do(experiment, current, action)

    def _may_have_news(self, event: on.Event | None) -> bool:
        """Whether an event may change what a policy that watches would do."""
        if isinstance(event, on.HeartbeatReceived) and event.running:
            return self._books.now_seconds >= self._look_again_at
        return not isinstance(event, _QUIET)

    def _do(self, experiment: Experiment, current: Round, action: Action) -> None:
        match action:
            case Assignment():
                self._assign(experiment, current, action)
            case Withdrawal():
                self._withdraw(current, action)
            case HandOver():
                self._hand_over(current, action)
            case Close():
                self._close(current, action)
            case Resize():
                self._resize(experiment, current, action)
            case Request():
                self._request(current, action)
            case _:
                assert_never(action)

    def _assign(self, experiment: Experiment, current: Round, action: Assignment) -> None:
        task = _task(current, action.shard)
        if task is None or not task.life.may("assign"):
            return
        if action.worker not in self._books.workers.idle:
            return
        if task.held_by:
            self._decided(current, f"shard {task.shard} to {action.worker}, too: {action.reason}")
        for holder in filter(None, map(self._books.workers.get, task.held_by)):
            self._books.foresee(holder)
        forecast = self._forecast(task, action.worker)
        attempt = current.assign(action.shard, action.worker, self._books.now_seconds)
        now, samples = self._books.now_seconds, task.offer.samples
        self._books.workers.assign(action.worker, attempt, now, samples, forecast)
        asked = self._asked(experiment, current, attempt, action.worker, action.reason)
        self._books.do(replace(asked, forecast=forecast))

    def _asked(
        self, experiment: Experiment, current: Round, attempt: AttemptId, worker: str, reason: str
    ) -> do.Assign:
        """Say all that a worker needs for an attempt."""
        return do.Assign(
            cause=self._books.cause,
            worker=worker,
            attempt=attempt,
            model=experiment.model,
            optimizer_state=experiment.optimizer_states.get(attempt.shard),
            reason=reason,
            snapshot=current.tasks[attempt.shard].snapshot,
            portion=_portion(current, attempt.shard),
        )

    def _ask_again(self, experiment: Experiment, current: Round) -> None:
        """Ask those for their attempts who came back without them."""
        for worker in self._books.workers.take_empty_handed():
            if worker.running is not None and current.find(worker.running) is not None:
                worker.mentioned_at_seconds = worker.advanced_at_seconds = self._books.now_seconds
                reason = "asked again: it came back without it"
                asked = self._asked(experiment, current, worker.running, worker.name, reason)
                self._books.do(do.Repeat(cause=self._books.cause, assignment=asked))

    def _forecast(self, task: Task, name: str) -> Forecast | None:
        """Foresee how long a worker would take for what is left of a task."""
        worker = self._books.workers.get(name)
        if worker is None or worker.pace is None:
            return None
        return worker.pace.times(task.offer.samples * (1 - task.offer.saved))

    def _withdraw(self, current: Round, action: Withdrawal) -> None:
        attempt = _held(current, action.shard, action.worker)
        worker = self._books.workers.get(action.worker)
        if attempt is not None and worker is not None:
            self._decided(
                current, f"shard {action.shard} taken from {action.worker}: {action.reason}"
            )
            self._books.foresee(worker)
            self._books.cancel(worker, action.reason)
            kind = FailureKind.WITHDRAWN
            self._contributions.give_up(action.worker, attempt, kind, action.reason)

    def _hand_over(self, current: Round, action: HandOver) -> None:
        attempt = _held(current, action.shard, action.worker)
        holder = self._books.workers.get(action.worker)
        known = action.meant_for in self._books.workers.names
        if attempt is None or holder is None or not known or action.worker == action.meant_for:
            return
        task = current.tasks[action.shard]
        if action.worker in task.leaving:
            return
        task.leaving[action.worker] = action.meant_for, self._books.now_seconds
        move = f"shard {action.shard} from {action.worker} to {action.meant_for}"
        self._decided(current, f"{move}: {action.reason}")
        self._books.foresee(holder)
        self._books.do(
            do.HandOver(
                cause=self._books.cause,
                worker=action.worker,
                attempt=attempt,
                meant_for=action.meant_for,
                reason=action.reason,
            )
        )

    def _close(self, current: Round, action: Close) -> None:
        missing = tuple(task.shard for task in current.tasks if task.life.may("drop"))
        if not current.published or not missing:
            return
        for attempt, name in current.holders():
            worker = self._books.workers.get(name)
            if worker is None:
                continue
            self._books.foresee(worker)
            if action.leave_running:
                self._books.workers.let_linger(name, attempt)
            else:
                self._books.cancel(worker, action.reason)
        spent = tuple(file for shard in missing for file in current.tasks[shard].files())
        current.drop(missing)
        self._decided(current, f"closed without {_shards(missing)}: {action.reason}")
        self._books.do(
            do.Drop(
                cause=self._books.cause,
                experiment=current.experiment,
                round=current.number,
                shards=missing,
                reason=action.reason,
            )
        )
        self._books.discard(current.experiment, spent)
        self._contributions.aggregate_if_complete(current)

    def _resize(self, experiment: Experiment, current: Round, action: Resize) -> None:
        whole = sum(action.samples) == sum(experiment.shard_samples)
        if current.begun or not whole or min(action.samples) < 1:
            return
        if len(action.samples) != len(current.tasks):
            return
        current.resize(action.samples)
        sizes = f"{min(action.samples)} to {max(action.samples)} samples a shard"
        self._decided(current, f"cut anew, {sizes}: {action.reason}")
        self._books.do(
            do.Resize(
                cause=self._books.cause,
                experiment=current.experiment,
                round=current.number,
                samples=action.samples,
                reason=action.reason,
            )
        )

    def _request(self, current: Round, action: Request) -> None:
        """Ask for a worker, but not again before the last one had time to come."""
        now = self._books.now_seconds
        if now - self._asked_for_workers_at >= _BETWEEN_REQUESTS_SECONDS:
            self._asked_for_workers_at = now
            self._books.wanted_workers += 1
            self._decided(current, f"one more worker is asked for: {action.reason}")
            self._books.do(
                do.RequestWorker(
                    cause=self._books.cause, experiment=current.experiment, reason=action.reason
                )
            )

    def _decided(self, current: Round, what: str) -> None:
        """Keep a decision in words, for whoever watches."""
        said = f"epoch {current.number + 1}: {what}"
        self._books.decisions.append(Decision(self._books.now_seconds, current.experiment, said))

    def handed_over(self, event: on.HandedOver) -> None:
        """Keep what a worker leaves for the one that it is meant for."""
        self._books.workers.hear(event.worker, self._books.now_seconds)
        held = self._books.workers.let_go(event.worker, event.attempt)
        found = self._books.find(event.attempt)
        if found is None or not held:
            if found is None or found.task.snapshot != event.snapshot:
                self._books.discard(event.attempt.experiment, (event.snapshot.file,))
            return
        meant_for, _ = found.task.leaving.get(event.worker, ("", 0.0))
        self._contributions.keep(event.worker, event.attempt, event.snapshot)
        reason = f"handed over after {event.snapshot.share:.0%}"
        kind = FailureKind.HANDED_OVER
        self._contributions.give_up(event.worker, event.attempt, kind, reason)
        if meant_for in self._books.workers.names and found.task.life.state is TaskState.PENDING:
            found.round.mean_for(found.task.shard, meant_for)

    def learn(self, current: Round) -> None:
        """Take note of how fast workers were in a round that is over."""
        paces = {
            task.worker: task.completion_seconds / task.offer.samples
            for task in current.tasks
            if task.worker is not None and task.attempt is not None
            if task.offer.samples and not task.began_at[task.attempt.attempt]
        }
        usual = median(paces.values()) if paces else 0.0
        for name, pace in paces.items():
            worker = self._books.workers.get(name)
            if worker is not None and usual > 0:
                worker.slowness.append(pace / usual)


def _task(current: Round, shard: int) -> Task | None:
    return current.tasks[shard] if 0 <= shard < len(current.tasks) else None


def _held(current: Round, shard: int, worker: str) -> AttemptId | None:
    task = _task(current, shard)
    return task.held_by.get(worker) if task is not None else None


def _shards(numbers: Sequence[int]) -> str:
    """Name shards, the first few of many."""
    named = ", ".join(map(str, numbers[:_SHARDS_NAMED]))
    more = f" and {len(numbers) - _SHARDS_NAMED} more" if len(numbers) > _SHARDS_NAMED else ""
    return f"shard{'s' if len(numbers) > 1 else ''} {named}{more}"


def _between_looks(view: RoundView) -> float:
    """Return the seconds until progress is looked at again: few where tasks are short."""
    shortest, longest = _BETWEEN_LOOKS_SECONDS
    usual = Outlook(view).typical_seconds or 0.0
    affordable = _BETWEEN_LOOKS_SECONDS_A_TASK * len(view.running)
    return min(longest, max(shortest, affordable, usual / _LOOKS_A_TASK))


def _portion(current: Round, shard: int) -> tuple[int, int] | None:
    if not current.resized:
        return None
    ends = list(accumulate(task.offer.samples for task in current.tasks))
    return ends[shard] - current.tasks[shard].offer.samples, ends[shard]
