"""What a record says of the speeds of its workers, and the records that do not say enough."""

from math import inf
from pathlib import Path

import pytest
from msgspec.structs import replace

from downpour.base.errors import SpecError
from downpour.record.record import read_record
from downpour.record.record_lines import (
    AggregatedLine,
    AssignedLine,
    FinishedLine,
    RecordLine,
    SavedLine,
    SubmittedLine,
    UpdatedLine,
)
from downpour_lab.policylab.recorded import RecordedRun
from downpour_lab.policylab.rerun import Tactic
from tests.downpour_lab.policylab.recordings import TASK_SECONDS, machines, recorded
from tests.specs import stored_spec

RECORDED = Path(__file__).parents[2] / "recorded"
WAIT = Tactic(policy="wait", mode="sync")
Record = list[tuple[float, RecordLine]]


@pytest.fixture(scope="module")
def record() -> Record:
    """The record of a simulated run of three rounds."""
    return recorded(machines(workers=3, rounds=3), WAIT)


def test_a_record_has_the_speeds_of_its_workers(record: Record) -> None:
    """The first of three machines is four times slower, and each does a shard in its time."""
    run = RecordedRun.of("x", record)
    assert (run.rounds, run.sizes, run.failed) == (3, (1.0, 1.0, 1.0), 0)
    paces = [worker.curve.when(1.0) for worker in run.workers]
    assert paces == pytest.approx([4 * TASK_SECONDS, TASK_SECONDS, TASK_SECONDS], rel=0.08)
    assert run.seconds == pytest.approx(3 * 4 * TASK_SECONDS, rel=0.1)
    assert run.between_seconds == pytest.approx(0.3, abs=0.1)


def test_a_real_record_is_read() -> None:
    """Of a run whose shards were handed over, and that had snapshots and forecasts."""
    lines = read_record(RECORDED / "handoff" / "record.jsonl")
    at, submitted = lines[0]
    assert isinstance(submitted, SubmittedLine)
    spec = stored_spec(
        shards=submitted.shards
    )  # the recorded one names a file of data that is not there
    run = RecordedRun.of("uneven", [(at, replace(submitted, spec=spec)), *lines[1:]])
    assert len(run.workers) > 1
    assert run.seconds > 0
    assert all(worker.curve.when(1.0) > 0 for worker in run.workers)


@pytest.mark.parametrize("kind", [SubmittedLine, UpdatedLine, AggregatedLine])
def test_a_record_without_a_finished_round_is_refused(
    record: Record, kind: type[RecordLine]
) -> None:
    """It just began, or has lost lines."""
    left = [(at, line) for at, line in record if not isinstance(line, kind)]
    with pytest.raises(SpecError, match="no finished round"):
        RecordedRun.of("x", left)
    with pytest.raises(SpecError, match="no finished round"):
        RecordedRun.of("x", [])


def test_a_run_of_one_worker_is_refused() -> None:
    """No policy could have done anything about it."""
    with pytest.raises(SpecError, match="only one worker trained it"):
        RecordedRun.of("x", recorded(machines(workers=1, rounds=2), WAIT))


def test_a_run_that_goes_on_is_read_up_to_its_last_round(record: Record) -> None:
    """Where rounds overlap there is no such thing, so that one must have finished."""
    ends = [n for n, (_, line) in enumerate(record) if isinstance(line, AggregatedLine)]
    assert RecordedRun.of("x", record[: ends[1] + 1]).rounds == 2
    apart = recorded(machines(workers=3, rounds=3), Tactic(policy="wait", mode="ssp"))
    assert RecordedRun.of("x", apart).rounds == 3
    running = [(at, line) for at, line in apart if not isinstance(line, FinishedLine)]
    with pytest.raises(SpecError, match="must have finished"):
        RecordedRun.of("x", running)


def test_lines_that_fit_nothing_are_skipped(record: Record) -> None:
    """An update without its assignment, a snapshot of nobody's, a task that took no time."""
    stray = SavedLine(round=9, shard=9, attempt=0, worker="nobody", step=3, bytes=1)
    idle = AssignedLine(round=0, shard=0, attempt=7, worker="new", reason="")
    lost = next(n for n, (_, line) in enumerate(record) if isinstance(line, AssignedLine))
    left = [*record[:lost], *record[lost + 1 :], (record[-1][0], stray), (record[-1][0], idle)]
    run = RecordedRun.of("x", left)
    assert {worker.name for worker in run.workers} == {"host-0", "host-1", "host-2"}
    assert all(worker.absences == () for worker in run.workers)
    assert run.seconds < inf
