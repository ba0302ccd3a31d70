"""Plans a training: a few short rounds on the real machines say how long all rounds will take.

The *probe* is a run of the spec whose tasks have a few steps. Its record says how fast each worker
steps, and what a task and a round take beside their steps. The simulator then trains whole rounds
at these speeds, with the spec's policy and mode. Each round of the probe has its own speeds, so
their differences say how sure the plan is.

A plan can be for machines that are not there. One worker then trains the probe, and a file says how
their speeds and links differ.

A plan does not know what changes later: other users of the machines, or heat. It counts no deaths.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from downpour.base.errors import SpecError, did_you_mean
from downpour.core.resolve import with_meetings
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.spec_file import read_toml
from downpour.predictor import pretrained
from downpour.record.record_lines import Dated
from downpour.record.result_parts import t_quantile
from downpour.record.tables import Tables
from downpour_lab.policylab.conditions import Curve
from downpour_lab.policylab.recorded import RecordedRun, RecordedWorker
from downpour_lab.policylab.rerun import Tactic, plan_of_rerun, rerun

ROUNDS = 6
STEPS = 16
CONFIDENCE = 0.9
_EPOCHS_SIMULATED = 2
_ROUNDS_SIMULATED_MAX = 40
_TASK_SECONDS_MAX = 30.0
"""We simulate longer tasks in quicker time: heartbeats come each second, so a training of twelve
hours took 33 s for each simulation."""
_DEVIATION_MIN = 0.1
"""The least half of an interval, as a share of the time: in nine of ten runs, a plan was less off
(docs/how-to/more-workers.md)."""


def probe_of(spec: Spec) -> Spec:
    """Return the spec of a probe: short rounds, of which the last is evaluated."""
    steps = min(STEPS, spec.local_steps or STEPS)
    short = {"epochs": ROUNDS, "meet": 1, "local_steps": steps, "evaluate_every": ROUNDS}
    return spec.replace(name="probe", keep_best=None, stop_after=None, **short)


_READ_TRIPS, _WRITTEN_TRIPS = 7, 15
"""Round trips of reading and of publishing a file, on GlusterFS over links of 20 ms."""
_COUNT_MAX = 10_000
_SUCH = "such as [fast] with count = 4, speed = 2.0 and megabits = 100"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMachine:
    """A machine that need not be there: its speed, and its link to the shared directory.

    It trains `samples_per_second`, or `speed` times as many as the machine of the probe. A link of
    `megabits` a second, with a round trip of `latency_ms`, adds to the time that files take there.
    """

    speed: float | None = None
    samples_per_second: float | None = None
    megabits: float = math.inf
    latency_ms: float = 0.0

    def task_seconds(self, here_seconds: float, samples: float) -> float:
        """Return the seconds of a task with some samples, which takes `here_seconds` here."""
        if self.samples_per_second is not None:
            return samples / self.samples_per_second
        return here_seconds / (self.speed or 1.0)

    def link_seconds(self, moved_bytes: float, trips: int) -> float:
        """Return how much longer files take over the link."""
        return 8 * moved_bytes / (1e6 * self.megabits) + trips * self.latency_ms / 1000


def read_machines(path: Path) -> list[PlannedMachine]:
    """Read a TOML file with a table for each kind of machine, which may `count` several."""
    found: list[PlannedMachine] = []
    for name, table in read_toml(path).items():
        if not isinstance(table, dict):
            raise SpecError(name, table, f"must be a table with the fields of a machine, {_SUCH}")
        count = table.pop("count", 1)
        if type(count) is not int or not 1 <= count <= _COUNT_MAX:
            accepted = f"must be a whole number from 1 to {_COUNT_MAX:,}"
            raise SpecError(f"{name}.count", count, accepted)
        found += [_machine(name, table)] * count
    if not found:
        accepted = f"must have a table for each kind of machine, {_SUCH}"
        raise SpecError("machines", str(path), accepted)
    return found


def _machine(name: str, table: dict[str, Any]) -> PlannedMachine:
    known = [field.name for field in fields(PlannedMachine)]
    for field, value in table.items():
        if field not in known:
            hint = did_you_mean(field, known, before="") or f"there are {', '.join(known)}"
            raise SpecError(f"{name}.{field}", value, f"no such field; {hint}")
        if type(value) not in {int, float} or not 0 < value < math.inf:
            raise SpecError(f"{name}.{field}", value, "must be a number above 0")
    if {"speed", "samples_per_second"} <= table.keys():
        accepted = "cannot go with samples_per_second; give one of them"
        raise SpecError(f"{name}.speed", table["speed"], accepted)
    return PlannedMachine(**table)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The times and sizes that a probe showed, and the `spec` of the whole training.

    `speeds` has the seconds of a task of the usual size in each round, by worker. The run takes
    `beside_seconds` before its first task and after its last version, and `evaluate_seconds` for an
    evaluation. A round moves `round_bytes`, in updates of `update_bytes` each and the model that
    they become, of `model_bytes`.
    """

    spec: ResolvedSpec
    run: RecordedRun
    speeds: tuple[dict[str, float], ...]
    samples: tuple[int, ...]
    usual_samples: float
    beside_seconds: float
    evaluate_seconds: float
    round_bytes: float
    update_bytes: float
    model_bytes: float

    @classmethod
    def of(cls, spec: ResolvedSpec, record: Sequence[Dated], wall_seconds: float) -> ProbeResult:
        """Read the record of a probe of a spec; the probe took `wall_seconds` in all."""
        tables, run = Tables.of(record), RecordedRun.of("probe", record, fewest=1)
        prepared = tables.prepared
        if prepared is None:
            raise SpecError("FILE", spec.name, "its probe has not begun to train")
        updates = [(number, one) for number in tables.rounds for one in tables.updates(number)]
        usual = fmean([one.samples for _, one in updates])
        by_worker = {worker.name: list[float]() for worker in run.workers}
        rounds: dict[int, dict[str, list[float]]] = {}
        for number, one in updates:
            seconds = one.train_seconds * usual / one.samples
            by_worker[one.worker].append(seconds)
            rounds.setdefault(number, {}).setdefault(one.worker, []).append(seconds)
        usually = {name: median(several) for name, several in by_worker.items()}
        speeds = tuple(
            {**usually, **{name: fmean(several) for name, several in found.items()}}
            for number, found in sorted(rounds.items())
            if number > 0  # in the first round, caches are empty and kernels are chosen
        )
        evaluated = [line.seconds for _, line in tables.evaluated.values()]
        moved = [line.bytes for _, line in updates]
        versions = [version.line.bytes for version in tables.versions.values()]
        return cls(
            spec=with_meetings(spec, prepared.shard_samples),
            run=run,
            speeds=speeds,
            samples=prepared.shard_samples,
            usual_samples=usual,
            # The data that the probe prepared will be there.
            beside_seconds=max(0.0, wall_seconds - run.seconds - prepared.prepare_seconds),
            evaluate_seconds=fmean(evaluated) if evaluated else 0.0,
            round_bytes=(sum(moved) + sum(versions)) / max(1, len(rounds)),
            update_bytes=fmean(moved),
            model_bytes=fmean(versions),
        )

    def on(self, machines: Sequence[PlannedMachine]) -> ProbeResult:
        """Return what a probe on these machines would have shown, after one with a single worker.

        The manager stays where it is. A kept optimizer's state is as large as the model, as sgd's.
        """
        (here,) = self.run.workers
        keeps = self.spec.optimizer_state == "keep"
        read = self.model_bytes, _READ_TRIPS
        written = self.update_bytes + keeps * self.model_bytes, (1 + keeps) * _WRITTEN_TRIPS
        workers = tuple(
            replace(
                here,
                name=f"machine-{number}",
                load_seconds=here.load_seconds + machine.link_seconds(*read),
                finish_seconds=here.finish_seconds + machine.link_seconds(*written),
            )
            for number, machine in enumerate(machines)
        )
        speeds = tuple(
            {
                worker.name: machine.task_seconds(seconds[here.name], self.usual_samples)
                for worker, machine in zip(workers, machines, strict=True)
            }
            for seconds in self.speeds
        )
        return replace(self, run=replace(self.run, workers=workers), speeds=speeds)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """The time that a training with some settings will take, from the command to its end.

    In `CONFIDENCE` of all cases it is from `low_seconds` to `high_seconds`. `limit` names what most
    of a round's time goes into.
    """

    name: str
    seconds: float
    low_seconds: float
    high_seconds: float
    bytes: float
    limit: str


