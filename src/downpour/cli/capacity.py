"""`downpour simulate --workers N`: estimates the speed of a cluster of that size."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from math import inf
from typing import TYPE_CHECKING, Any

from downpour.base.errors import SpecError
from downpour.cli.printing import err, note, out, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from downpour.virtual.capacity import CapacityEstimate, Load
    from downpour.virtual.simulated.environment import Timings


_SHARDS_MAX = 100_000


def timings_of(seconds: Mapping[str, Any], sync_seconds: float) -> Timings:
    """Return the usual times, overridden by options."""
    from downpour.virtual.simulated.disk import DiskTimings
    from downpour.virtual.simulated.environment import Timings

    for field, value in {**seconds, "sync_seconds": sync_seconds}.items():
        none = field in {"task_seconds", "heartbeat_seconds"} and value == 0
        if none or not 0 <= value < inf:
            accepted = "must be a number above 0" if none else "must be a number, 0 or above"
            raise SpecError(field.replace("_", "-"), value, accepted)
    disk = DiskTimings(sync_seconds=sync_seconds)
    return replace(Timings(patience=1.0, disk=disk), **seconds)


def load_of(workers: int, shards: int | None, rounds: int, timings: Timings, seed: int) -> Load:
    """Return the load to put on the simulated cluster."""
    from downpour.virtual.capacity import Load

    return Load(
        workers=at_least_one("workers", workers),
        shards=at_least_one("shards", workers if shards is None else shards, _SHARDS_MAX),
        rounds=at_least_one("rounds", rounds),
        timings=timings,
        seed=seed,
    )


def plan_capacity(load: Load, *, as_json: bool) -> None:
    """Estimate the cluster's speed, and print it."""
    from rich.progress import Progress

    from downpour.virtual.capacity import estimate_capacity

    began = time.perf_counter()
    with Progress(console=err(), disable=not err().is_terminal, transient=True) as bars:
        bar = bars.add_task("rounds", total=load.rounds)
        estimate = estimate_capacity(load, lambda rounds: bars.update(bar, completed=rounds))
    took = time.perf_counter() - began
    if as_json:
        load_shown = {
            "workers": load.workers,
            "shards": load.shards,
            "mode": load.mode,
            "policy": load.policy,
            "deaths_an_hour": load.deaths_an_hour,
            "figures": asdict(load.timings),
        }
        figures = {
            "round_seconds": estimate.round_seconds,
            "rounds_per_hour": estimate.rounds_per_hour,
            "updates_per_hour": estimate.updates_per_hour,
            "staleness": estimate.staleness,
            "training": estimate.training,
        }
        busy = {"manager_busy": estimate.busy(load.timings.event_seconds), "lost": estimate.lost}
        print_json({**load_shown, **figures, **busy, "events": estimate.events, "seconds": took})
        return
    out().print(_table(load, estimate))
    rate = estimate.events / took
    note(f"simulated {estimate.events:,} events in {took:.1f} s, {rate:,.0f} a second")
    if estimate.lost and not load.deaths_an_hour:
        note(f"{estimate.lost} times the manager took a living worker for lost: it cannot keep up")


def _table(load: Load, estimate: CapacityEstimate) -> Table:
    from rich import box
    from rich.table import Table

    busy = estimate.busy(load.timings.event_seconds)
    rows = [
        ("workers, shards", f"{load.workers:,}, {load.shards:,}"),
        ("round time, mean", f"{estimate.mean_seconds:,.1f} s"),
        ("round time, p99", f"{estimate.quantile(0.99):,.1f} s"),
        ("rounds per hour", f"{estimate.rounds_per_hour:,.1f}"),
        ("updates per hour", f"{estimate.updates_per_hour:,.0f}"),
        ("staleness, mean and p99", _staleness(estimate)),
        ("workers training", f"{estimate.training:.0%} of the time"),
        ("manager busy", f"{busy:.0%} of one core"),
    ]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    table.add_column("figure", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _staleness(estimate: CapacityEstimate) -> str:
    return f"{estimate.mean_staleness:.1f} and {estimate.stale_quantile(0.99)} versions"


def _at_least_0(field: str, value: float) -> float:
    if not 0 <= value < inf:
        raise SpecError(field, value, "must be a number, 0 or above")
    return value


def at_least_one(field: str, value: int, most: int = 1_000_000) -> int:
    """Return a whole number that is at least 1."""
    if not 1 <= value <= most:
        raise SpecError(field, value, f"must be from 1 to {most}")
    return value
