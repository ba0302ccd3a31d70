"""`downpour plan`: how long a training will take, before it runs, from a short probe."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import typer

from downpour.base import options as base
from downpour.base.errors import SpecError, spoken
from downpour.base.options import option
from downpour.cli import common
from downpour.cli.commands import COMPARE, CommandKind
from downpour.cli.common import allow_code, allow_own_code, command, refuse_unused
from downpour.cli.printing import note, out, print_json
from downpour.cli.spec_options import FoundSpec
from downpour.cli.up_and_down import LaunchOptions, workers

if TYPE_CHECKING:
    from rich.table import Table

    from downpour_lab.policylab.planning import ProbeResult, TrainingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlanOptions:
    workers: int | None = workers(
        text="Worker processes; also the number of shards if the spec gives none.",
        default="one a shard, but no more than this machine's cores",
    )
    machines: Path | None = option(
        None,
        "Plan for the machines of this TOML file, which need not be there: a table for each kind, "
        "such as [fast] with count = 4 and speed = 2.0. One worker trains the rounds that say how "
        "fast they would be.",
        "FILE",
        default="the workers that would train",
    )
    shared: Path = common.shared()
    data_dir: Path | None = base.data_dir()
    patience: float = base.patience()
    allow: tuple[str, ...] = common.allow()
    as_json: bool = common.as_json()


@command
def plan(
    options: _PlanOptions, request: FoundSpec, launching: LaunchOptions, context: typer.Context
) -> None:
    """Say how long a training will take, and what limits it.

    The command trains a few short rounds of the spec on the real workers. Then it simulates the
    whole training at their speeds, and three alternatives. The spec and the workers are named as
    for `downpour run`; --machines plans for others. A plan has an interval, which holds in nine of
    ten cases if the machines stay as they are. The probe's folder is removed; its prepared data
    stay for the run.
    """
    if options.machines:
        refuse_unused(context, {"workers"}, "cannot go with --machines, which counts them")
    launching.check(request.spec)
    allow_code(options.allow, request.file)
    allow_own_code(request.spec, request.file)
    from downpour_lab.policylab.planning import plans

    measured = _measured(options, request, launching)
    found = list(plans(measured))
    if options.as_json:
        print_json({"epochs": measured.spec.epochs, "plans": [asdict(one) for one in found]})
    else:
        out().print(_table(found))


def _measured(options: _PlanOptions, request: FoundSpec, launching: LaunchOptions) -> ProbeResult:
    """Run the probe, and read its record."""
    from downpour.core.resolve import resolve
    from downpour.experiments.following import Watching
    from downpour.experiments.surroundings import Surroundings, workers_for
    from downpour.experiments.training import train
    from downpour.files.store.layout import RECORD_NAME
    from downpour.learning.auto import trainer_of
    from downpour.record.record import read_record
    from downpour_lab.policylab.planning import ProbeResult, probe_of, read_machines

    spec, workers, where = request.spec, launching.workers, launching.launcher
    machines = read_machines(options.machines) if options.machines else []
    if machines:
        workers, spec = 1, spec.replace(shards=spec.shards or len(machines) - spec.standbys)
    place = Surroundings(options.shared, options.data_dir, options.patience, where, launching.on)
    count = len(machines) or workers_for(spec, workers, is_here=place.is_here)
    probe = probe_of(spec)
    note(f"a probe: {probe.epochs} rounds of at most {probe.local_steps} steps")
    ended = train(probe, workers, place, Watching(progress=False))
    wall_seconds = time.time() - psutil.Process().create_time()  # with the command's own start
    if ended.folder is None:
        raise SpecError("shared", str(options.shared), "does not show the probe's record")
    try:
        record = read_record(ended.folder / RECORD_NAME)
        # As the probe has resolved it, without the fields that make it short.
        spec = spec.replace(**{name: ended.spec[name] for name in ("inside", "threads")})
        resolved = resolve(spec, count, trainer_of(spec, count))
        measured = ProbeResult.of(resolved, record, wall_seconds)
        return measured.on(machines) if machines else measured
    finally:
        shutil.rmtree(ended.folder, ignore_errors=True)


def _table(found: list[TrainingPlan]) -> Table:
    from downpour.show.tables.terminal_tables import text_table

    spans = [f"{spoken(one.low_seconds)} to {spoken(one.high_seconds)}" for one in found]
    return text_table(
        [
            ("plan", [one.name for one in found]),
            ("time", [spoken(one.seconds) for one in found]),
            ("in 9 of 10 cases", spans),
            ("GB written", [f"{one.bytes / 1e9:.3g}" for one in found]),
            ("limited by", [one.limit for one in found]),
        ]
    )


COMMAND = CommandKind(plan, COMPARE)
