"""What another policy would have saved on a recorded run, compared with what it does save.

The runs are the simulator's, on machines whose speeds are known. So each prediction, made of a
record alone, can be compared with the time that the same machines really take.
"""

from dataclasses import replace

import pytest

from downpour.base.errors import SpecError
from downpour.record.tables import Tables
from downpour_lab.policylab.recorded import Absence, RecordedRun
from downpour_lab.policylab.rerun import (
    PREPARED_AT_SECONDS,
    Tactic,
    rerun,
    rerun_remarks,
    rerun_rows,
    rerun_table,
    tactics_for,
)
from tests.downpour_lab.policylab.recordings import TASK_SECONDS, machines, recorded

WAIT = Tactic(policy="wait", mode="sync")
HANDOFF = Tactic(policy="handoff", mode="sync")
LATE = Tactic(policy="late", mode="sync")
SSP = Tactic(policy="wait", mode="ssp")


@pytest.mark.parametrize(
    "used",
    [HANDOFF, *(pytest.param(one, marks=pytest.mark.slow) for one in (WAIT, SSP))],
    ids=lambda tactic: tactic.name,
)
def test_predictions_are_close_to_the_truth(used: Tactic) -> None:
    """On machines of which one is always slow, whichever tactic the record is of."""
    truth = machines()
    run = RecordedRun.of("x", recorded(truth, used))
    assert rerun(run, used).seconds == pytest.approx(run.seconds, rel=0.05)
    for other in (WAIT, HANDOFF, SSP):
        assert rerun(run, other).seconds == pytest.approx(rerun(truth, other).seconds, rel=0.06)


@pytest.mark.slow
def test_a_straggler_that_changes_is_followed() -> None:
    """Each machine in turn is slow for a while: speeds belong to moments, and not to machines."""
    truth = machines(spells=True)
    run = RecordedRun.of("x", recorded(truth, WAIT))
    for other in (WAIT, HANDOFF):
        assert rerun(run, other).seconds == pytest.approx(rerun(truth, other).seconds, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "absent",
    [
        Absence(from_seconds=35.0, until_seconds=100.0),
        Absence(from_seconds=35.0, until_seconds=100.0, lost=True),
        Absence(from_seconds=35.0),
        Absence(from_seconds=-10.0, until_seconds=60.0),
    ],
    ids=["leaves", "lost", "for good", "joins late"],
)
def test_workers_come_and_go_as_they_did(absent: Absence) -> None:
    """The record says when a worker left, was lost, came back, or joined at all."""
    truth = machines(absent=absent)
    record = recorded(truth, WAIT)
    run = RecordedRun.of("x", record)
    [read] = next(worker.absences for worker in run.workers if worker.name == "host-4")
    # Moments count from the first assignment, and the simulated preparation ends early or late.
    late = Tables.of(record).start - PREPARED_AT_SECONDS
    assert read.until_seconds == pytest.approx(absent.until_seconds - late, abs=1.0)
    assert rerun(run, WAIT).seconds == pytest.approx(run.seconds, rel=0.05)
    known = rerun(run, HANDOFF).seconds
    assert known == pytest.approx(rerun(truth, HANDOFF).seconds, rel=0.05)
    present = tuple(replace(one, absences=()) for one in run.workers)
    assert rerun(replace(run, workers=present), HANDOFF).seconds < 0.9 * known


def test_loading_and_publishing_cost_each_attempt() -> None:
    """Two runs that differ in nothing else differ by what each round's last task pays."""
    run = RecordedRun.of("x", recorded(machines(workers=2), WAIT))
    slower = replace(
        run,
        workers=tuple(
            replace(one, load_seconds=2.0, first_load_seconds=5.0, finish_seconds=1.0)
            for one in run.workers
        ),
    )
    more = rerun(slower, WAIT).seconds - rerun(run, WAIT).seconds
    assert more == pytest.approx(8 * 3.0 + 3.0, rel=0.15)


@pytest.mark.slow
def test_shards_have_the_sizes_that_they_had() -> None:
    """Twice the examples take twice as long, on whichever worker."""
    run = RecordedRun.of("x", recorded(machines(workers=3), WAIT))
    large = replace(run, sizes=(1.0, 1.0, 5.0))
    assert rerun(large, WAIT).seconds > 1.1 * rerun(run, WAIT).seconds
    assert rerun(large, WAIT).counted == pytest.approx(1.0)


def test_all_that_the_run_allows_is_compared_and_its_own_tactic_is_first() -> None:
    """Policies in its mode, and modes with `wait`; a mode without rounds has fewer policies."""
    run = RecordedRun.of("x", recorded(machines(workers=3, rounds=2), WAIT))
    names = [tactic.name for tactic in tactics_for(run)]
    assert names[0] == "wait, sync"
    assert {"handoff, sync", "rebalance, sync", "wait, ssp", "wait, fedbuff"} < set(names)
    assert len(names) == len(set(names))
    apart = replace(run, spec=run.spec.replace(mode="ssp"))
    assert {tactic.policy for tactic in tactics_for(apart)} == {"wait", "handoff", "dylu"}


def test_names_choose_tactics_and_one_that_cannot_be_is_refused() -> None:
    """The run's own is always there, because the others are compared with it."""
    run = RecordedRun.of("x", recorded(machines(workers=3, rounds=2), WAIT))
    names = [tactic.name for tactic in tactics_for(run, ("handoff", "ssp"))]
    assert names == ["wait, sync", "handoff, sync", "wait, ssp"]
    by_class = replace(run, spec=run.spec.replace(split="class"))
    assert "rebalance, sync" not in [tactic.name for tactic in tactics_for(by_class)]
    with pytest.raises(SpecError, match="split = 'class'"):
        tactics_for(by_class, ("rebalance",))


def test_a_table_says_what_would_have_been_saved_and_how_sure_that_is() -> None:
    """The run's own row has the time that it took, and each other one its difference from that."""
    run = RecordedRun.of("x", recorded(machines(workers=3, rounds=2), WAIT))
    results = [rerun(run, WAIT), rerun(run, LATE), rerun(run, HANDOFF)]
    rows = rerun_rows(run, results)
    assert [row["policy"] for row in rows] == ["handoff", "late", "wait"]
    assert rows[-1]["seconds"] == pytest.approx(run.seconds, abs=0.001)
    assert rows[-1]["used"]
    assert rows[0]["saves"] == pytest.approx(1 - rows[0]["seconds"] / run.seconds, abs=1e-3)
    assert rows[0]["saves"] > 0.2
    assert [*rows[0]][:2] == ["policy", "mode"]
    table = rerun_table(run, rows)
    assert table.row_count == 3
    first, second = rerun_remarks(run, results[0])
    assert f"{run.seconds:.1f} s" in first
    assert "another model" in second
    doubtful = rerun_remarks(replace(run, failed=2), replace(results[0], seconds=run.seconds * 2))
    assert [remark for remark in doubtful if "hint" in remark]
    assert "2 attempts failed" in doubtful[-1]
    assert run.seconds > TASK_SECONDS
