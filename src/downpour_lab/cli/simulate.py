"""`downpour simulate`: runs the scheduler in virtual time, to find defects and to plan clusters."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import typer

from downpour.base.errors import SpecError
from downpour.base.options import flag, option
from downpour.base.values import small_number
from downpour.cli import common
from downpour.cli.commands import COMPARE, CommandKind
from downpour.cli.common import checked_number, command, refuse_unused
from downpour.cli.printing import note, out, print_json, progress_bar, say

if TYPE_CHECKING:
    from rich.table import Table

    from downpour_lab.capacity import CapacityEstimate, Load
    from downpour_lab.simulated.environment import Timings
    from downpour_lab.trials.plan import Plan
    from downpour_lab.trials.simulation import Outcome, RunsTally


_SHARDS_MAX = 100_000
_MANY = 1_000_000


def timings_of(options: SimulateOptions) -> Timings:
    """Return the usual times, overridden by options."""
    from downpour_lab.simulated.disk import DiskTimings
    from downpour_lab.simulated.environment import Timings

    seconds = {name: getattr(options, name) for name in _SECONDS}
    for field, value in {**seconds, "sync_seconds": options.sync_seconds}.items():
        name = field.replace("_", "-")
        if field in {"task_seconds", "heartbeat_seconds"} and value == 0:
            raise SpecError(name, value, "must be a number above 0")
        checked_number(name, value, 0)
    disk = DiskTimings(sync_seconds=options.sync_seconds)
    return replace(Timings(patience=1.0, disk=disk), **seconds)


def load_of(options: SimulateOptions, workers: int) -> Load:
    """Return the load to put on the simulated cluster."""
    from downpour_lab.capacity import Load

    timings = timings_of(options)
    shards = workers if options.shards is None else options.shards
    return Load(
        workers=checked_number("workers", workers, 1, _MANY),
        shards=checked_number("shards", shards, 1, _SHARDS_MAX),
        rounds=checked_number("rounds", options.rounds, 1, _MANY),
        timings=timings,
        seed=options.seed or 0,
        mode=options.mode,
        policy=options.policy,
        deaths_an_hour=checked_number("deaths-an-hour", options.deaths_an_hour, 0),
    )


def plan_capacity(load: Load, *, as_json: bool) -> None:
    """Estimate the cluster's speed, and print it."""
    from downpour_lab.capacity import estimate_capacity

    began = time.perf_counter()
    with progress_bar("rounds", load.rounds) as show:
        estimate = estimate_capacity(load, lambda rounds: show(completed=rounds))
    took = time.perf_counter() - began
    if as_json:
        names = "workers", "shards", "mode", "policy", "deaths_an_hour"
        shown = {name: getattr(load, name) for name in names}
        rates = {"rounds_per_hour": estimate.rounds_per_hour}
        rates["updates_per_hour"] = estimate.updates_per_hour
        shown |= {"figures": asdict(load.timings), **asdict(estimate), **rates, "seconds": took}
        print_json(shown)
        return
    out().print(_table(load, estimate))
    rate = estimate.events / took
    note(f"simulated {estimate.events:,} events in {took:.1f} s, {rate:,.0f} a second")
    if estimate.lost and not load.deaths_an_hour:
        note(f"{estimate.lost} times the manager took a living worker for lost: it cannot keep up")


def _table(load: Load, estimate: CapacityEstimate) -> Table:
    from downpour.show.tables.terminal_tables import text_table
    from downpour_lab.capacity import quantile

    stale = f"{fmean(estimate.staleness):.1f} and {quantile(estimate.staleness, 0.99)} versions"
    figures = {
        "workers, shards": f"{load.workers:,}, {load.shards:,}",
        "round time, mean": f"{estimate.mean_seconds:,.1f} s",
        "round time, p99": f"{quantile(estimate.round_seconds, 0.99):,.1f} s",
        "rounds per hour": f"{estimate.rounds_per_hour:,.1f}",
        "updates per hour": f"{estimate.updates_per_hour:,.0f}",
        "staleness, mean and p99": stale,
        "workers training": f"{estimate.training:.0%} of the time",
        "manager busy": f"{estimate.manager_busy:.0%} of one core",
    }
    return text_table([("figure", list(figures)), ("value", list(figures.values()))])