def plans(measured: ProbeResult) -> Iterator[TrainingPlan]:
    """Yield the plan of the spec, and those of up to three alternatives."""
    spec, count = measured.spec, len(measured.run.workers)
    yield _planned("as it is", measured, spec, count)
    if spec.meetings.each > 1:
        yield _planned("meet = 1", measured, spec.replace(meet=1), count)
    if spec.mode == "sync" and not spec.overlap and spec.shards > 1:
        with suppress(SpecError):  # some policies and fields need rounds that don't overlap
            yield _planned("overlap = 1", measured, spec.replace(overlap=1), count)
    if count > 1:
        fewer = (count + 1) // 2
        name = f"{fewer} worker{'s' * (fewer > 1)}, the fastest"
        yield _planned(name, measured, spec, fewer)


def _planned(name: str, measured: ProbeResult, spec: ResolvedSpec, workers: int) -> TrainingPlan:
    slowest = max(max(speeds.values()) for speeds in measured.speeds)
    quicker = min(1.0, _TASK_SECONDS_MAX / (max(_sizes(measured, spec)) * slowest))
    runs = [_whole(measured, spec, speeds, workers, quicker) for speeds in measured.speeds]
    evaluate_seconds = measured.evaluate_seconds * quicker
    rounds = [_round_seconds(run, evaluate_seconds) / quicker for run in runs]
    total, count = spec.rounds, len(rounds)
    middle = measured.beside_seconds + total * fmean(rounds)
    spread = stdev(rounds) if count > 1 else 0.0
    t = t_quantile(count - 1, CONFIDENCE) if spread else 0.0
    margin = t * spread * math.sqrt(total + total**2 / count)
    margin = math.hypot(margin, _DEVIATION_MIN * middle)
    return TrainingPlan(
        name=name,
        seconds=middle,
        low_seconds=max(0.0, middle - margin),
        high_seconds=middle + margin,
        bytes=total * measured.round_bytes,
        limit=_limit(runs[-1], fmean(rounds) * quicker),
    )


