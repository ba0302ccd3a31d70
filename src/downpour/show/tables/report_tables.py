"""A study and its runs as tables of plain values, which know how to be text, CSV and JSON.

A cell holds text, a number, an estimate over repetitions, or nothing. The columns' keys (for
programs) and headers (for people) name the units; shares are in percent.
"""

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from statistics import fmean
from typing import Any

from downpour.base.states import LOSS
from downpour.base.values import Part
from downpour.record.record_lines import Sample
from downpour.record.result import Result
from downpour.record.result_parts import Estimate, Measure, RoundResult, names_of
from downpour.record.study_result import RunResult, StudyResult, SubgridResult, label, natural
from downpour.record.timeline import AttemptSpan

Cell = str | int | float | Estimate | None
SPREADS: Mapping[str, str] = {
    "interval": "± 95 % interval of the mean",
    "deviation": "± standard deviation",
}
"""By name, what follows the ± of a mean."""
NOTHING = "–"


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key for programs, its header for people, its decimals, and its `limits`.

    No value can lie outside of the limits, and so no end of an interval is shown there.
    """

    key: str
    header: str
    decimals: int | None = None
    limits: tuple[float, float] = (-math.inf, math.inf)

    @property
    def is_text(self) -> bool:
        """Whether it holds names rather than measurements."""
        return self.decimals is None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under columns; `name` is the name of its files, `title` the one that people read.

    `subgrid` is the subgrid that the table is about, or none. The title names the `spread` that
    follows a mean.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    subgrid: str = ""
    spread: str = "interval"

    @property
    def caption(self) -> str:
        """The title, with the meaning of ± if there is any."""
        cells = (cell for row in self.rows for cell in row if isinstance(cell, Estimate))
        has_spread = any(cell.half_width is not None for cell in cells)
        return f"{self.title} ({SPREADS[self.spread]})" if has_spread else self.title

    def texts(self) -> list[list[str]]:
        """Write every cell for people."""
        return [
            [
                written(cell, column, self.spread)
                for cell, column in zip(row, self.columns, strict=True)
            ]
            for row in self.rows
        ]

    def to_latex(self) -> str:
        """Write the table for LaTeX, with the rules of its package booktabs."""
        heads = [column.header for column in self.columns]
        lines = [" & ".join(map(_as_latex, row)) + r" \\" for row in [heads, *self.texts()]]
        sides = "".join("l" if column.is_text else "r" for column in self.columns)
        body = [r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
        needs = r"% needs \usepackage{booktabs}"
        begin = [needs, r"\begin{table}", rf"\caption{{{_as_latex(self.caption)}}}", r"\centering"]
        tabular = [rf"\begin{{tabular}}{{{sides}}}", *body, r"\end{tabular}", r"\end{table}"]
        return "\n".join([*begin, *tabular]) + "\n"

    def to_markdown(self) -> str:
        """Write the table for a page of Markdown, with right-aligned numbers."""
        rows = [[text.replace("|", "\\|") for text in row] for row in self.texts()]
        heads = [column.header for column in self.columns]
        rules = ["---" if column.is_text else "--:" for column in self.columns]
        lines = [f"| {' | '.join(row)} |" for row in [heads, rules, *rows]]
        return f"**{self.caption}**\n\n" + "\n".join(lines) + "\n"

    def to_csv(self) -> str:
        """Write the table as CSV; an estimate takes columns for mean, interval and deviation."""
        wide = {
            place
            for place in range(len(self.columns))
            if any(isinstance(row[place], Estimate) for row in self.rows)
        }

        def flat(cells: Iterable[Any], parts: Callable[[Any], list[Any]]) -> list[Any]:
            several = (parts(c) if place in wide else [c] for place, c in enumerate(cells))
            return [*chain.from_iterable(several)]

        keys = (column.key for column in self.columns)
        head = flat(keys, lambda key: [key, f"{key}_ci95", f"{key}_sd"])
        text = io.StringIO(newline="")
        rows = [head, *(flat(row, _parts) for row in self.rows)]
        csv.writer(text, lineterminator="\n").writerows(rows)
        return text.getvalue()

    def to_json(self) -> str:
        """Write the table as a list of objects, one per row."""
        rows = [
            {column.key: _plain(cell) for column, cell in zip(self.columns, row, strict=True)}
            for row in self.rows
        ]
        return json.dumps(rows, indent=2, allow_nan=False) + "\n"


def written(cell: Cell, column: Column, spread: str = "interval") -> str:
    """Write a cell for people: "94.22 ± 0.12"; at the end of a range, both sides differ."""
    match cell:
        case None:
            return NOTHING
        case Estimate():
            return _estimated(cell, column, spread)
        case float():
            return f"{cell:.{column.decimals or 0}f}"
        case _:
            return str(cell)


def _estimated(cell: Estimate, column: Column, spread: str) -> str:
    digits = f".{column.decimals or 0}f"
    width = cell.half_width if spread == "interval" else cell.deviation
    if width is None or (width == 0 and not column.decimals):  # a count that never varied
        return f"{cell.mean:{digits}}"
    low, high = (cell.mean - column.limits[0], column.limits[1] - cell.mean)
    if spread == "interval" and min(low, high) < width:
        return f"{cell.mean:{digits}} −{min(low, width):{digits}} +{min(high, width):{digits}}"
    return f"{cell.mean:{digits}} ± {width:{digits}}"


_LATEX = str.maketrans({sign: rf"\{sign}" for sign in "#$%&_{}"} | {"±": r"$\pm$", "−": r"$-$"})


def _as_latex(text: str) -> str:
    text = text.replace("\\", r"\textbackslash ").translate(_LATEX)
    return re.sub(r"^-(?=\d)", "$-$", text)


def _parts(cell: Cell) -> list[Cell]:
    if isinstance(cell, Estimate):
        return [cell.mean, cell.half_width, cell.deviation]
    return [cell, None, None]


def _plain(cell: Cell) -> Any:
    if isinstance(cell, Estimate):
        spread = {"ci95": cell.half_width, "sd": cell.deviation}
        return {"mean": cell.mean, **spread, "trials": cell.count}
    return cell


WORKERS_NAME = "workers"
"""The name of a table that belongs to no subgrid; other tables are named after their subgrids."""


def shards(subgrid: SubgridResult) -> Table:
    """Return the examples of each shard, and of each class in it, for each split of the runs."""
    splits = subgrid.splits
    count, is_alone = max(split.classes for split in splits), len(splits) == 1
    rows: list[tuple[Cell, ...]] = []
    for split in splits:
        measured = zip(split.sizes, split.distances, split.by_class.tolist(), strict=True)
        for shard, (size, distance, by_class) in enumerate(measured):
            rest = [None] * (count - len(by_class))
            name = () if is_alone else (split.split,)
            rows.append((*name, shard, int(size), float(distance), *by_class, *rest))
    columns = (
        *(() if is_alone else (Column("split", "split"),)),
        Column("shard", "shard", 0),
        Column("examples", "examples", 0),
        Column("distance", "distance", 2),
        *(Column(f"class_{c}", f"class {c}", 0) for c in range(count)),
    )
    title = f"{subgrid.name}: examples of each class in each shard, and its distance from all data"
    return Table(f"{subgrid.name}-shards", title, columns, tuple(rows), subgrid.name)


def workers(result: Result) -> Table:
    """Return each worker's work in a run: its attempts by their ends, and its training time."""
    by_worker: dict[str, list[AttemptSpan]] = {}
    for span in result.spans:
        by_worker.setdefault(span.worker, []).append(span)
    whole = max((span.end_seconds for span in result.spans), default=0.0)
    rows: list[tuple[Cell, ...]] = []
    for worker in sorted(by_worker, key=natural):
        spans = by_worker[worker]
        ends = Counter(span.outcome for span in spans)
        busy = sum(span.end_seconds - span.begin_seconds for span in spans)
        rows.append(
            (
                worker,
                ends["trained"],
                sum(span.last for span in spans),
                ends["moved"],
                ends["failed"],
                busy,
                100 * busy / whole if whole else None,
            )
        )
    columns = (
        Column("worker", "worker"),
        Column("trained", "trained", 0),
        Column("waited_for", "waited for", 0),
        Column("moved", "moved on", 0),
        Column("failed", "failed", 0),
        Column("busy_seconds", "busy s", 2),
        Column("busy_percent", "busy %", 1),
    )
    return Table(WORKERS_NAME, "Attempts of each worker", columns, tuple(rows))


