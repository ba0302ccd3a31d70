"""Turns a comparison of policies into rows, tables and CSV: each policy's results by scenario.

Means are over jobs, with 95 % intervals. Nothing here prints or writes a file.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from downpour.experiments.reading.statistics import Estimate
from downpour.virtual.policylab.comparison import Trial

_NO_WORK = "oracle"
_HOUR_SECONDS = 3600.0
_ROUNDS = 1000
_WIDE = 10.0

Measure = Callable[[Trial], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """The price of a node's hour, the model's size, and how many models a node holds and saves.

    A training node holds `held_models` times the model: parameters, gradients and momentum. A
    snapshot is `snapshot_models` times as large: parameters and momentum.
    """

    node_hour: float = 1.0
    model_mb: float = 5.0
    held_models: float = 3.0
    snapshot_models: float = 2.0

    def of(self, trial: Trial) -> dict[str, float]:
        """Return the resources of a job: nodes, memory, a round's written data, and money."""
        hourly = trial.nodes * self.node_hour
        hours = trial.seconds / len(trial.rounds) * _ROUNDS / _HOUR_SECONDS
        return {
            "nodes": trial.nodes,
            "memory_mb": trial.nodes * self.held_models * self.model_mb,
            "written_mb_per_round": trial.published(self.snapshot_models) * self.model_mb,
            "cost_per_hour": hourly,
            "cost_per_1000_rounds": hourly * hours,
        }


MEASURES: dict[str, tuple[str, Measure, float, str]] = {
    "mitigation": ("mitigation\n%", lambda t: t.mitigation, 100.0, ".1f"),
    "kind_mitigation": ("kind\n%", lambda t: t.kind_mitigation, 100.0, ".0f"),
    "mean_over_ideal": ("mean/\nideal", lambda t: t.mean_over_ideal, 1.0, ".2f"),
    "p99_over_ideal": ("p99/\nideal", lambda t: t.p99_over_ideal, 1.0, ".2f"),
    "extra_work": ("extra\n%", lambda t: t.extra_work, 100.0, ".1f"),
    "lost": ("lost\n%", lambda t: t.lost, 100.0, ".1f"),
    "accuracy": ("accu-\nracy", lambda t: t.accuracy, 100.0, ".1f"),
    "loss": ("test\nloss", lambda t: t.loss, 1.0, ".4f"),
    "moves": ("moves", lambda t: t.moves, 1.0, ".1f"),
}
"""Each measure's column header, function, factor and number format."""

_WITH_INTERVAL = "mitigation"
_OF_WORK = {"extra_work", "moves"}
_ONE_OF = {"accuracy", "loss", "moves"}


def rows_of(trials: Sequence[Trial], prices: Prices) -> list[dict[str, Any]]:
    """Return a row for each policy in each job; we don't measure the work of oracles."""
    return [
        {
            "scenario": trial.scenario,
            "job": trial.job,
            "policy": trial.contender.name,
            "standbys": trial.contender.standbys,
            "rounds": len(trial.rounds),
            "mean_round_seconds": trial.seconds / len(trial.rounds),
            **{name: measured(trial, name) for name in MEASURES},
            "worst_class_accuracy": trial.worst_class_accuracy,
            **prices.of(trial),
        }
        for trial in trials
    ]


def csv_of(trials: Sequence[Trial], prices: Prices) -> str:
    """Return the rows as CSV."""
    rows = rows_of(trials, prices)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def estimate(trials: Sequence[Trial], measure: str) -> Estimate | None:
    """Return a measure's mean over jobs, with its interval; None if no job has the measure."""
    return Estimate.of(measured(trial, measure) for trial in trials)


def by_policy(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """Group trials by the names of their contenders."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(trial.contender.name, []).append(trial)
    return groups


def scenario_table(scenario: str, trials: Sequence[Trial]) -> Table:
    """Return a table of one scenario: each policy's means over its jobs."""
    jobs = len({(trial.scenario, trial.job) for trial in trials})
    table = Table(
        title=f"{scenario}: {jobs} job{'s' * (jobs > 1)}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("policy", no_wrap=True)
    measures = _shown(trials)
    for measure in measures:
        table.add_column(MEASURES[measure][0], justify="right", no_wrap=True)
    for name, own in by_policy(trials).items():
        table.add_row(name, *(_cell(own, measure) for measure in measures))
    return table


def price_table(trials: Sequence[Trial], prices: Prices) -> Table:
    """Return a table of each policy's needs: nodes, memory, written megabytes, and money."""
    table = Table(
        title="what it takes",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        header_style="bold",
    )
    table.add_column("policy", no_wrap=True)
    headers = ["stand-\nbys", "memory\nMB", "written,\nMB/round", "cost/\nhour"]
    for header in [*headers, f"cost/{_ROUNDS}\nrounds"]:
        table.add_column(header, justify="right", no_wrap=True)
    for name, own in by_policy(trials).items():
        if name.startswith(_NO_WORK):
            continue
        costs = [prices.of(trial) for trial in own]
        mean = {key: sum(cost[key] for cost in costs) / len(costs) for key in costs[0]}
        table.add_row(
            name,
            str(own[0].contender.standbys),
            f"{mean['memory_mb']:,.0f}",
            f"{mean['written_mb_per_round']:,.0f}",
            f"{mean['cost_per_hour']:,.2f}",
            f"{mean['cost_per_1000_rounds']:,.2f}",
        )
    return table


def _shown(trials: Sequence[Trial]) -> list[str]:
    """Return the measures to show: of accuracy, loss and moves, only the first known one."""
    trained = any(trial.evaluation is not None for trial in trials)
    accurate = any(trial.accuracy is not None for trial in trials)
    last = "accuracy" if accurate else "loss" if trained else "moves"
    return [name for name in MEASURES if name == last or name not in _ONE_OF]


def measured(trial: Trial, measure: str) -> float | None:
    """Return a policy's measure in one job; None if the job doesn't have it."""
    oracle = trial.contender.name.startswith(_NO_WORK)
    return None if oracle and measure in _OF_WORK else MEASURES[measure][1](trial)


def _number(value: float, written: str) -> str:
    """Return a number as text; a number that rounds to zero has no sign."""
    text = f"{value:{written}}"
    return text.removeprefix("-") if float(text) == 0 else text


def _cell(trials: Sequence[Trial], measure: str) -> str:
    estimated = estimate(trials, measure)
    if estimated is None:
        return "-"
    _, _, factor, written = MEASURES[measure]
    text = _number(estimated.mean * factor, written)
    if measure != _WITH_INTERVAL or estimated.half_width is None:
        return text
    width = estimated.half_width * factor
    return f"{text} ±{width:{'3.0f' if width >= _WIDE else '3.1f'}}"
