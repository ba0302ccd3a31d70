"""Which workers train what: the labels that a spec and its shards need, and those it prefers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.labels import has, missing
from downpour.base.states import WorkerState
from downpour.core.scheduler import Scheduler, facts
from downpour.core.scheduler import events as on
from downpour.core.scheduler.invariants import check_invariants
from downpour.core.stragglers import POLICIES, Action, Policy, RoundView
from downpour.core.stragglers.pairing import pair
from tests.core.scheduler.outputs import all_of

if TYPE_CHECKING:
    from tests.core.scheduler.conftest import Make


class Office:
    """A scheduler whose workers have labels."""

    def __init__(self, make: Make, policies: Mapping[str, Policy] = POLICIES, **spec: Any) -> None:
        self.make = make
        self.core = Scheduler(policies=policies)
        self.happen(on.ExperimentSubmitted, experiment="one", spec=make.spec(**spec))
        self.happen(
            on.Prepared,
            experiment="one",
            dataset="d",
            shard_samples=(10, 10, 10),
            model=make.file("m0"),
        )

    def happen(self, kind: type[on.Event], **fields: Any) -> dict[int, str]:
        """Let something happen; returns which shard went to whom."""
        output = self.core.handle(kind(at_seconds=self.core.state.now_seconds + 1, **fields))
        check_invariants(self.core.state)
        assigned = [one for one in all_of(output) if isinstance(one, facts.Assigned)]
        return {one.attempt.shard: one.worker for one in assigned}

    def join(self, name: str, *labels: str) -> dict[int, str]:
        """Let a worker join."""
        return self.happen(on.WorkerJoined, worker=name, labels=labels)

    def publish(self, worker: str, shard: int) -> dict[int, str]:
        """Let a worker publish its update."""
        attempt, update = self.make.attempt("one", 0, shard, 0), self.make.update(f"u{shard}")
        return self.happen(on.UpdatePublished, worker=worker, attempt=attempt, update=update)

    @property
    def said(self) -> list[str]:
        """The lines that users read."""
        return [decision.text for decision in self.core.state.decisions]


def test_a_worker_that_lacks_what_all_shards_need_trains_nothing(make: Make) -> None:
    """It waits, with a line that says why, until an experiment comes that needs less."""
    office = Office(make, needs=["gpu"])
    assert office.join("plain") == {}
    assert office.join("fast", "gpu=a40") == {0: "fast"}
    assert "no more tasks for plain: it has no label gpu" in office.said
    states = {worker.name: worker.life.state for worker in office.core.state.workers}
    assert states == {"plain": WorkerState.UNFIT, "fast": WorkerState.BUSY}
    assert office.publish("fast", 0) == {1: "fast"}
    office.happen(on.ExperimentSubmitted, experiment="two", spec=make.spec())
    office.happen(on.ExperimentCancelled, experiment="one", reason="enough")
    sizes, model = (10, 10, 10), make.file("m0")
    given = office.happen(
        on.Prepared, experiment="two", dataset="d", shard_samples=sizes, model=model
    )
    assert set(given.values()) == {"plain", "fast"}


def test_nobody_who_fits_is_said_once(make: Make) -> None:
    """All shards wait; a worker with the label ends that."""
    office = Office(make, needs=["gpu", "site=b"])
    waits = "all shards wait for a worker with gpu and site=b: none is here"
    for number in range(3):
        assert office.join(f"w{number}", "site=a", "gpu=a40") == {}
    assert office.said.count(waits) == 1
    assert office.join("w3", "site=b", "gpu=a40") == {0: "w3"}


def test_a_shard_goes_to_where_its_data_lie(make: Make) -> None:
    """Others pass it over, and it passes over others: also after its worker was lost."""
    office = Office(make, shard_needs={"0": ["site=b"]})
    assert office.join("here", "site=a") == {1: "here"}
    assert "shards wait for a worker that is not here: shard 0 for site=b" in office.said
    assert office.join("there", "site=b") == {0: "there"}
    assert office.happen(on.WorkerLost, worker="there", reason="gone") == {}
    assert office.publish("here", 1) == {2: "here"}
    assert office.publish("here", 2) == {}
    assert office.join("there", "site=b") == {0: "there"}


@pytest.mark.parametrize("policy", ["wait", "handoff", "late", "clone", "replace", "mantri"])
def test_no_policy_gives_a_shard_to_a_worker_that_lacks_what_it_needs(
    make: Make, policy: str
) -> None:
    """Whatever else is idle."""
    office = Office(make, policy=policy, shard_needs={"2": ["site=b"]})
    given = [office.join(f"w{number}", "site=a") for number in range(5)]
    assert not any(2 in shards for shards in given)
    assert office.join("w5", "site=b") == {2: "w5"}


def test_a_policy_that_knows_no_needs_cannot_break_them(make: Make) -> None:
    """A user's own policy may ask for anything; the scheduler ignores what may not be."""

    def blind(view: RoundView) -> list[Action]:
        return [*pair(replace(view, barred={}))]

    policies = {**POLICIES, "wait": Policy(decide=blind)}
    office = Office(make, policies, shard_needs={shard: ["site=b"] for shard in "012"})
    assert office.join("here", "site=a") == {}
    assert office.join("there", "site=b") == {1: "there"}


def test_preferred_workers_come_first(make: Make) -> None:
    """Among idle ones, and only there: nobody waits for a better one."""
    office = Office(make, prefers=["gpu", "site=b"])
    office.join("first")
    assert office.publish("first", 0) == {1: "first"}
    office = Office(make, prefers=["gpu", "site=b"])
    office.core = Scheduler()
    for name, labels in (("x", ()), ("y", ("gpu=a40",)), ("z", ("gpu=a40", "site=b"))):
        office.join(name, *labels)
    office.happen(
        on.ExperimentSubmitted, experiment="one", spec=make.spec(prefers=["gpu", "site=b"])
    )
    sizes, model = (10, 10, 10), make.file("m0")
    given = office.happen(
        on.Prepared, experiment="one", dataset="d", shard_samples=sizes, model=model
    )
    assert given == {0: "z", 1: "y", 2: "x"}


LABELS = st.lists(st.sampled_from(["a=1", "a=2", "ab=1", "b=1"]), unique=True)


@given(labels=LABELS, needs=st.lists(st.sampled_from(["a", "ab", "b", "a=1", "c=1"])))
def test_a_need_is_a_whole_label_or_any_with_its_key(labels: list[str], needs: list[str]) -> None:
    """A key is no prefix: ab=1 is no a."""
    for need in needs:
        keys = {label.split("=")[0] for label in labels}
        assert has(labels, need) == (need in labels if "=" in need else need in keys)
    assert missing(labels, needs) == tuple(need for need in needs if not has(labels, need))