def tables_of(study: StudyResult, spread: str = "interval") -> list[Table]:
    """Make every table that the study has data for."""
    made = []
    for subgrid in study.subgrids:
        made += [outcomes(subgrid), epochs(subgrid)]
        if len(subgrid.measured) > 1 and subgrid.repetitions > 1:
            made.append(differences(subgrid))
        if any(run.has_uneven_data and final_classes(run) for run in subgrid.runs):
            made.append(classes(subgrid))
        if any(run.resources for run in subgrid.runs):
            made.append(resources(subgrid))
        if subgrid.splits:
            made.append(shards(subgrid))
    if study.is_single and study.subgrids[0].runs:
        made.append(workers(study.subgrids[0].runs[0].result))
    return [replace(table, spread=spread) for table in (*made, runs(study))]


def measured_by(subgrid: SubgridResult) -> list[Measure]:
    """Return the measures of a subgrid's runs: their metrics, or else the loss.

    The list is never empty: for runs without an evaluation, it holds the accuracy.
    """
    results = [run.result for run in subgrid.runs]
    if names := names_of(result.metrics for result in results):
        known = [result.metrics for result in results]
        known += [epoch.metrics for result in results for epoch in result.epochs]
        return [Measure.of(name, (metrics.get(name) for metrics in known)) for name in names]
    has_loss = any(result.test_loss is not None for result in results)
    return [Measure(LOSS if has_loss else "accuracy")]