_FAILED = 1
_STORY_LINES = 30
_ENOUGH_SEEDS = 1000
"""Runs of fewer seeds miss too many events, so `simulate` does not list the missing ones."""
_SEARCHING = {"seeds", "from_seed"}
_REPLAYING = {"faults", "story", "keep"}
_SECONDS = (
    *("task_seconds", "spread", "worker_spread", "network_seconds", "event_seconds"),
    *("update_seconds", "evaluate_seconds", "heartbeat_seconds"),
)
_PLANNING = {"shards", "rounds", "mode", "policy", "deaths_an_hour", "sync_seconds", *_SECONDS}


def _capacity(value: Any, text: str, metavar: str = "X", **more: Any) -> Any:
    return option(value, text, metavar, title="Capacity", **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The options of `downpour simulate`."""

    seeds: int = option(1000, "How many seeds to try.", "N")
    from_seed: int = option(0, "The first seed to try.", "N")
    seed: int | None = option(None, "Run only this seed.", "N")
    faults: str = option(
        "", "With --seed: only these of its faults, or none.", "N,N", default="all of them"
    )
    keep: Path | None = option(
        None,
        "With --seed: write the records of its experiments to folders there, for `downpour "
        "dashboard DIR`, `report` and `trace`.",
        "DIR",
        default="nowhere",
    )
    story: bool = flag("Print what happens, event by event.")
    as_json: bool = common.as_json()
    workers: int | None = _capacity(None, "Simulate the speed of N workers.", "N")
    shards: int | None = _capacity(None, "Shards in a round.", "N", default="one a worker")
    rounds: int = _capacity(3, "Rounds to simulate.", "N")
    mode: str = _capacity("sync", "The mode of training.", "NAME")
    policy: str = _capacity("wait", "The straggler policy.", "NAME")
    deaths_an_hour: float = _capacity(
        0.0, "Mean number of workers that die in an hour; each returns after a minute."
    )
    task_seconds: float = _capacity(60.0, "The median time of a task, in seconds.")
    spread: float = _capacity(0.2, "How much tasks vary: the standard deviation of log seconds.")
    worker_spread: float = _capacity(0.0, "How much workers differ, in the same unit.")
    network_seconds: float = _capacity(0.0005, "The time of a message, in seconds.")
    event_seconds: float = _capacity(0.00045, "The manager's time for a message, in seconds.")
    sync_seconds: float = _capacity(0.005, "The time of syncing the journal, in seconds.")
    update_seconds: float = _capacity(
        0.001, "The time that an update adds to an aggregation, in seconds."
    )
    evaluate_seconds: float = _capacity(1.0, "The time of an evaluation, in seconds.")
    heartbeat_seconds: float = _capacity(1.0, "Seconds between a worker's heartbeats.")


@command
def simulate(context: typer.Context, options: SimulateOptions) -> None:
    """Try faults, or the speed of a cluster, in virtual time.

    Each seed stands for a small cluster, an experiment, and faults. Managers and workers die, hang
    or lose their connection; messages and files come late, twice or not at all. If a run violates a
    check, the command prints the smallest set of faults that reproduces it and the command that
    reruns it. The exit status is then 1. One seed in a hundred runs twice and must give the same
    run. Finally, the command names the messages, events and faults that never occurred, or, after
    few seeds, says how many.

    With --workers, the command estimates rounds and updates per hour, and the updates' staleness,
    in any mode and with any policy. Nothing fails unless --deaths-an-hour asks for it.
    """
    for name, seed in (("seed", options.seed or 0), ("from-seed", options.from_seed)):
        checked_number(name, seed, 0)
    if options.workers is not None:
        refuse_unused(context, _SEARCHING | _REPLAYING, "changes nothing beside --workers")
        plan_capacity(load_of(options, options.workers), as_json=options.as_json)
        return
    refuse_unused(context, _PLANNING, "needs --workers")
    if options.seed is not None:
        refuse_unused(context, _SEARCHING, "changes nothing beside --seed")
        _replay(options.seed, options)
    else:
        refuse_unused(context, {"faults", "keep"}, "needs --seed")
        _search(options.from_seed, checked_number("seeds", options.seeds, 1, _MANY), options)


# Faults


def _search(first: int, count: int, options: SimulateOptions) -> None:
    from downpour_lab.trials.plan import plan_of
    from downpour_lab.trials.simulation import RunsTally, different, shrunken
    from downpour_lab.trials.simulation import simulate as run

    began, tally = time.perf_counter(), RunsTally()
    with progress_bar("seeds", count) as show:
        for seed in range(first, first + count):
            outcome = run(plan_of(seed))
            tally.take(outcome)
            show(completed=tally.runs)
            if outcome.failure:
                break
    took = time.perf_counter() - began
    changed = different(tally.to_repeat) if not outcome.failure else []
    if options.as_json:
        said = {
            "seeds": tally.runs,
            "steps": tally.steps,
            "compared": {promise.value: made for promise, made in tally.compared.items()},
            "never": tally.never(),
            "twice": [outcome.plan.seed for outcome in tally.to_repeat],
            "seconds": took,
            "failure": _as_json(outcome) if outcome.failure else None,
            "changed": changed,
        }
        print_json(said)
    else:
        _note_runs(tally, took)
        if outcome.failure:
            _show_failure(outcome, shrunken(outcome.plan), story=options.story)
        for seed in changed:
            say(f"seed {seed} gives a different run the second time")
    if outcome.failure or changed:
        raise typer.Exit(_FAILED)


def _note_runs(tally: RunsTally, took_seconds: float) -> None:
    """Report how much work the runs did, and which events never happened."""
    runs, hours = tally.runs, tally.virtual_seconds / 3600
    rate = f"{took_seconds / runs * 1e3:.1f} ms each, {tally.steps / took_seconds:,.0f} steps/s"
    note(f"{runs} seeds, {hours:.1f} hours of virtual time, {rate}")
    made, twice = sum(tally.compared.values()), len(tally.to_repeat)
    note(f"{made:,} comparisons with {len(tally.compared)} promises; {twice} seeds ran twice")
    never = tally.never()
    if runs < _ENOUGH_SEEDS:
        note(f"{sum(map(len, never.values()))} kinds of events never occurred; --json names them")
        return
    for group, names in never.items():
        note(f"never occurred, {group}: {', '.join(names)}")


def _replay(seed: int, options: SimulateOptions) -> None:
    from downpour_lab.trials.plan import plan_of
    from downpour_lab.trials.simulation import simulate as run

    plan = plan_of(seed)
    if options.faults:
        plan = plan.with_faults(_numbers(options.faults, len(plan.faults)))
    outcome = run(plan, story=options.story, records=options.keep is not None)
    if options.keep is not None:
        _keep(outcome, options.keep)
    if options.as_json:
        print_json(_as_json(outcome))
    elif options.story:
        for line in outcome.story:
            say(line)
    else:
        took = f"{outcome.seconds:.1f} s of virtual time, {len(plan.faults)} faults"
        say(f"seed {seed}: {outcome.failure or 'all is well'} ({took})")
    if outcome.failure:
        raise typer.Exit(_FAILED)


def _keep(outcome: Outcome, folder: Path) -> None:
    """Write a run's records into folders that the page, reports and traces can read."""
    from downpour.files.store.layout import RECORD_NAME
    from downpour.files.store.publish import explain
    from downpour.record.record import export_record

    for name, lines in outcome.records.items():
        place = folder / name
        if (place / RECORD_NAME).exists():
            raise SpecError("keep", str(folder), f"has a record of {name} already; name another")
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SpecError("keep", str(folder), f"cannot be written: {explain(error)}") from None
        export_record(place, lines)


def _show_failure(outcome: Outcome, plan: Plan, *, story: bool) -> None:
    """Print the shortest story of a failure, and the command that reproduces it."""
    from downpour_lab.trials.simulation import simulate as run

    numbers = ",".join(str(fault.number) for fault in plan.faults) or "none"
    full_story = run(plan, story=True).story
    lines = full_story if story else full_story[-_STORY_LINES:]
    enough = f"{len(plan.faults)} of its {len(outcome.plan.faults)} faults are enough"
    for line in (f"seed {outcome.plan.seed} fails: {outcome.failure}", f"{enough}:", *lines):
        say(line)
    note(f"again: downpour simulate --seed {plan.seed} --faults {numbers} --story")


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "seed": outcome.plan.seed,
        "failure": outcome.failure,
        "virtual_seconds": outcome.seconds,
        "steps": outcome.steps,
        "faults": [{"number": f.number, "what": str(f)} for f in outcome.plan.faults],
        "story": list(outcome.story),
    }


def _numbers(text: str, most: int) -> set[int]:
    """Read the numbers of faults; "none" means no fault."""
    words = [] if text == "none" else text.split(",")
    accepted = f"must be numbers from 1 to {most} with commas between them, or none"
    numbers = {small_number(word) for word in words}
    if not all(number is not None and 1 <= number <= most for number in numbers):
        raise SpecError("faults", text, accepted)
    return {number for number in numbers if number is not None}


COMMAND = CommandKind(simulate, COMPARE)
