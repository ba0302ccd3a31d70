"""Which workers train what: the labels that a spec and its shards need, and those it prefers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.states import FailureKind
from downpour.base.values import has, missing
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.stragglers.base import POLICIES, Action, Policy, RoundView
from downpour.core.stragglers.pairing import pair
from tests.core.scheduler import make
from tests.core.scheduler.stage import Outcome, Play, of


def placed(happened: list[Outcome]) -> dict[int, str]:
    """Return which shard went to whom."""
    return {one.attempt.shard: one.worker for one in of(happened, out.Assigned)}


class Office(Play):
    """A scheduler of an experiment with three shards, whose workers have labels."""

    def __init__(self, policies: Mapping[str, Policy] = POLICIES, **spec: Any) -> None:
        super().__init__(policies=policies)
        self.submit(10, 10, 10, **spec)

    def given(self, name: str, *labels: str) -> dict[int, str]:
        """Let a worker join; return which shard went to whom."""
        return placed(self.join(name, labels=labels))

    def trained(self, worker: str, shard: int) -> dict[int, str]:
        """Let a worker publish its update; return which shard went to whom."""
        return placed(self.publish(worker, shard))

    def refuse(self, worker: str, shard: int = 0) -> None:
        """Let a worker find that it cannot train the experiment."""
        failed = make.attempt("one", 0, shard, 0)
        self.fail(worker, failed, FailureKind.OTHER_CODE, OTHER)

    def tick(self, seconds: int) -> None:
        for _ in range(seconds):
            for worker in list(self.core.state.workers.names):
                self.beat(worker)
            self.happen(on.Tick)


OTHER = "mine.py has changed"


def test_a_worker_that_lacks_a_needed_label_trains_nothing() -> None:
    """It waits, with a line that says why, until an experiment comes that needs less."""
    office = Office(needs=["gpu"])
    assert office.given("plain") == {}
    assert office.given("fast", "gpu=a40") == {0: "fast"}
    assert "no more tasks for plain: it has no label gpu" in office.said
    assert list(office.core.state.workers.unfit_for("one")) == ["plain"]
    assert office.trained("fast", 0) == {1: "fast"}
    office.happen(on.ExperimentSubmitted, experiment="two", spec=make.spec())
    office.happen(on.ExperimentCancelled, experiment="one", reason="enough")
    assert set(placed(office.prepare(10, 10, 10, name="two")).values()) == {"plain", "fast"}


def unfit_two(**spec: Any) -> Office:
    """Return a scheduler with two workers that cannot train its experiment, and another waiting."""
    office = Office(**spec)
    office.join("w1", "w2")
    office.happen(on.ExperimentSubmitted, experiment="two", spec=make.spec())
    office.refuse("w1")
    office.refuse("w2", shard=1)
    return office


def test_where_all_workers_are_unfit_the_reason_is_said_at_once() -> None:
    """With their names; soon the experiment fails with it, and the next one begins."""
    office = unfit_two()
    one, two = office.core.state.experiments.values()
    why = f"no worker here can train it: {OTHER} (w2, w1)"
    assert office.said[-1] == one.told_waits
    assert one.told_waits in {why, why.replace("w2, w1", "w1, w2")}
    office.tick(5)
    assert (one.life.state, office.said.count(one.told_waits)) == ("running", 1)
    office.tick(4)
    assert one.life.state == "running"
    office.tick(1)  # half a minute is over
    assert (one.life.state, one.reason) == ("failed", one.told_waits)
    assert not one.asked_wrongly
    assert two.life.state == "preparing"
    assert not office.core.state.workers.unfit_for("one")


def test_a_worker_that_fits_comes_in_time() -> None:
    """It was starting; the reason is taken back, and the others' time counts anew."""
    office = unfit_two()
    office.tick(5)
    assert office.given("w3") != {}
    one = office.core.state.experiments["one"]
    assert one.told_waits == ""
    office.happen(on.WorkerLeft, worker="w3", reason="it is told to")
    office.tick(5)
    assert one.life.state == "running"
    office.tick(12)
    assert one.life.state == "failed"


def test_a_trained_shard_waits_for_its_worker() -> None:
    """One that can train it was here, and may be restarting: no hour of work is thrown away."""
    office = unfit_two()
    ((shard, name),) = office.given("w3").items()
    office.publish(name, shard, attempt=int(shard < 2))
    office.happen(on.WorkerLeft, worker="w3", reason="it is told to")
    office.tick(30)
    one = office.core.state.experiments["one"]
    assert one.life.state == "running"
    assert one.told_waits.startswith("no worker here can train it")


