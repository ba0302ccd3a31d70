"""A plan from a few short rounds, compared with the time that the same machines really take."""

from dataclasses import replace

import msgspec
import pytest

from downpour.core.spec import Spec
from downpour.record.record_lines import PreparedLine
from downpour_lab.policylab.planning import STEPS, ProbeResult, plans, probe_of
from downpour_lab.policylab.rerun import Tactic, rerun
from tests.downpour_lab.policylab.recordings import machines, recorded
from tests.specs import plain_spec

WAIT = Tactic(policy="wait", mode="sync")
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
    )
    planned = next(plans(measured))
    assert planned.seconds == pytest.approx(12 * 3600, rel=0.01)
    assert planned.limit == "computing"


def test_a_probe_is_short_and_complete() -> None:
    """It trains whole rounds of few steps and is evaluated once; nothing ends it early."""
    probe = probe_of(Spec(shards=2, keep_best="accuracy", stop_after=2, epochs=100, meet=4))
    assert (probe.meet, probe.local_steps, probe.keep_best, probe.stop_after) == (1, 16, None, None)
    assert probe.evaluate_every == probe.epochs < 10
    assert probe_of(Spec(local_steps=3)).local_steps == 3 < STEPS
