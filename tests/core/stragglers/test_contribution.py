"""What a worker is said to contribute to a round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.core.stragglers.base import RoundView, Speed
from downpour.core.stragglers.contribution import Lineup, contributions
from downpour.core.stragglers.handoff import HANDOFF
from tests.core.stragglers.rounds import round_of, running, sure


def measured(seconds: float, steps: int = 100) -> Speed:
    """Return the speed of a worker that takes so long for a shard of a hundred samples."""
    return Speed(
        samples_per_second=100 / seconds, share=1.0, variance=0.0, step_seconds=seconds / steps
    )


def view(seconds: Mapping[str, float], steps: int = 100) -> RoundView:
    """Return a round whose workers take so long for a shard."""
    speeds = {name: measured(own, steps) for name, own in seconds.items()}
    return replace(round_of(idle=" ".join(seconds)), speeds=speeds)


def told(seconds: Mapping[str, float], shards: int) -> dict[str, tuple[int, bool]]:
    """Return for each worker what it saves, in percent, and whether it stands by."""
    found = contributions(view(seconds), (100,) * shards, list(seconds))
    return {name: (round(100 * one.share), one.stands_by) for name, one in found.items()}


def test_equal_workers_save_the_time_that_the_others_would_need() -> None:
    """With a shard each, one fewer makes two rounds of one; a third worker has nothing to do."""
    assert told({"ann": 10.0, "bob": 10.0}, 2) == {"ann": (50, False), "bob": (50, False)}
    equal = told({"ann": 10.0, "bob": 10.0, "eve": 10.0}, 2)
    assert equal == {"ann": (0, False), "bob": (0, False), "eve": (0, True)}


def test_a_worker_that_would_hold_up_the_round_stands_by_at_its_cost() -> None:
    """The same as in the line that `handoff` logs at its decision: one rule decides both."""
    seconds = {"ann": 10.0, "bob": 10.0, "eve": 300.0}
    assert told(seconds, 4) == {"ann": (50, False), "bob": (50, False), "eve": (-14, True)}
    begins = replace(round_of(idle="eve ann bob", pending=4, begun=False, elapsed=0.0))
    assert HANDOFF.standing_by is not None
    line = HANDOFF.standing_by(replace(begins, speeds=view(seconds).speeds))["eve"]
    assert line.endswith("would cost 14% of the time")


def test_a_slow_worker_that_takes_turns_saves_time() -> None:
    """Three shards take two workers 20 s; divided among three they take less."""
    assert told({"ann": 10.0, "bob": 10.0, "eve": 40.0}, 3)["eve"] == (26, False)
    assert told({"ann": 10.0, "bob": 10.0, "eve": 20.0}, 3)["eve"] == (36, False)


def test_a_very_slow_worker_costs_time_where_it_is_given_the_last_shard() -> None:
    """Its steps take so long that the exchanges cost more than its work saves."""
    assert told({"ann": 10.0, "bob": 10.0, "eve": 300.0}, 3)["eve"] == (-20, False)


def test_a_spare_worker_that_users_asked_for_is_the_slowest() -> None:
    """It is kept free of shards, so it stands by."""
    spare = replace(view({"ann": 10.0, "bob": 11.0, "eve": 12.0}), standbys=1)
    found = contributions(spare, (100, 100, 100), ["ann", "eve"])
    assert {name: one.stands_by for name, one in found.items()} == {"ann": False, "eve": True}


@pytest.mark.parametrize(
    "unclear",
    [
        lambda one: replace(one, workers=("ann",)),
        lambda one: replace(one, workers=(*one.workers, "cid")),
        lambda one: replace(one, barred={0: frozenset({"ann"})}),
        lambda one: replace(one, running=(running("cid", 0, 0.1),)),
        lambda one: replace(
            one,
            running=(replace(running("ann", 0, 0.1), remaining=sure(inf)),),
            speeds={**one.speeds, "ann": Speed(samples_per_second=0.0, share=0.1)},
        ),
        lambda one: replace(
            one, speeds={name: replace(own, variance=None) for name, own in one.speeds.items()}
        ),
    ],
    ids=["alone", "unknown", "needs", "not measured yet", "no end", "one interval"],
)
def test_where_too_little_is_known_nothing_is_said(unclear: object) -> None:
    """Of nobody: what one worker saves depends on the speeds of all."""
    clear = view({"ann": 10.0, "bob": 10.0})
    assert len(contributions(clear, (100, 100), ["ann", "bob"])) == 2
    assert contributions(unclear(clear), (100, 100), ["ann", "bob"]) == {}  # type: ignore[operator]


def test_only_who_is_asked_for_is_told_of() -> None:
    """A screenful of many workers; names that are not here are left out."""
    seconds = {f"w{number}": 10.0 for number in range(9)}
    assert set(contributions(view(seconds), (100,) * 9, ["w1", "gone"])) == {"w1"}


def lineup(seconds: Sequence[float], sizes: Sequence[int], steps: int = 100) -> Lineup:
    """Return workers, each with its seconds for a hundred samples, and the steps of that."""
    known = {f"w{number}": own for number, own in enumerate(seconds)}
    made = Lineup.of(view(known, steps), sizes)
    assert made is not None
    return made


@pytest.mark.parametrize(("sizes", "seconds"), [((100,), 10.0), ((100, 50), 10.0), ((150,), 15.0)])
def test_a_shard_begins_at_once(sizes: tuple[int, ...], seconds: float) -> None:
    """The round takes as long as its longest shard if each has a worker."""
    assert lineup([10.0, 10.0], sizes).plan().seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("workers", "sizes", "steps", "seconds"),
    [
        ((0.1, 0.4), (400, 400), 100, 0.64 + 3 * 0.104),
        ((25.0, 100.0), (300, 100), 100, 100.0),
        ((12.5, 25.0, 100.0), (100, 100, 100), 100, 25.0),
        ((10.0, 25.0), (300, 100, 100), 2, 40.0),
        ((12.0, 20.0, 30.0), (100, 100, 50), 100, 15.0 + 3 * 0.3),
        ((10.0, 20.0, 20.0), (100, 100), 100, 200 / 15 + 3 * 0.3),
        ((10.0, 10.0, 40.0, 50.0), (100,) * 5, 100, 10.0 + (255 + 6) / 22.5 + 3 * 0.5),
    ],
    ids=[
        "exchanges, each at the cost of a step and a move, three in a row",
        "a slow worker that would end with the fast one stands by",
        "half as fast as the fastest is fast",
        "a slow worker gets no second shard where the fast one is soon free",
        "who ends with the balanced work exchanges nothing",
        "an idle worker that is not faster takes over nothing",
        "an idle fast worker takes over, and the wait for it counts as work of its own",
    ],
)
def test_a_round_ends_as_worked_out_by_hand(
    workers: Sequence[float], sizes: Sequence[int], steps: int, seconds: float
) -> None:
    """Balanced work, as far as shards and speeds allow it, and what the moves cost."""
    assert lineup(workers, sizes, steps).plan().seconds == pytest.approx(seconds)


@given(
    seconds=st.lists(st.floats(1.0, 100.0), min_size=2, max_size=6),
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=12),
)
def test_a_round_takes_no_less_than_its_work_and_no_more_than_alone(
    seconds: list[float], sizes: list[int]
) -> None:
    """All workers together, or the fastest with the largest shard, are the least."""
    planned = lineup(seconds, sizes).plan()
    speeds = [100 / own for own in seconds]
    least = max(sum(sizes) / sum(speeds), max(sizes) / max(speeds))
    assert least <= planned.seconds * (1 + 1e-9)
    assert planned.seconds <= sum(sizes) / min(speeds) * (1 + 1e-9)
    assert planned.begin


@given(
    seconds=st.lists(st.floats(10.0, 19.0), min_size=1, max_size=6),
    sizes=st.lists(st.integers(100, 100), min_size=2, max_size=12),
)
def test_a_worker_as_fast_as_the_fastest_never_costs_time(
    seconds: list[float], sizes: list[int]
) -> None:
    """One more of them ends a round of equal shards no later."""
    one_more = lineup([min(seconds), *seconds], sizes)
    longer = replace(one_more, members=one_more.members[1:]).plan().seconds
    assert one_more.plan().seconds <= longer * (1 + 1e-9)
