"""What runs have compared and shown: nothing compared fails a run, and what never was is listed."""

from collections import Counter
from dataclasses import replace

import pytest

from downpour.network.rpc.messages import messages
from downpour_lab.trials.faults import FaultKind
from downpour_lab.trials.plan import plan_of
from downpour_lab.trials.promises import Broken, Comparisons, Promise, catalogue
from downpour_lab.trials.simulation import Outcome, RunsTally, check_compared, different, simulate

# Nobody watches a run.
UNSIMULATED = {"manager.disturbed", "manager.status", "manager.list_experiments", "manager.results"}
UNSIMULATED |= {"manager.report_blocks"}


@pytest.fixture(scope="module")
def outcome() -> Outcome:
    """A run that ends well."""
    made = simulate(plan_of(0))
    assert not made.failure
    return made


def test_a_promise_that_applies_and_was_not_compared_fails_the_run(outcome: Outcome) -> None:
    """Whichever of them it is."""
    seen, whole = Counter(outcome.happened), Comparisons()
    whole.made = Counter(outcome.compared)
    check_compared(outcome.plan, seen, whole, ())
    for promise in (Promise.ENDS, Promise.BYTES, Promise.LEADS, Promise.REPLAYS, Promise.RESULTS):
        looked_away = Comparisons()
        looked_away.made = Counter({**outcome.compared, promise: 0})
        with pytest.raises(Broken, match="nothing was compared with it"):
            check_compared(outcome.plan, seen, looked_away, ())


def test_what_has_never_happened_is_listed(outcome: Outcome) -> None:
    """By groups."""
    tally = RunsTally()
    tally.take(outcome)
    never = tally.never()
    assert UNSIMULATED <= set(never["message"]) <= set(messages()) - {"manager.heartbeat"}
    assert "Aggregated" not in never.get("event", [])
    struck = {kind for group, kind in outcome.happened if group == "fault"}
    assert set(never["fault"]) == {kind.value for kind in FaultKind} - struck


@pytest.mark.slow
def test_every_message_is_simulated_or_said_not_to_be() -> None:
    """So a new one is thought of."""
    shown: set[str] = set()
    for seed in range(100):
        shown |= {name for group, name in simulate(plan_of(seed)).happened if group == "message"}
    assert set(messages()) - UNSIMULATED == shown & set(messages())
    assert shown - set(messages()) == {"manager.submit"} - set(messages())


def test_the_catalogue_names_all_that_the_interface_has() -> None:
    """No name twice."""
    named = catalogue()
    assert len(set(named)) == len(named)
    assert {("message", "worker.train"), ("refusal", "BUSY"), ("fact", "Accepted")} < set(named)


def test_a_seed_that_runs_twice_is_the_same_run(outcome: Outcome) -> None:
    """In another process, with other hashes; another run is noticed."""
    assert different([outcome, replace(outcome, digest="another")]) == [outcome.plan.seed]