def part_of(subgrid: SubgridResult) -> Part:
    """Return the examples that the epochs of a subgrid's runs were evaluated on."""
    parts = {run.result.part for run in subgrid.runs}
    return parts.pop() if len(parts) == 1 else "test"


def outcomes(subgrid: SubgridResult) -> Table:
    """Return the outcome of each setting: the final model's metrics, and seconds."""
    measures: list[tuple[Column, Callable[[Result], float | None]]] = [
        *((_column(measure), partial(_shown, measure)) for measure in measured_by(subgrid)),
        (_seconds("train_seconds", "training s"), lambda r: r.train_seconds),
        (_seconds("aggregate_seconds", "aggregation s", 3), lambda r: r.aggregate_seconds),
        (_seconds("evaluate_seconds", "evaluation s"), lambda r: r.evaluate_seconds),
        (_seconds("total_seconds", "total s"), lambda r: r.total_seconds),
    ]
    rows = []
    for values in subgrid.settings:
        results = [run.result for run in subgrid.at(values)]
        estimates = (Estimate.of(map(measure, results)) for _, measure in measures)
        failed = sum(not lost.blameless for result in results for lost in result.failures)
        rows.append((*map(label, values), len(results), *estimates, failed))
    failures = Column("failed_attempts", "failed attempts", 0)
    columns = Column("trials", "runs", 0), *(column for column, _ in measures), failures
    title = f"final {measured_by(subgrid)[0].words} and seconds"
    return _table(subgrid, "outcomes", title, columns, rows)


def epochs(subgrid: SubgridResult) -> Table:
    """Return metrics and losses of each setting after each epoch."""
    measures: list[tuple[Column, Callable[[RoundResult], float | None]]] = [
        *(
            (_column(measure), partial(_shown, measure))
            for measure in measured_by(subgrid)
            if measure.name != LOSS
        ),
        (Column("train_loss", "train loss", 4), lambda r: r.train_loss),
        (_column(Measure(LOSS, part_of(subgrid))), lambda r: r.test_loss),
        (_seconds("train_seconds", "training s"), lambda r: r.train_seconds),
    ]
    rows = []
    for values, runs_here in subgrid.measured:
        for epoch in range(max(len(run.result.epochs) for run in runs_here)):
            there = [r.result.epochs[epoch] for r in runs_here if epoch < len(r.result.epochs)]
            estimates = (Estimate.of(map(measure, there)) for _, measure in measures)
            rows.append((*map(label, values), epoch + 1, *estimates))
    columns = Column("epoch", "epoch", 0), *(column for column, _ in measures)
    return _table(subgrid, "epochs", "epochs", columns, rows)


def differences(subgrid: SubgridResult) -> Table:
    """Return how much each setting differs from the first one, over repetitions of one seed.

    Repetitions share their seeds. So the noise that two settings have in common drops out, and
    the interval of the differences is narrower than those of the means.
    """
    (base, first), *others = subgrid.measured
    measures: list[tuple[Column, Callable[[Result], float | None]]] = [
        *(
            (Column(one.key, one.header, one.decimals), partial(_shown, one))
            for one in measured_by(subgrid)
        ),
        (Column("train_seconds", "training s", 2), lambda r: r.train_seconds),
    ]
    by_seed = {(run.repetition, run.result.spec.get("seed")): run.result for run in first}
    rows = []
    for values, runs_here in others:
        seeds = ((run.result, (run.repetition, run.result.spec.get("seed"))) for run in runs_here)
        pairs = [(result, by_seed[seed]) for result, seed in seeds if seed in by_seed]
        estimates = (Estimate.of(_difference(*map(m, pair)) for pair in pairs) for _, m in measures)
        rows.append((*map(label, values), len(pairs), *estimates))
    columns = Column("pairs", "pairs", 0), *(column for column, _ in measures)
    title = f"differences from {setting_of(subgrid, base)}, by seed"
    return _table(subgrid, "differences", title, columns, rows)


def _difference(value: float | None, base: float | None) -> float | None:
    return None if value is None or base is None else value - base


