"""How often the scheduler looks at policies, and asks them what each worker contributes."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from downpour.base.values import Progress
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.round_view import SHARDS_MAX, WORKERS_MAX, between_looks, contributions
from downpour.core.stragglers.base import (
    POLICIES,
    Action,
    Decide,
    Handoff,
    Policy,
    RoundView,
    Saving,
)
from downpour.core.stragglers.outlook import Outlook
from downpour.core.stragglers.pairing import pair
from tests.core.scheduler import make
from tests.core.scheduler.stage import Play
from tests.core.stragglers.rounds import round_of, running


def test_where_many_train_a_policy_is_not_asked_after_each_event() -> None:
    """Each look costs time for every task: after every event, a round would cost their square.

    Of a crowd that publishes within a tenth of a second, the policy hears once; a few
    workers are looked at after each update but the last, which ends the round.
    """
    for workers, heard in ((8, 7), (200, 1)):
        crowd = Crowd(workers, shards=workers)
        crowd.all_publish()
        assert len(crowd.looks) == heard


def test_between_two_looks_a_free_worker_gets_the_next_shard() -> None:
    """Where a policy says how; one that does not is asked in full whenever a worker is free."""
    for between, heard in ((pair, 1), (None, 200)):
        crowd = Crowd(200, shards=400, between=between)
        crowd.all_publish()
        assert len(crowd.looks) == heard
        assert crowd.assigned == [(shard, f"w{shard % 200}") for shard in range(400)]


def test_a_worker_that_a_shard_is_handed_over_to_is_kept_free() -> None:
    """It would have to finish another shard first, and the move would be for nothing.

    So it is at each look, and between two looks at a crowd.
    """
    for workers in (8, 200):
        crowd = Crowd(workers, shards=400, between=pair)
        crowd.moves = [Handoff(shard=0, worker="w0", meant_for="w1", reason="")]
        crowd.publish(workers - 1)
        crowd.publish(1)
        crowd.publish(2)
        assert [worker for _, worker in crowd.assigned[workers:]] == [f"w{workers - 1}", "w2"]


@example(published=[0.0, 0.0, 0.0, 9.0], shares=[])
@example(published=[1.0, 9.0], shares=[0.1])
@given(
    published=st.lists(st.sampled_from([0.0, 1.0, 3.0, 4.0, 9.0]), max_size=9),
    shares=st.lists(st.sampled_from([0.0, 0.1, 0.9]), max_size=4),
)
def test_heartbeats_lead_to_a_look_in_each_twentieth_of_a_usual_task(
    published: list[float], shares: list[float]
) -> None:
    """At most ten and at least two a second; many updates alone may show that it is the most."""
    tasks = [running(f"w{shard}", shard, done) for shard, done in enumerate(shares)]
    view = round_of(tasks, published=published)
    usual = Outlook(view).typical_seconds or 0.0
    assert between_looks(view) == min(0.5, max(0.1, usual / 20))


class Crowd:
    """A round in which all have a shard; at each look the policy pairs, and makes the `moves`."""

    def __init__(self, workers: int, shards: int, between: Decide | None = None) -> None:
        self.looks: list[float] = []
        self.moves: list[Action] = []
        self.assigned: list[tuple[int, str]] = []
        self._workers = workers
        watching = Policy(decide=self._decide, watches=True, between=between)
        self._core = Scheduler(policies={**POLICIES, "wait": watching})
        for number in range(workers):
            self._happen(on.WorkerJoined(at_seconds=0.0, worker=f"w{number}"))
        spec = make.spec(shards=shards)
        self._happen(on.ExperimentSubmitted(at_seconds=0.0, experiment="one", spec=spec))
        samples, model = (10,) * shards, make.file("m0")
        self._happen(
            on.Prepared(
                at_seconds=1.0, experiment="one", dataset="d", shard_samples=samples, model=model
            )
        )
        self.looks.clear()

    def all_publish(self) -> None:
        """Let each worker publish its first shard, all within a tenth of a second."""
        for shard in range(self._workers):
            self.publish(shard)

    def publish(self, shard: int) -> None:
        """Let the worker of that number publish the shard of that number."""
        self._happen(
            on.UpdatePublished(
                at_seconds=2.0 + 0.09 * shard / self._workers,
                worker=f"w{shard}",
                attempt=make.attempt("one", 0, shard, 0),
                update=make.update(f"u{shard}"),
            )
        )

    def _happen(self, event: on.Event) -> None:
        for command in self._core.handle(event).commands:
            if isinstance(command, out.Assign):
                self.assigned.append((command.assigned.attempt.shard, command.assigned.worker))

    def _decide(self, view: RoundView) -> list[Action]:
        self.looks.append(view.at_seconds)
        return [*pair(view), *self.moves]


STEPS = 100


class Team(Play):
    """Workers that train an experiment, and report their steps."""

    def __init__(
        self,
        names: Collection[str],
        shards: int,
        policies: Mapping[str, Policy] = POLICIES,
        **spec: Any,
    ) -> None:
        super().__init__(policies=policies)
        self.join(*names, at_seconds=0.0)
        self.submit(*(100,) * shards, at_seconds=0.0, **{"policy": "handoff", **spec})

    def report(self, at_seconds: float, step_seconds: Mapping[str, float]) -> None:
        """Let workers report the steps that they have made by now."""
        for name, seconds in step_seconds.items():
            running, done = self.worker(name).running, int(at_seconds / seconds)
            assert running is not None
            progress = Progress(
                attempt=running,
                steps_done=done,
                steps_total=STEPS,
                elapsed_seconds=done * seconds,
            )
            self.beat(name, progress, at_seconds=at_seconds)

    def told(self, *names: str) -> dict[str, tuple[int, bool]]:
        """Return what is said of workers: percent of the time, and whether they stand by."""
        found = contributions(self.core.state, names)
        return {name: (round(100 * one.share), one.stands_by) for name, one in found.items()}


def test_contributions_follow_from_measured_work() -> None:
    """Nothing is said before three reports of each; then who is slow is known for what it is."""
    team = Team(["ann", "bob", "eve"], shards=4)
    paces = {"ann": 0.1, "bob": 0.1, "eve": 0.4}
    assert team.told("ann", "eve") == {}
    team.report(0.5, paces)
    team.report(1.0, paces)
    assert team.told("ann", "eve") == {}
    for at_seconds in (1.5, 2.0):
        team.report(at_seconds, paces)
    assert team.told("eve") == {"eve": (0, False)}
    assert team.told("ann", "gone") == {"ann": (40, False)}


@pytest.mark.parametrize(
    "fields",
    [{"policy": "wait"}, {"mode": "k-sync", "mode_options": {"k": 2}}, {"overlap": 1}],
    ids=["wait", "k-sync", "overlap"],
)
def test_where_a_round_is_no_plan_of_handoff_nothing_is_said(fields: dict[str, Any]) -> None:
    """Another policy, a round that does not wait for all, or one that overlaps with the next."""
    team = Team(["ann", "bob"], shards=2, **fields)
    for at_seconds in (1.0, 2.0, 3.0, 4.0):
        team.report(at_seconds, {"ann": 0.1, "bob": 0.2})
    assert team.told("ann", "bob") == {}


def test_of_very_many_workers_or_shards_nothing_is_computed() -> None:
    """Not even what the policy would see: each look at 10,000 workers takes a quarter second."""
    asked = []

    def notes(
        view: RoundView, sizes: Sequence[int], names: Collection[str]
    ) -> Mapping[str, Saving]:
        asked.append((len(view.workers), len(sizes), list(names)))
        return {}

    policies = {**POLICIES, "handoff": replace(POLICIES["handoff"], contributions=notes)}
    few = Team([f"w{n}" for n in range(WORKERS_MAX)], 5, policies)
    assert few.told("w3") == {}
    assert asked == [(WORKERS_MAX, 5, ["w3"])]
    many = Team([f"w{n}" for n in range(WORKERS_MAX + 1)], 5, policies)
    assert many.told("w3") == {}
    assert Team(["ann", "bob"], SHARDS_MAX + 1, policies).told("ann") == {}
    assert len(asked) == 1


def test_without_a_round_there_is_nothing_to_say() -> None:
    """No experiment, or one that is being prepared."""
    assert contributions(Scheduler().state, ["ann"]) == {}
    team = Team(["ann", "bob"], shards=2)
    team.happen(on.ExperimentCancelled, experiment="one", reason="enough")
    assert team.told("ann") == {}
