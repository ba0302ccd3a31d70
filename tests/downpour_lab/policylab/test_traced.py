"""Conditions out of traces, and out of an experiment's record."""

from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from downpour.base.errors import SpecError
from downpour.base.values import AttemptId
from downpour.record.record import read_record
from downpour.record.record_lines import (
    AggregatedLine,
    AssignedLine,
    Dated,
    FinishedLine,
    RecordLine,
    SavedLine,
    SubmittedLine,
    UpdatedLine,
)
from downpour_lab.policylab.conditions import (
    MADE_UP,
    WHEN,
    GivenMachines,
    Recording,
    TracedJob,
    _spread,
    conditions_of,
    read_recordings,
    scenarios_of,
)
from downpour_lab.policylab.recorded import RecordedRun
from downpour_lab.policylab.rerun import Tactic
from tests.downpour_lab.policylab.recordings import TASK_SECONDS, machines, recorded
from tests.record.lines import (
    aggregated,
    assigned,
    failed,
    prepared,
    saved,
    submitted,
    updated,
)
from tests.specs import stored_spec

ROUNDS, WORKERS = 3, 4
Columns = dict[str, Any]


def made_up() -> Columns:
    """Return the columns of one small job."""
    count = ROUNDS * WORKERS
    number, worker = np.divmod(np.arange(count), WORKERS)
    took = 10.0 + worker + number / 10
    columns = {"job": np.zeros(count, int), "round": number, "worker": worker}
    columns |= {"n_samples": np.full(count, 3200), "completion_s": took}
    for at, share in (("", 0.0), ("p10_", 0.1), ("p25_", 0.25), ("p50_", 0.5)):
        if at:
            columns[f"{at}elapsed_s"] = took * share * (1.5 if share < 0.5 else 1.2)
        for name in ("cpu_util", "loadavg1", "mem_used", "iowait"):
            columns[at + name] = share + number / 100
    return columns


def written(folder: Path, columns: Columns) -> Path:
    """Write a trace; returns where."""
    path = folder / "traces.npz"
    np.savez(path, **columns)
    return path


def test_a_task_takes_what_it_took(tmp_path: Path) -> None:
    """Its curve goes through its reports, and beyond its end at its last rate."""
    (recording,) = read_recordings(written(tmp_path, made_up()))
    job = TracedJob(recording, [])
    curve = job.curve(1, 2)
    assert curve.when(1.0) == pytest.approx(12.1)
    assert curve.when(0.25) == pytest.approx(12.1 * 0.25 * 1.5)
    assert curve.when(0.5) == pytest.approx(12.1 * 0.5 * 1.2)
    assert curve.when(2.0) - curve.when(1.0) == pytest.approx(2 * (12.1 - 12.1 * 0.6))
    assert (job.rounds, job.hosts, job.scenario) == (3, 4, "traced")


def test_tasks_of_other_sizes_are_scaled_to_the_usual_one(tmp_path: Path) -> None:
    """Half as many samples in the same time are half as fast."""
    columns = made_up()
    columns["n_samples"] = np.full(ROUNDS * WORKERS, 1600)
    (recording,) = read_recordings(written(tmp_path, columns))
    assert TracedJob(recording, []).curve(0, 0).when(0.5) == pytest.approx(10.0)


def test_a_machine_is_as_it_was_at_the_report_before(tmp_path: Path) -> None:
    """After its own end it is as at the beginning of the next round; so heartbeats tell it."""
    (recording,) = read_recordings(written(tmp_path, made_up()))
    machines = GivenMachines(TracedJob(recording, []), ("a", "b", "c", "d", "e"))
    attempt = AttemptId(experiment="e", round=0, shard=0, attempt=0)
    machines.course("a", attempt, 100.0, 1.0)
    told = [machines.state("a", 100.0 + s).cpu_others for s in (0.0, 1.6, 4.0, 7.0, 11.0)]
    assert told == [0.0, 0.1, 0.25, 0.5, 0.01]
    later = machines.course("a", attempt, 105.0, 0.5)
    assert later.when(1.0) == pytest.approx(4.111, abs=1e-3)


def test_a_standby_worker_comes_from_another_job(tmp_path: Path) -> None:
    """The same one for the same seed."""
    columns = made_up()
    twice = {name: np.concatenate([column, column]) for name, column in columns.items()}
    twice["job"] = np.repeat([0, 1], ROUNDS * WORKERS)
    twice["completion_s"] = twice["completion_s"] * np.repeat([1.0, 3.0], ROUNDS * WORKERS)
    one, other = read_recordings(written(tmp_path, twice))
    times = {TracedJob(one, [other], seed=n).curve(0, WORKERS).when(1.0) for n in range(9)}
    assert min(times) >= 30.0
    assert len(times) > 1
    again = TracedJob(one, [other], seed=3).curve(0, WORKERS).when(1.0)
    assert again == TracedJob(one, [other], seed=3).curve(0, WORKERS).when(1.0)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda c: c.pop("p25_elapsed_s"), "has no column p25_elapsed_s"),
        (lambda c: c.pop("iowait"), "has no column iowait"),
        (lambda c: c.update(completion_s=-c["completion_s"]), "must be above 0"),
        (lambda c: c.update(p50_elapsed_s=c["p25_elapsed_s"]), "times of reports must rise"),
        (lambda c: c.update(round=np.arange(12) // 5), "a round lacks workers"),
    ],
)
def test_a_trace_that_cannot_be_is_refused_in_one_line(
    tmp_path: Path, change: Any, told: str
) -> None:
    """It names the column, and what is wrong with it."""
    columns = made_up()
    change(columns)
    with pytest.raises(SpecError, match=told):
        read_recordings(written(tmp_path, columns))


