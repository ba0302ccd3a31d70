"""What is tried next follows from the seed, the run's number, and what came of those before."""

import sys
from dataclasses import replace

import pytest

from downpour.base.errors import MissingPackage
from downpour.experiments.studies import Search
from downpour.experiments.studies.sampler import Sampler, Values
from downpour.record.study_result import SearchRun
from tests.experiments.studies.conftest import SEARCH


def run_of(number: int, values: Values, accuracy: float | None) -> SearchRun:
    """Make a run that finished, or failed where it has no accuracy."""
    return SearchRun(
        number=number,
        values=values,
        state="failed" if accuracy is None else "finished",
        reason=None,
        value=accuracy,
        epoch_values=() if accuracy is None else (accuracy,),
        train_seconds=1.0,
        wall_seconds=1.0,
        experiment=f"small-{number}",
    )


def sampler_of(search: Search) -> Sampler:
    """Return the sampler of a search."""
    return Sampler(search.axes, search.goal, search.pruner, search.seed)


def proposals(search: Search, count: int = 4) -> list[Values]:
    """Return what is proposed when every run has the same accuracy."""
    sampler = sampler_of(search)
    found = []
    for number in range(1, count + 1):
        found.append(sampler.propose(number))
        sampler.learn(run_of(number, found[-1], 0.5))
    return found


def test_a_proposal_follows_from_the_seed_and_the_number() -> None:
    """Another seed, or another number, is another proposal; all are of the search."""
    search = Search.from_toml(SEARCH)
    assert proposals(search) == proposals(search)
    other = Search.from_toml(SEARCH.replace("trials = 12", "trials = 12\nseed = 1"))
    assert proposals(search) != proposals(other)
    found = proposals(search)
    assert len({str(values) for values in found}) == len(found)
    assert all(search.allows(values) for values in found)
    assert isinstance(found[0]["local_steps"], int)


def test_a_proposal_does_not_follow_from_the_order_of_lines() -> None:
    """A detached search reads them in another order than the user wrote them."""
    lines = SEARCH.splitlines()
    turned = "\n".join([*lines[:-5], *reversed(lines[-5:])])
    assert turned != SEARCH
    assert proposals(Search.from_toml(turned)) == proposals(Search.from_toml(SEARCH))
    assert proposals(Search.from_toml(Search.from_toml(SEARCH).to_toml())) == proposals(
        Search.from_toml(SEARCH)
    )


def test_a_sampler_that_was_told_goes_on_as_one_that_was_there() -> None:
    """The runs of an earlier process are as good as its own."""
    search = Search.from_toml(SEARCH)
    there, told = sampler_of(search), sampler_of(search)
    for number in range(1, 14):
        values = there.propose(number)
        accuracy = None if number == 2 else 0.5 + 0.01 * number
        if accuracy is not None:
            there.is_hopeless(1, accuracy)
        there.learn(run_of(number, values, accuracy))
        told.restore(run_of(number, values, accuracy))
    assert there.propose(14) == told.propose(14)


def test_a_run_of_bad_luck_says_nothing_about_its_values() -> None:
    """What is proposed after it is what would be had it not been tried."""
    search = Search.from_toml(SEARCH)
    unlucky, without = sampler_of(search), sampler_of(search)
    for number in range(1, 14):
        values = unlucky.propose(number)
        without.repeat(values)
        good = run_of(number, values, 0.5 + 0.01 * number)
        unlucky.learn(good)
        without.learn(good)
    unlucky.repeat(values)
    unlucky.learn(replace(run_of(14, values, None), to_repeat=True))
    assert unlucky.propose(15) == without.propose(15)


def test_a_run_that_failed_counts_as_one_that_learned_nothing() -> None:
    """What is proposed after it is what would be after an accuracy of 0."""
    search = Search.from_toml(SEARCH)
    failed, useless = sampler_of(search), sampler_of(search)
    for number in range(1, 21):
        values = failed.propose(number)
        assert useless.propose(number) == values
        fails = values["learning_rate"] > 0.1
        failed.learn(run_of(number, values, None if fails else 0.8))
        useless.learn(run_of(number, values, 0.0 if fails else 0.8))


def test_without_optuna_a_search_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python as on the command line: a caller can catch it with all other errors."""
    monkeypatch.setitem(sys.modules, "optuna", None)
    search = Search.from_toml(SEARCH)
    with pytest.raises(MissingPackage, match=r"^a search needs optuna; install .*\[tune\]$"):
        sampler_of(search)
