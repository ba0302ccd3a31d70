"""Schedulers that a test leads from event to event."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, Progress
from downpour.core.scheduler import Entry, Scheduler, durable
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.invariants import check_invariants
from downpour.core.scheduler.workers import Worker
from downpour.core.stragglers.base import POLICIES, Action, Policy, RoundView
from downpour.core.stragglers.pairing import pair
from tests.core.scheduler import make

Outcome = out.Fact | out.Command


class Play:
    """A scheduler whose invariants hold after each event.

    A replica takes in the journaled entries alone, and must get to the same state.
    """

    def __init__(self, *, patience: float = 1.0, policies: Mapping[str, Policy] = POLICIES) -> None:
        self.core, self.replica = (Scheduler(patience, policies=policies) for _ in range(2))
        self.entries: list[Entry] = []
        self.happened: list[Outcome] = []
        self.now = 0.0

    def happen(
        self, kind: type[on.Event], at_seconds: float | None = None, **fields: Any
    ) -> list[Outcome]:
        """Let something happen, by default a second after what was before; return what follows."""
        self.now = self.now + 1.0 if at_seconds is None else at_seconds
        event = kind(at_seconds=self.now, **fields)
        output = self.core.handle(event)
        check_invariants(self.core.state)
        for entry in (event, *output.facts):
            if isinstance(entry, Entry):
                self.entries.append(entry)
                self.replica.replay(self.now, entry)
        assert durable(self.replica.state) == durable(self.core.state)
        following = [*output.facts, *output.commands]
        self.happened += following
        return following

    @property
    def assigned(self) -> list[out.Assigned]:
        return of(self.happened, out.Assigned)

    def join(self, *workers: str, at_seconds: float | None = None, **fields: Any) -> list[Outcome]:
        """Let workers register; return what follows from the last one."""
        happened: list[Outcome] = []
        for worker in workers:
            happened = self.happen(on.WorkerJoined, at_seconds, worker=worker, **fields)
        return happened

    def submit(
        self, *samples: int, name: str = "one", at_seconds: float | None = None, **spec: Any
    ) -> list[Outcome]:
        """Submit an experiment with shards of these sizes, and prepare it."""
        resolved = make.spec(shards=len(samples), **spec)
        self.happen(on.ExperimentSubmitted, at_seconds, experiment=name, spec=resolved)
        return self.prepare(*samples, name=name, at_seconds=at_seconds)

    def prepare(
        self, *samples: int, name: str = "one", at_seconds: float | None = None, **more: Any
    ) -> list[Outcome]:
        """Cut an experiment's data into shards of these sizes."""
        made = {"dataset": "d", "model": make.file("m0"), **more}
        return self.happen(on.Prepared, at_seconds, experiment=name, shard_samples=samples, **made)

    def publish(
        self, worker: str, shard: int = 0, attempt: int = 0, number: int = 0, **more: Any
    ) -> list[Outcome]:
        """Let a worker publish its update of a shard in a round."""
        fields = {"update": make.update(f"u{number}-{shard}-{worker}"), **more}
        made = make.attempt("one", number, shard, attempt)
        return self.happen(on.UpdatePublished, worker=worker, attempt=made, **fields)

    def aggregate(self, number: int = 0, **more: Any) -> list[Outcome]:
        """Make the version after this one."""
        fields = {"round": number, "model": make.file(f"m{number + 1}"), **more}
        return self.happen(on.Aggregated, experiment="one", **fields)

    def fail(
        self,
        worker: str,
        attempt: AttemptId,
        kind: FailureKind,
        reason: str,
        at_seconds: float | None = None,
    ) -> list[Outcome]:
        told = {"attempt": attempt, "failure": kind, "reason": reason}
        return self.happen(on.AttemptFailed, at_seconds, worker=worker, **told)

    def beat(
        self, worker: str, *running: Progress, at_seconds: float | None = None
    ) -> list[Outcome]:
        """Let a worker say that it lives, and how far its attempts are."""
        told = {"running": running, "system": make.SYSTEM}
        return self.happen(on.HeartbeatReceived, at_seconds, worker=worker, **told)

    def worker(self, name: str) -> Worker:
        """Return a worker that is here."""
        worker = self.core.state.workers.get(name)
        assert worker is not None
        return worker

    @property
    def said(self) -> list[str]:
        """The lines that users read."""
        return [decision.text for decision in self.core.state.decisions]


class Stage(Play):
    """A scheduler of four workers whose policy pairs, and adds the actions that a test wishes."""

    def __init__(self, samples: tuple[int, ...] = (10, 10, 10), **spec: Any) -> None:
        self.wishes: list[Action] = []
        self.views: list[RoundView] = []
        policy = Policy(decide=self._decide, watches=True)
        super().__init__(policies={**POLICIES, "wait": policy})
        self.join("ann", "bob", "cid", "dot")
        self.submit(*samples, **spec)

    def _decide(self, view: RoundView) -> list[Action]:
        self.views.append(view)
        wishes, self.wishes = self.wishes, []
        return [*wishes, *pair(view)]

    def wish(self, *actions: Action) -> list[Outcome]:
        """Have the policy ask for something; returns what comes of it."""
        self.wishes = list(actions)
        return self.happen(on.Tick)

    def hand_over(self, worker: str, shard: int, saved: str) -> list[Outcome]:
        """Let a worker hand its attempt over."""
        attempt = make.attempt("one", 0, shard, 0)
        snapshot = make.progress(attempt, saved=saved).snapshot
        return self.happen(on.HandedOver, worker=worker, attempt=attempt, snapshot=snapshot)

    def report(self, worker: str, attempt: AttemptId, percent: int) -> None:
        """Let a worker say how far it has come."""
        self.beat(worker, replace(make.progress(attempt), steps_done=percent, steps_total=100))


def of(happened: list[Outcome], kind: Any) -> list[Any]:
    """Pick the facts or the commands of a kind."""
    return [one for one in happened if isinstance(one, kind)]
