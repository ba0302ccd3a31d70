"""What workers contribute, as the scheduler knows them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from downpour.base.values import Progress
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler.round_view import SHARDS_MAX, WORKERS_MAX, contributions
from downpour.core.stragglers.base import POLICIES, Policy, RoundView, Saving
from tests.core.scheduler.stage import Play

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