def classes(subgrid: SubgridResult) -> Table:
    """Return the final models' accuracy of each class."""
    known = [(values, [*map(final_classes, runs_here)]) for values, runs_here in subgrid.measured]
    count = max((len(shares) for _, all_shares in known for shares in all_shares), default=0)
    rows = []
    for values, all_shares in known:
        by_class = ([s[c] for s in all_shares if c < len(s)] for c in range(count))
        rows.append((*map(label, values), *(Estimate.of(map(percent, s)) for s in by_class)))
    columns = [Column(f"class_{c}_percent", f"class {c} %", 1, _PERCENT) for c in range(count)]
    return _table(subgrid, "classes", "final accuracy of each class", columns, rows)


def resources(subgrid: SubgridResult) -> Table:
    """Return the resources that the processes of each setting used in training, per process."""
    measures: list[tuple[Column, Callable[[Iterable[Sample]], float]]] = [
        (Column("cpu_cores", "CPU cores", 2), lambda used: fmean(s.cpu_share for s in used)),
        (
            Column("memory_mb", "peak memory MB", 0),
            lambda used: max(s.memory_bytes / 1e6 for s in used),
        ),
        (Column("threads", "peak threads", 0), lambda used: max(s.threads for s in used)),
        (
            Column("io_wait_percent", "I/O wait %", 2),
            lambda used: fmean(100 * s.io_wait for s in used),
        ),
    ]
    rows = []
    for values, runs_here in subgrid.measured:
        if sampled := [run.resources for run in runs_here if run.resources]:
            processes = max(map(len, sampled))
            estimates = (
                Estimate.of(measure(chain.from_iterable(used.values())) for used in sampled)
                for _, measure in measures
            )
            rows.append((*map(label, values), processes, *estimates))
    columns = Column("processes", "processes", 0), *(column for column, _ in measures)
    title = "a process's resources while it trained"
    return _table(subgrid, "resources", title, columns, rows)


def runs(study: StudyResult) -> Table:
    """List every run that counts, with its measurements."""
    found = [measure for subgrid in study.subgrids for measure in measured_by(subgrid)]
    largest = {one.name: one for one in sorted(found, key=lambda one: one.most)}
    measures = [largest[name] for name in dict.fromkeys(one.name for one in found)]
    columns = (
        # Programs read these keys, so they keep their first names.
        Column("group", "subgrid"),
        Column("setting", "setting"),
        Column("trial", "repetition", 0),
        *(Column(key, key, 0) for key in ("seed", "workers", "shards")),
        Column("experiment", "experiment"),
        *map(_column, measures),
        Column("train_seconds", "training s", 3),
        Column("total_seconds", "total s", 3),
    )
    rows = tuple(
        (
            subgrid.name,
            setting_of(subgrid, run.values),
            run.repetition,
            int(run.result.spec.get("seed", 0)),
            run.workers or len({span.worker for span in run.result.spans}) or None,
            run.result.shards,
            run.result.experiment,
            *(_shown(measure, run.result) for measure in measures),
            run.result.train_seconds,
            run.result.total_seconds,
        )
        for subgrid in study.subgrids
        for run in subgrid.runs
    )
    return Table("runs", "All runs", columns, rows)


def percent(share: float | None) -> float | None:
    """Return a share in percent, as tables show it."""
    return None if share is None else 100 * share


def setting_of(subgrid: SubgridResult, values: Sequence[Any]) -> str:
    """Name a place in a subgrid: "split class, aggregate first"."""
    return ", ".join(
        f"{axis} {label(value)}" for axis, value in zip(subgrid.axes, values, strict=True)
    )


def final_classes(run: RunResult) -> tuple[float | None, ...]:
    """Return the accuracy of each class at the last evaluation, as shares in 0..1."""
    return next((r.class_accuracy for r in reversed(run.result.rounds) if r.class_accuracy), ())


def _table(
    subgrid: SubgridResult,
    name: str,
    title: str,
    columns: Iterable[Column],
    rows: Iterable[tuple[Cell, ...]],
) -> Table:
    """Return a table of a subgrid, whose rows begin with the values on its axes."""
    axes = (Column(axis, axis.replace("_", " ")) for axis in subgrid.axes)
    title = f"{subgrid.name}: {title}"
    return Table(f"{subgrid.name}-{name}", title, (*axes, *columns), tuple(rows), subgrid.name)


_PERCENT = (0.0, 100.0)


def _seconds(key: str, header: str, decimals: int = 2) -> Column:
    return Column(key, header, decimals, (0.0, math.inf))


def _column(measure: Measure) -> Column:
    limits = {"limits": _PERCENT} if measure.is_share else {}
    return Column(measure.key, measure.header, measure.decimals, **limits)


def _shown(measure: Measure, measured: Result | RoundResult) -> float | None:
    return measure.shown(measured.measured(measure.name))