def test_a_label_that_is_missing_is_waited_for() -> None:
    """A machine that has it may come; of workers that have it, the reason is theirs."""
    office = Office(needs=["gpu"])
    office.join("plain")
    office.tick(60)
    one = office.core.state.experiments["one"]
    waits = "all shards wait for a worker with gpu: none is here"
    assert (one.life.state, one.told_waits) == ("running", waits)
    office.given("fast", "gpu=a40")
    office.refuse("fast")
    assert one.told_waits == f"no worker here can train it: {OTHER} (fast)"


def test_nobody_who_fits_is_said_once() -> None:
    """All shards wait; a worker with the label ends that."""
    office = Office(needs=["gpu", "site=b"])
    waits = "all shards wait for a worker with gpu and site=b: none is here"
    for number in range(3):
        assert office.given(f"w{number}", "site=a", "gpu=a40") == {}
    assert office.said.count(waits) == 1
    assert office.given("w3", "site=b", "gpu=a40") == {0: "w3"}


def test_a_policy_that_leaves_all_workers_idle_is_named() -> None:
    """Once for the same workers, because nothing else may ever end the wait."""
    office = Office({"wait": Policy(decide=lambda _: [])})
    for name in ("w2", "w1"):
        office.core.handle(on.WorkerJoined(at_seconds=1.0, worker=name))
    office.core.handle(on.Tick(at_seconds=2.0))
    said = "policy 'wait' assigns nothing although {} idle"
    assert office.said == [
        *("w2 joined", said.format("w2 is")),
        *("w1 joined", said.format("w1, w2 are")),
    ]
    assert office.core.state.experiments["one"].told_waits == office.said[-1]


def test_a_shard_goes_to_where_its_data_lie() -> None:
    """Others pass it over, and it passes over others: also after its worker was lost."""
    office = Office(shard_needs={"0": ["site=b"]})
    assert office.given("here", "site=a") == {1: "here"}
    waits = "shards wait for a worker that is not here: shard 0 for site=b"
    assert office.said == [waits, "here joined"]
    assert office.given("there", "site=b") == {0: "there"}
    assert placed(office.happen(on.WorkerLost, worker="there", reason="gone")) == {}
    assert office.trained("here", 1) == {2: "here"}
    assert office.trained("here", 2) == {}
    assert office.given("there", "site=b") == {0: "there"}


def test_a_shard_that_one_worker_may_train_fails_there_twice() -> None:
    """The workers without its labels cannot show whether that worker is at fault."""
    office = Office(shard_needs={"0": ["site=b"]})
    office.given("here", "site=a")
    office.given("there", "site=b")
    for attempt in (0, 1):
        assert office.core.state.active is not None
        office.fail("there", make.attempt("one", 0, 0, attempt), FailureKind.TASK, "KeyError")
    assert office.core.state.active is None


@pytest.mark.parametrize("policy", ["wait", "handoff", "late", "clone", "replace", "mantri"])
def test_no_policy_gives_a_shard_to_a_worker_without_its_label(policy: str) -> None:
    """Whatever else is idle."""
    office = Office(policy=policy, shard_needs={"2": ["site=b"]})
    given = [office.given(f"w{number}", "site=a") for number in range(5)]
    assert not any(2 in shards for shards in given)
    assert office.given("w5", "site=b") == {2: "w5"}


def test_a_policy_that_knows_no_needs_cannot_break_them() -> None:
    """A user's own policy may ask for anything; the scheduler ignores what may not be."""

    def blind(view: RoundView) -> list[Action]:
        return [*pair(replace(view, barred={}))]

    policies = {**POLICIES, "wait": Policy(decide=blind)}
    office = Office(policies, shard_needs={shard: ["site=b"] for shard in "012"})
    assert office.given("here", "site=a") == {}
    assert office.given("there", "site=b") == {1: "there"}


def test_preferred_workers_come_first() -> None:
    """Among idle ones, and only there: nobody waits for a better one."""
    office = Office(prefers=["gpu", "site=b"])
    office.join("first")
    assert office.trained("first", 0) == {1: "first"}
    play = Play()
    for name, labels in (("x", ()), ("y", ("gpu=a40",)), ("z", ("gpu=a40", "site=b"))):
        play.join(name, labels=labels)
    happened = play.submit(10, 10, 10, prefers=["gpu", "site=b"])
    assert placed(happened) == {0: "z", 1: "y", 2: "x"}


LABELS = st.lists(st.sampled_from(["a=1", "a=2", "ab=1", "b=1"]), unique=True)


@given(labels=LABELS, needs=st.lists(st.sampled_from(["a", "ab", "b", "a=1", "c=1"])))
def test_a_need_is_a_whole_label_or_any_with_its_key(labels: list[str], needs: list[str]) -> None:
    """A key is no prefix: ab=1 is no a."""
    for need in needs:
        keys = {label.split("=")[0] for label in labels}
        assert has(labels, need) == (need in labels if "=" in need else need in keys)
    assert missing(labels, needs) == tuple(need for need in needs if not has(labels, need))
