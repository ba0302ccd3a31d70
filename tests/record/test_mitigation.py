"""What stragglers cost, and what was saved: told from records alone."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.record import Result
from downpour.record.record_lines import Dated, ForeseenLine, RescheduledLine, ResizedLine
from downpour.record.rows import Rows, rounds_of
from downpour.record.timeline import Stragglers, stragglers_of
from tests.record.lines import (
    aggregated,
    assigned,
    costs_of,
    failed,
    folded,
    left,
    prepared,
    saved,
    submitted,
    updated,
)

HANDOFF = Path(__file__).parents[1] / "recorded" / "handoff"
ENDS = ("lost", "handed_over", "withdrawn", "task")


@pytest.fixture
def epochs() -> list[Stragglers]:
    """Return a story of three epochs of four shards, in which the middle task takes ten seconds.

    In the first, a quarter of a shard is done when it is handed over, which would have taken forty.
    In the second, a copy is first where fifty were predicted. The third is closed without one.
    """
    return [r.stragglers for r in Result.read(HANDOFF).rounds if r.stragglers]


def test_a_hand_over_loses_only_its_own_time(epochs: list[Stragglers]) -> None:
    """Of the thirty seconds above the ideal ten it saved twenty-two, for 0.2 s of files."""
    first = epochs[0]
    assert (first.round_seconds, first.ideal_seconds, first.wait_seconds) == (18.0, 10.0, 40.0)
    assert first.mitigation == pytest.approx(22 / 30)
    assert first.extra_work == pytest.approx(0.2 / 47.8)
    assert (first.gradient_lost, first.moves) == (0.0, 1)


def test_the_work_of_a_needless_attempt_is_extra(epochs: list[Stragglers]) -> None:
    """The slow one had trained for twenty seconds, beside forty that count."""
    second = epochs[1]
    assert second.wait_seconds == pytest.approx(50.0)
    assert second.mitigation == pytest.approx(30 / 40)
    assert second.extra_work == pytest.approx(0.5)
    assert second.moves == 0


def test_a_dropped_shard_is_lost_with_its_samples(epochs: list[Stragglers]) -> None:
    """The epoch lasted until it was closed, two seconds after the last update."""
    third = epochs[2]
    assert third.round_seconds == pytest.approx(12.0)
    assert third.wait_seconds == pytest.approx(55.0)
    assert third.mitigation == pytest.approx(43 / 45)
    assert third.extra_work == pytest.approx(12 / 30)
    assert third.gradient_lost == 0.25


def test_a_run_is_the_sum_of_its_epochs(epochs: list[Stragglers]) -> None:
    """Seconds are added up before they are divided: long epochs weigh more."""
    run = Result.read(HANDOFF).stragglers
    assert run is not None
    assert run.round_seconds == pytest.approx(sum(epoch.round_seconds for epoch in epochs))
    assert run.mitigation == pytest.approx((22 + 30 + 43) / (30 + 40 + 45))
    assert run.extra_work == pytest.approx(32.2 / 117.8)
    assert run.gradient_lost == pytest.approx(1 / 12)
    assert run.moves == 1


def test_without_a_prediction_only_a_snapshot_tells_the_pace() -> None:
    """A quarter took 10.2 s, with 1 % to load; the other epochs add only their lost work."""
    lines = (HANDOFF / "record.jsonl").read_text(encoding="utf-8").splitlines()
    blind = [line for line in lines if '"foreseen"' not in line]
    blind = [line.replace("q50_seconds", "other") for line in blind]
    run = Result.from_lines(blind).stragglers
    assert run is not None
    assert run.wait_seconds is None
    waited = 10.2 / (0.25 + 0.01 * 0.75)
    assert run.mitigation == pytest.approx((waited - 18) / (waited - 10))
    assert run.extra_work == pytest.approx(32.2 / 117.8)


@pytest.mark.parametrize(
    ("steps", "earlier", "whole"),
    [(40, 0.6, 1.0), (4, 0.6, 0.976), (4, 20.0, 10.0), (4, None, None)],
)
def test_the_forecast_of_a_short_attempt_counts_less_than_its_snapshot(
    steps: int, earlier: float | None, whole: float | None
) -> None:
    """After 0.4 s one was foreseen to take twice as long; few steps do not tell the pace."""
    known: dict[str, Any] = {"round": 0, "shard": 1, "attempt": 0, "worker": "bob"}
    foreseen = ForeseenLine(**known, done=0.3, elapsed_seconds=0.35, q50_seconds=2.0)
    record: list[Dated] = [(0.0, prepared(100, 100)), (0.0, assigned(0, 0, "ann"))]
    record += [(0.0, assigned(1, 0, "bob", q50_seconds=earlier)), (0.38, foreseen)]
    record += [(0.4, saved(1, 0, steps)), (0.4, failed(1, 0, "handed_over", "bob"))]
    record += [(0.5, updated(0, 0, "ann")), (0.5, assigned(1, 1, "ann", from_step=steps))]
    record += [(0.8, updated(1, 1, "ann")), (0.8, aggregated())]
    [cost] = costs_of(folded(*record)).values()
    assert cost.wait_seconds == (None if whole is None else pytest.approx(whole))


def test_without_a_whole_task_a_first_snapshot_does_not_tell_loading_from_training() -> None:
    """Ann and bob exchange their shards, both for the first time."""
    record: list[Dated] = [(0.0, prepared(100, 100))]
    record += [(0.0, assigned(0, 0, "ann")), (0.0, assigned(1, 0, "bob"))]
    for shard, to in ((0, "bob"), (1, "ann")):
        record += [(2.0, saved(shard, 0, 50)), (2.0, failed(shard, 0, "handed_over"))]
        record.append((2.0, assigned(shard, 1, to, from_step=50)))
    record += [(4.0, updated(0, 1, "bob")), (4.0, updated(1, 1, "ann")), (4.0, aggregated())]
    [cost] = costs_of(folded(*record)).values()
    assert (cost.decided, cost.wait_seconds) == (True, None)


def test_a_round_that_is_cut_to_measure_is_compared_with_the_uncut() -> None:
    """Two took ten seconds for three and one hundred: with two hundred each, one takes twenty."""
    record: list[Dated] = [(0.0, prepared(200, 200))]
    record.append((0.0, ResizedLine(round=0, samples=(300, 100), reason="bob is slow")))
    record += plain(10.0, 10.0)
    found = stragglers_of(costs_of(folded(*record)).values())
    assert (found.ideal_seconds, found.wait_seconds) == (10.0, 20.0)
    assert (found.mitigation, found.extra_work) == (1.0, 0.0)


def test_the_snapshot_of_a_lost_attempt_is_no_extra_work() -> None:
    """Six seconds are on disk when the worker dies in the eighth: two are lost."""
    record: list[Dated] = [(0.0, prepared(100)), (0.0, assigned(0, 0, "ann"))]
    record += [(6.0, saved(0, 0, 60)), (8.0, failed(0, 0, "lost", "ann"))]
    record += [(8.0, assigned(0, 1, "bob", from_step=60)), (12.0, updated(0, 1, "bob"))]
    record.append((12.0, aggregated()))
    [cost] = costs_of(folded(*record)).values()
    assert (cost.useful_seconds, cost.lost_seconds, cost.decided) == (10.0, 2.0, False)
    assert stragglers_of([cost]).mitigation is None


def test_noise_is_not_divided_by_noise() -> None:
    """A move that cost 0.1 s where waiting would have cost 0.05 s is no -200 % of anything."""
    record: list[Dated] = [(0.0, prepared(100, 100))]
    record += [(0.0, assigned(0, 0, "ann")), (0.0, assigned(1, 0, "bob"))]
    record += [(2.0, assigned(0, 1, "cid")), (2.1, failed(0, 1, "withdrawn", "cid"))]
    record += [(10.0, updated(0, 0, "ann")), (10.1, updated(1, 0, "bob")), (10.1, aggregated())]
    [cost] = costs_of(folded(*record)).values()
    assert cost.decided
    assert stragglers_of([cost]).mitigation is None


def test_a_copy_that_is_stopped_is_no_move() -> None:
    """Its work is lost, but the shard stays with whom it was; one that starts elsewhere moves."""
    record: list[Dated] = [(0.0, prepared(100, 100))]
    record += [(0.0, assigned(0, 0, "ann")), (0.0, assigned(1, 0, "bob"))]
    record += [(2.0, assigned(0, 1, "cid")), (5.0, failed(0, 1, "withdrawn", "cid"))]
    record += [(5.0, failed(1, 0, "withdrawn", "bob")), (5.0, assigned(1, 1, "cid"))]
    record += [(9.0, updated(0, 0, "ann")), (10.0, updated(1, 1, "cid")), (10.0, aggregated())]
    [cost] = costs_of(folded(*record)).values()
    assert (cost.moves, cost.decided) == (1, True)
    assert (cost.useful_seconds, cost.lost_seconds) == (14.0, 8.0)


def test_a_refused_update_is_work_that_is_lost() -> None:
    """It had been accepted, but the one that was made anew counts."""
    record: list[Dated] = [(0.0, prepared(100)), (0.0, assigned(0, 0, "ann"))]
    record += [(5.0, updated(0, 0, "ann")), (6.0, failed(0, 0, "store", "ann"))]
    record += [(6.0, assigned(0, 1, "bob")), (10.0, updated(0, 1, "bob")), (10.0, aggregated())]
    [cost] = costs_of(folded(*record)).values()
    assert (cost.useful_seconds, cost.lost_seconds, cost.seconds) == (4.0, 5.0, 10.0)


def test_a_pause_is_no_part_of_a_round() -> None:
    """One worker hands over for it, which moves nothing; both train for ten seconds."""
    record: list[Dated] = [(0.0, prepared(100, 100))]
    record += [(0.0, assigned(0, 0, "ann")), (0.0, assigned(1, 0, "bob"))]
    record += [(4.0, RescheduledLine(change="paused")), (5.0, updated(0, 0, "ann"))]
    record += [(6.0, saved(1, 0, 60)), (6.0, failed(1, 0, "handed_over", "bob"))]
    record += [(6.5, RescheduledLine(change="set aside"))]
    record += [(50.0, RescheduledLine(change="continued"))]
    record += [(60.0, assigned(1, 1, "ann", from_step=60)), (64.0, updated(1, 1, "ann"))]
    tables = folded(*record, (65.0, aggregated(seconds=1.0, train_seconds=64.0)))
    [cost] = costs_of(tables).values()
    assert (cost.seconds, cost.wait_seconds, cost.moves, cost.decided) == (10.0, 10.0, 0, False)
    assert (cost.useful_seconds, cost.lost_seconds) == (15.0, 0.0)
    assert rounds_of(Rows(tables).finished(), with_costs=False)[0].train_seconds == 10.0
    still_paused = folded(*record[:8])
    assert still_paused.working_seconds(0.0, 40.0) == 6.0


def test_a_round_in_which_a_worker_stands_by_has_saved_its_waiting() -> None:
    """Bob did a quarter of a shard in ten seconds, without a forecast; then ann trains both."""
    record: list[Dated] = [(0.0, submitted(policy="handoff")), (0.0, prepared(100, 100))]
    record += [(0.0, assigned(0, 0, "ann")), (0.0, assigned(1, 0, "bob"))]
    record += [(9.0, updated(0, 0, "ann")), (10.0, saved(1, 0, 25))]
    record += [(10.0, failed(1, 0, "handed_over", "bob"))]
    record += [(10.0, assigned(1, 1, "ann", from_step=25)), (17.0, updated(1, 1, "ann"))]
    record += [(17.0, aggregated()), (20.0, assigned(0, 0, "ann", round=1))]
    record += [(29.0, updated(0, 0, "ann", round=1)), (29.0, assigned(1, 0, "ann", round=1))]
    record += [(38.0, updated(1, 0, "ann", round=1)), (38.0, aggregated(1))]
    first, second = costs_of(folded(*record)).values()
    assert (first.seconds, first.wait_seconds) == (17.0, 40.0)
    assert (second.seconds, second.ideal_seconds, second.wait_seconds) == (18.0, 9.0, 40.0)
    assert second.decided
    left_early: Dated = (18.0, left("bob", "told to stop"))
    _, alone = costs_of(folded(*record[:11], left_early, *record[11:])).values()
    assert (alone.ideal_seconds, alone.wait_seconds, alone.decided) == (18.0, 18.0, False)


SECONDS = st.floats(min_value=0.1, max_value=1000.0)


@given(st.lists(SECONDS, min_size=1, max_size=6))
def test_without_decisions_nothing_is_mitigated(seconds: list[float]) -> None:
    """However slow the slowest is; and no work is lost."""
    record = [(0.0, prepared(*[100] * len(seconds))), *plain(*seconds)]
    [cost] = costs_of(folded(*record)).values()
    assert cost.lossless
    assert cost.wait_seconds == pytest.approx(cost.seconds)
    found = stragglers_of([cost])
    assert (found.mitigation, found.extra_work, found.gradient_lost) == (None, 0.0, 0.0)


@given(st.data())
def test_extra_work_is_never_negative_and_all_work_is_accounted_for(data: st.DataObject) -> None:
    """However attempts end, their seconds are either useful or lost."""
    record: list[Dated] = [(0.0, prepared(100, 100, 100))]
    spent = 0.0
    for shard in range(3):
        now, step = 0.0, 0
        ends = data.draw(st.lists(st.sampled_from(ENDS), max_size=3))
        for number, end in enumerate((*ends, "")):
            seconds = data.draw(SECONDS)
            spent += seconds
            record.append((now, assigned(shard, number, f"w{number}", from_step=step)))
            if data.draw(st.booleans()):
                step += 1
                at = now + data.draw(st.floats(0.0, 1.0)) * seconds
                record.append((at, saved(shard, number, step)))
            now += seconds
            made = failed(shard, number, end, "w") if end else updated(shard, number, "w")
            record.append((now, made))
    record.append((1e6, aggregated()))
    [cost] = costs_of(folded(*sorted(record, key=lambda told: told[0]))).values()
    assert cost.lost_seconds >= 0
    assert cost.useful_seconds + cost.lost_seconds == pytest.approx(spent)


def plain(*seconds: float) -> list[Dated]:
    """Return the lines of shards that were trained once, each by another worker."""
    record: list[Dated] = [(0.0, assigned(shard, 0, f"w{shard}")) for shard in range(len(seconds))]
    made = ((after, updated(shard, 0, f"w{shard}")) for shard, after in enumerate(seconds))
    record += sorted(made, key=lambda told: told[0])
    return [*record, (max(seconds), aggregated())]