def test_scenarios_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """Rather than taken for one scenario."""
    path = written(tmp_path, made_up())
    (tmp_path / "jobs.json").write_text('[{"job": 0, "scenario": "pauses", "seed": 1}]')
    assert read_recordings(path)[0].scenario == "pauses"
    (tmp_path / "jobs.json").write_text('[{"job": 0, "seed": 1}]')
    with pytest.raises(SpecError, match=r"jobs\.json"):
        read_recordings(path)


CHOICE = {"jobs": 2, "rounds": 3, "standbys": 1}


@pytest.fixture
def recordings(tmp_path: Path) -> list[Recording]:
    """One small job."""
    return list(read_recordings(written(tmp_path, made_up())))


def test_a_traces_scenarios_come_first(recordings: list[Recording]) -> None:
    """Then those that are made up."""
    named = scenarios_of(recordings)
    assert named[-len(MADE_UP) :] == [*MADE_UP]
    assert named[0] == recordings[0].scenario


@pytest.mark.parametrize("scenario", MADE_UP)
def test_a_scenario_that_is_made_up_has_as_many_jobs_as_are_wanted(
    recordings: list[Recording], scenario: str
) -> None:
    """A trace's has no more than there are."""
    assert len(conditions_of(recordings, scenario, **CHOICE)) == 2
    assert len(conditions_of(recordings, recordings[0].scenario, **CHOICE)) == 1


@pytest.mark.parametrize("standbys", [-1, 1000])
def test_standbys_are_of_the_traces_workers(recordings: list[Recording], standbys: int) -> None:
    """More of them than workers cannot be."""
    with pytest.raises(SpecError, match=r"standbys = -?\d+: must be from 0 to"):
        conditions_of(recordings, "memoryless", **(CHOICE | {"standbys": standbys}))


def test_an_unknown_scenario_is_refused(recordings: list[Recording]) -> None:
    """One line says which there are."""
    with pytest.raises(SpecError, match=r"scenario = 'storm': must be of .*one-straggler"):
        conditions_of(recordings, "storm", **CHOICE)


def test_some_of_many_jobs_are_spread_over_all() -> None:
    """The first and the last are among them."""
    jobs = list(range(10))
    assert _spread(jobs, 3) == [0, 4, 9]  # type: ignore[arg-type, comparison-overlap]
    assert _spread(jobs, 99) == jobs  # type: ignore[arg-type, comparison-overlap]


@pytest.mark.parametrize(("scenario", "share"), WHEN.items())
def test_a_straggler_is_slow_from_when_its_scenario_says(
    recordings: list[Recording], scenario: str, share: float
) -> None:
    """Before that it does what the others do, and then a quarter."""
    job, *_ = conditions_of(recordings, scenario, **CHOICE)
    curves = [job.curve(0, host) for host in range(job.hosts)]
    curve = max(curves, key=lambda curve: curve.when(1.0))
    begin, rest = curve.when(share), curve.when(1.0) - curve.when(share)
    assert rest / (1.0 - share) == pytest.approx(4 * begin / share)


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


def test_a_part_that_was_handed_over_does_not_stand_for_a_whole_task() -> None:
    """A whole task took ten seconds; then it did a tenth in eight, so it goes on at 18 s for 1.1.

    What comes after the last step takes the mean: the comparison is one of sums.
    """
    story: list[Dated] = [(0.0, submitted(2, epochs=2)), (0.0, prepared(100, 100))]
    waits = (10.0, 10.0, 13.0)
    for number, end in enumerate(waits):
        begin = sum(waits[:number])
        story += [
            (begin, assigned(shard, 0, name, round=number)) for shard, name in enumerate("ab")
        ]
        tasks = [{"round": number, "train_seconds": 10.0, "completion_seconds": end}] * 2
        story += [(begin + end, updated(n, 0, "ab"[n], **each)) for n, each in enumerate(tasks)]
        story += [(begin + end, aggregated(number))]
    story += [(33.0, assigned(0, 0, "a", round=3)), (33.0, assigned(1, 0, "b", round=3))]
    story += [(41.0, replace(saved(1, 0, 10, "b"), round=3))]
    story += [(41.0, failed(1, 0, "handed_over", "b", round=3))]
    _, late = RecordedRun.of("x", story).workers
    assert late.finish_seconds == 1.0
    assert late.curve.done(100.0 + 18.0) - late.curve.done(100.0) == pytest.approx(1.1)
