"""What other policies would have saved on a recorded run, and plans from a few short rounds."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.record.record_lines import PreparedLine
from downpour.record.tables import Tables
from downpour_lab.policylab.conditions import Curve
from downpour_lab.policylab.planning import (
    STEPS,
    PlannedMachine,
    ProbeResult,
    plans,
    probe_of,
    read_machines,
)
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
from tests.specs import plain_spec

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
    truth = machines(rounds=4)
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
    run = RecordedRun.of("x", recorded(machines(workers=2, rounds=4), WAIT))
    slower = replace(
        run,
        workers=tuple(
            replace(one, load_seconds=2.0, first_load_seconds=5.0, finish_seconds=1.0)
            for one in run.workers
        ),
    )
    more = rerun(slower, WAIT).seconds - rerun(run, WAIT).seconds
    assert more == pytest.approx(4 * 3.0 + 3.0, rel=0.15)


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


LONGER = 5
"""How many times as long as a task of the probe a whole one is."""


@pytest.mark.parametrize("meet", [1, 2])
def test_a_plan_is_close_to_the_truth(meet: int) -> None:
    """On machines of which one is slow, and all vary; with several meetings, rounds are shorter."""
    probe = replace(machines(workers=3), rounds=6)
    record = [
        (at, msgspec.structs.replace(line, shard_samples=(10 * LONGER,) * 3))
        if isinstance(line, PreparedLine)
        else (at, line)
        for at, line in recorded(probe, WAIT)
    ]
    spec = plain_spec(shards=3, epochs=8, meet=meet, policy="wait", snapshot_every=0.0)
    measured = ProbeResult.of(spec, record, wall_seconds=probe.seconds)
    whole = replace(probe, sizes=(LONGER / meet,) * 3, rounds=8 * meet)
    truth = rerun(whole, WAIT).seconds + measured.beside_seconds
    found = list(plans(measured))
    assert found[0].seconds == pytest.approx(truth, rel=0.05)
    assert found[0].low_seconds < truth < found[0].high_seconds
    assert found[0].limit == "waiting for the slowest worker"
    names = ["as it is", *["meet = 1"] * (meet > 1), "overlap = 1", "2 workers, the fastest"]
    assert [one.name for one in found] == names
    assert found[-1].seconds < found[0].seconds  # the fast workers wait for no slow one


def test_a_training_of_half_a_day_is_planned_from_the_same_speeds() -> None:
    """It is simulated in quicker time; three epochs of four hours take twelve hours."""
    run = machines(workers=2)
    spec = plain_spec(shards=2, epochs=3, meet=4, snapshot_every=60.0)
    measured = ProbeResult(
        spec=spec,
        run=run,
        speeds=({worker.name: 1.0 for worker in run.workers},),
        samples=(400 * 4 * 3600,) * 2,
        usual_samples=400,
        beside_seconds=1.0,
        evaluate_seconds=1.0,
        round_bytes=1.0,
        update_bytes=1.0,
        model_bytes=1.0,
    )
    planned = next(plans(measured))
    assert planned.seconds == pytest.approx(12 * 3600, rel=0.01)
    assert planned.limit == "computing"


def _measured(task_seconds: tuple[float, ...]) -> ProbeResult:
    """Return the result of a probe of three shards, on workers of these speeds."""
    run = machines(workers=3)
    curves = [Curve((0.0, seconds), (0.0, 1.0)) for seconds in task_seconds]
    workers = tuple(map(lambda one, curve: replace(one, curve=curve), run.workers, curves))
    spec = plain_spec(shards=3, epochs=8, meet=2, policy="wait", snapshot_every=0.0)
    run = replace(run, workers=workers, rounds=6)
    return ProbeResult.of(spec, recorded(run, WAIT), wall_seconds=90.0)


def test_machines_that_are_not_there_are_planned_as_if_they_were() -> None:
    """The plan from one worker and a file of speeds is that of a probe on all machines."""
    measured, one = _measured((10.0, 20.0, 40.0)), _measured((10.0,))
    # What comes between two rounds has nothing to do with the machines, and varies.
    run = replace(one.run, between_seconds=measured.run.between_seconds)
    one = replace(one, run=run, beside_seconds=measured.beside_seconds)
    file = [
        PlannedMachine(),
        PlannedMachine(speed=0.5),
        PlannedMachine(samples_per_second=one.usual_samples / 40),
    ]
    there, planned = list(plans(measured)), list(plans(one.on(file)))
    assert [mine.name for mine in planned] == [its.name for its in there]
    for mine, its in zip(planned, there, strict=True):
        assert mine.seconds == pytest.approx(its.seconds, rel=1e-6)
        assert (mine.limit, mine.bytes) == (its.limit, its.bytes)


def test_a_slow_link_makes_every_task_longer() -> None:
    """The model comes and the update goes over it; a file takes several round trips."""
    one = replace(_measured((10.0,)), model_bytes=2e6, update_bytes=1e6)
    near, far = (
        one.on([link] * 3) for link in (PlannedMachine(), PlannedMachine(megabits=8, latency_ms=20))
    )
    more = [theirs.load_seconds + theirs.finish_seconds for theirs in far.run.workers]
    less = [theirs.load_seconds + theirs.finish_seconds for theirs in near.run.workers]
    added = 8 * (2.0 + 1.0) / 8 + (7 + 15) * 0.02
    assert more == pytest.approx([seconds + added for seconds in less])
    rounds = one.spec.rounds
    assert next(plans(far)).seconds - next(plans(near)).seconds == pytest.approx(
        rounds * added, 0.01
    )


def test_a_file_of_machines_has_a_table_for_each_kind(tmp_path: Path) -> None:
    """A kind may count several machines."""
    file = tmp_path / "machines.toml"
    file.write_text("[fast]\ncount = 2\nspeed = 2\n[slow]\nsamples_per_second = 9.5\nmegabits = 40")
    fast, slow = PlannedMachine(speed=2), PlannedMachine(samples_per_second=9.5, megabits=40)
    assert read_machines(file) == [fast, fast, slow]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must have a table for each kind of machine, such as [fast] with count = 4, "),
        ("speed = 2", "speed = 2: must be a table with the fields of a machine, such as [fast]"),
        ("[a]\ncount = 0", "a.count = 0: must be a whole number from 1 to 10,000"),
        ("[a]\ncount = true", "a.count = True: must be a whole number from 1 to 10,000"),
        ("[a]\nsped = 2", "a.sped = 2: no such field; did you mean speed?"),
        ("[a]\nram = 2", "there are speed, samples_per_second, megabits, latency_ms"),
        ("[a]\nspeed = 0", "a.speed = 0: must be a number above 0"),
        ("[a]\nmegabits = inf", "a.megabits = inf: must be a number above 0"),
        ("[a]\nlatency_ms = '3'", "a.latency_ms = '3': must be a number above 0"),
        ("[a]\nspeed = 1\nsamples_per_second = 2", "cannot go with samples_per_second"),
        ("[a", "cannot be read"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_a_line(tmp_path: Path, text: str, said: str) -> None:
    """The line names the table and the field, and what it takes."""
    file = tmp_path / "machines.toml"
    file.write_text(text)
    with pytest.raises(SpecError) as refused:
        read_machines(file)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_probe_is_short_and_complete() -> None:
    """It trains whole rounds of few steps and is evaluated once; nothing ends it early."""
    probe = probe_of(Spec(shards=2, keep_best="accuracy", stop_after=2, epochs=100, meet=4))
    assert (probe.meet, probe.local_steps, probe.keep_best, probe.stop_after) == (1, 16, None, None)
    assert probe.evaluate_every == probe.epochs < 10
    assert probe_of(Spec(local_steps=3)).local_steps == 3 < STEPS