def _sizes(measured: ProbeResult, spec: ResolvedSpec) -> tuple[float, ...]:
    """Return the sizes of the shards' tasks, in tasks of the probe."""
    each = spec.meetings.each
    most = math.inf if spec.local_steps is None else spec.local_steps * spec.batch_size
    return tuple(min(one / each, most) / measured.usual_samples for one in measured.samples)


def _whole(
    measured: ProbeResult,
    spec: ResolvedSpec,
    speeds: dict[str, float],
    workers: int,
    quicker: float,
) -> RecordedRun:
    """Return a run of whole rounds at these speeds, on the fastest workers, in quicker time."""
    each, sizes, run = spec.meetings.each, _sizes(measured, spec), measured.run
    fastest = sorted(measured.run.workers, key=lambda one: speeds[one.name])[:workers]
    rounds = max(each, min(_EPOCHS_SIMULATED * each, _ROUNDS_SIMULATED_MAX // each * each))
    return replace(
        run,
        spec=spec.replace(snapshot_every=spec.snapshot_every * quicker),
        rounds=rounds,
        seconds=rounds * sum(sizes) * max(speeds.values()) * quicker,
        sizes=sizes,
        workers=tuple(_steady(one, speeds[one.name], quicker) for one in fastest),
        between_seconds=run.between_seconds * quicker,
        saving_seconds=run.saving_seconds * quicker,
    )


def _steady(worker: RecordedWorker, task_seconds: float, quicker: float) -> RecordedWorker:
    """Return a worker that is as fast at each moment, in quicker time."""
    load = worker.load_seconds * quicker
    return replace(
        worker,
        curve=Curve((0.0, max(task_seconds * quicker, 1e-6)), (0.0, 1.0)),
        absences=(),
        first_load_seconds=load,
        load_seconds=load,
        finish_seconds=worker.finish_seconds * quicker,
    )


def _round_seconds(run: RecordedRun, evaluate_seconds: float) -> float:
    """Simulate a run, and return the mean seconds of its rounds."""
    spec, tactic = run.spec, Tactic.of(run.spec)
    plan, each = plan_of_rerun(run, tactic, seed=0), spec.meetings.each
    [(name, simulated)] = plan.specs
    epochs = {"epochs": run.rounds // each, "meet": each, "evaluate_every": spec.evaluate_every}
    plan = replace(
        plan,
        specs=((name, simulated.replace(**epochs)),),
        timings=replace(plan.timings, evaluate_seconds=evaluate_seconds),
    )
    return rerun(run, tactic, pretrained, plan=plan).seconds / run.rounds


def _limit(run: RecordedRun, round_seconds: float) -> str:
    """Name the largest part of a round's time."""
    work = sum(run.sizes)
    rates = [1.0 / one.curve.when(1.0) for one in run.workers]
    tasks = len(run.sizes) / len(run.workers)
    files = tasks * fmean([one.load_seconds + one.finish_seconds for one in run.workers])
    parts = {
        "computing": work / sum(rates),
        "reading and writing files": files,
        "averaging": run.between_seconds,
    }
    parts["waiting for the slowest worker"] = round_seconds - sum(parts.values())
    return max(parts, key=lambda name: parts[name])
