"""A scheduler whose policy does what a test wishes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from downpour.base.values import AttemptId, Progress
from downpour.core.scheduler import Entry, Scheduler, durable
from downpour.core.scheduler import events as on
from downpour.core.scheduler.invariants import check_invariants
from downpour.core.stragglers.base import POLICIES, Action, Policy, RoundView
from downpour.core.stragglers.pairing import pair
from tests.core.scheduler.conftest import Make
from tests.core.scheduler.outputs import Outcome, all_of


class Stage:
    """A scheduler whose policy pairs, and adds the actions that a test wishes.

    A replica takes in the journaled entries alone, and must get to the same state.
    """

    def __init__(self, make: Make, samples: tuple[int, ...] = (10, 10, 10), **fields: Any) -> None:
        self.make = make
        self.wishes: list[Action] = []
        self.views: list[RoundView] = []
        policy = Policy(decide=self._decide, watches=True)
        policies = {**POLICIES, "wait": policy}
        self.core, self.replica = Scheduler(policies=policies), Scheduler(policies=policies)
        self.now = 0.0
        for worker in ("ann", "bob", "cid", "dot"):
            self.happen(on.WorkerJoined, worker=worker)
        spec = make.spec(shards=len(samples), **fields)
        self.happen(on.ExperimentSubmitted, experiment="one", spec=spec)
        self.happen(
            on.Prepared, experiment="one", dataset="d", shard_samples=samples, model=make.file("m0")
        )

    def _decide(self, view: RoundView) -> list[Action]:
        self.views.append(view)
        wishes, self.wishes = self.wishes, []
        return [*wishes, *pair(view)]

    def happen(self, kind: type[on.Event], **fields: Any) -> list[Outcome]:
        """Let something happen, a second after what was before."""
        self.now += 1.0
        event = kind(at_seconds=self.now, **fields)
        output = self.core.handle(event)
        check_invariants(self.core.state)
        for entry in (event, *output.facts):
            if isinstance(entry, Entry):
                self.replica.replay(self.now, entry)
        assert durable(self.replica.state) == durable(self.core.state)
        return all_of(output)

    def wish(self, *actions: Action) -> list[Outcome]:
        """Have the policy ask for something; returns what comes of it."""
        self.wishes = list(actions)
        return self.happen(on.Tick)

    def publish(self, worker: str, shard: int, attempt: int = 0) -> list[Outcome]:
        """Let a worker publish its update."""
        return self.happen(
            on.UpdatePublished,
            worker=worker,
            attempt=self.make.attempt("one", 0, shard, attempt),
            update=self.make.update(f"u{shard}-{worker}"),
        )

    def hand_over(self, worker: str, shard: int, saved: str) -> list[Outcome]:
        """Let a worker hand its attempt over."""
        attempt = self.make.attempt("one", 0, shard, 0)
        snapshot = self.make.progress(attempt, saved=saved).snapshot
        return self.happen(on.HandedOver, worker=worker, attempt=attempt, snapshot=snapshot)

    def report(self, worker: str, attempt: AttemptId, percent: int) -> None:
        """Let a worker say how far it has come."""
        self.beat(worker, replace(self.make.progress(attempt), steps_done=percent, steps_total=100))

    def beat(self, worker: str, *running: Progress) -> list[Outcome]:
        """Let a worker say that it lives, and how far its attempts are."""
        system = self.make.system()
        return self.happen(on.HeartbeatReceived, worker=worker, running=running, system=system)


def of(commands: list[Outcome], kind: Callable[..., Any]) -> list[Any]:
    """Pick the facts or the commands of a kind."""
    return [command for command in commands if isinstance(command, kind)]  # type: ignore[arg-type]
