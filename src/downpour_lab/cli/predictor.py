"""`downpour predictor`: scores predictors of completion times, and trains them on traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass
from functools import partial
from itertools import groupby
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from downpour.base.errors import SpecError, did_you_mean, require
from downpour.base.options import argument, flag, option
from downpour.cli import common
from downpour.cli.commands import COMPARE, Command, CommandKind, Group
from downpour.cli.common import checked_number, command, refuse_unused
from downpour.cli.printing import err, note, out, print_json, progress_bar

if TYPE_CHECKING:
    from rich.table import Table

    from downpour_lab.fitting.scoring import Coverage, Replayed, Score
    from downpour_lab.fitting.training import TrainingSettings

    Judge = Callable[[str, Sequence[Replayed], str], Iterator[Score | Coverage]]

_TEXTS = ("predictor", "known at", "tasks")

app = typer.Typer(
    help="Score or train predictors of completion times.", cls=Group, rich_markup_mode=None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FitOptions:
    """The options of each fitting."""

    nets: int = option(2, "The number of nets to train; the prediction is their mean.", "N")
    epochs: int = option(60, "Passes over all jobs for each net.", "N")
    seed: int = option(0, "The seed of every random choice.", "N")


_traces = partial(
    argument,
    text="A trace: an .npz file with a row for each task; traces/README.md lists the columns.",
    metavar="TRACES",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """The options of `downpour predictor score`, beside those of fitting."""

    traces: Path = _traces()
    predictor: Path | None = option(
        None, "Score the predictor in this file.", "FILE", default="the one that is shipped"
    )
    only: str = option("", "Score only these predictors.", "NAME,NAME", default="all of them")
    retrain: bool = flag("Retrain in each fold, on the jobs of the other folds.")
    folds: int = option(4, "The number of folds, if something is fitted.", "N")
    hold_out: str = option(
        "", "Make a fold of each group of jobs, by a label in jobs.json.", "LABEL"
    )
    by: str = option(
        "", "Score each group of jobs separately, by a label such as scenario.", "LABEL"
    )
    coverage: bool = flag("Print how honest the quantiles are, by how long we have known a worker.")
    stress: str = option(
        "",
        "Score on harder traces: joins (workers join late) or paces (workers slow down).",
        "NAME",
    )
    as_json: bool = common.as_json()


@app.command("score", cls=Command)
@command
def score(context: typer.Context, options: ScoreOptions, fit: FitOptions) -> None:
    """Print how good each predictor is on traces.

    Each predictor forecasts a task at assignment, and again when a quarter of it is done. MAPE is
    the mean error of the median, in % of the task's time. Pinball is the mean loss of all
    quantiles, of log seconds. ≤ q90 is the share of tasks below their 90 % quantile. A straggler is
    a task that takes more than 1.5 times the median of its round. Precision, recall and PR-AUC are
    for predicting them. The last column is microseconds of processor time per task.

    With --coverage, the columns are the shares of tasks below their q10, q50, q90 and q98. Then
    come the mean width between q10 and q90, of log seconds, pinball as above, and the share of
    workers that are more than 5 points off at q90. Rows count a worker's tasks since the trace
    began or, with --stress, since it joined or slowed down.

    The command scores predictors from a file as they are, and always fits trees on the jobs of
    other folds.
    """
    require("downpour predictor score", "predictor")
    from downpour.predictor import read_trained
    from downpour_lab.fitting.scoring import CrossValidation, coverages, judge_all, scores
    from downpour_lab.fitting.training_data import read_traces

    if not options.retrain:
        refuse_unused(context, {"nets", "epochs"}, "needs --retrain")
    names = _names(options.only)
    trace, trained = read_traces(options.traces), read_trained(options.predictor)
    validation = CrossValidation(
        names=names,
        trained=trained,
        folds=checked_number("folds", options.folds, 2),
        settings=_settings(fit) if options.retrain else None,
        by=options.by,
        held_out=options.hold_out,
        stress=options.stress,
    )
    with _progress(validation.steps(trace)) as step:
        judge: Judge = coverages if options.coverage else scores
        judged = judge_all(trace, validation, judge, step)
    if options.as_json:
        print_json([asdict(row) for row in judged])
    else:
        for _, group in groupby(judged, key=lambda row: row.group):
            out().print(_table(list(group)))
    from_these = {"ridge", "lstm", "selector"} & {*names}
    if from_these and not options.retrain and trained.traces == trace.checksum():
        note(
            "ridge, lstm, selector were trained on these same traces: --retrain scores them fairly"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """The options of `downpour predictor train`, beside those of fitting."""

    traces: Path = _traces()
    file: Path = option(MISSING, "The file to write (safetensors).", "FILE", flag="--out")


@app.command("train", cls=Command)
@command
def train(options: TrainOptions, fit: FitOptions) -> None:
    """Train predictors on traces, and write them to a file.

    It trains the LSTM and the ridge regression, with one thread. With one build of torch, the same
    traces, settings and seed give the same file.
    """
    from downpour.predictor.learned import write_trained
    from downpour_lab.fitting.training import train as train_on
    from downpour_lab.fitting.training_data import prepare, read_traces

    settings, file = _settings(fit), options.file
    if not file.parent.is_dir() or (file.exists() and not file.is_file()):
        raise SpecError("out", str(file), "must be a file in a folder that exists")
    trace = read_traces(options.traces)
    jobs = [job.number for job in trace.jobs]
    with _progress(2 * len(jobs) + fit.nets * fit.epochs) as step:
        trained = train_on(prepare(trace, fit.seed, step), jobs, settings, step)
    size = write_trained(file, trained)
    note(f"{file}: {size / 1024:.0f} KiB, trained on {len(jobs)} jobs")


@contextmanager
def _progress(steps: int) -> Iterator[Callable[[str], None]]:
    """Show a bar, with the name of the current step; without a terminal, a line after each part."""
    done, last = 0, ""
    with progress_bar("predictor", steps) as show:

        def step(doing: str) -> None:
            nonlocal done, last
            part = doing.partition(" (")[0]  # without the loss
            if last not in {"", part} and not err().is_terminal:
                note(f"{last}: {done} of {steps} steps")
            done, last = done + 1, part
            show(advance=1, description=doing)

        yield step


def _settings(fit: FitOptions) -> TrainingSettings:
    from downpour_lab.fitting.training import TrainingSettings

    least = {"nets": 1, "epochs": 1, "seed": 0}
    return TrainingSettings(
        **{name: checked_number(name, getattr(fit, name), least[name]) for name in least}
    )


def _names(only: str) -> list[str]:
    """Return the predictors that `only` names, or all if it is empty."""
    from downpour_lab.fitting.scoring import NAMES

    names = [name.strip() for name in only.split(",")] if only else list(NAMES)
    for name in names:
        if name not in NAMES:
            accepted = f"must be one of {', '.join(NAMES)}"
            raise SpecError("only", name, accepted + did_you_mean(name, NAMES))
    return names


def _table(rows: Sequence[Score | Coverage]) -> Table:
    from downpour.show.tables.terminal_tables import text_table

    cells = [_cells(row) for row in rows]
    columns = [(name, [row[name] for row in cells]) for name in cells[0]]
    return text_table(columns, title=rows[0].group or None, names=_TEXTS, is_tight=True)


def _cells(row: Score | Coverage) -> dict[str, str]:
    """Return a row of the table, by the names of its columns."""
    from downpour_lab.fitting.scoring import Score

    told = {"predictor": row.predictor, "known at": row.stage}
    if isinstance(row, Score):
        return told | {
            "MAPE": f"{row.mape:.1%}",
            "pinball": f"{row.pinball:.4f}",
            "≤ q90": f"{row.coverage:.1%}",
            "precise": f"{row.precision:.3f}",
            "recall": f"{row.recall:.3f}",
            "PR-AUC": f"{row.pr_auc:.3f}",
            "µs": f"{row.microseconds:.0f}",
        }
    shares = zip(("≤ q10", "≤ q50", "≤ q90", "≤ q98"), row.below, strict=True)
    return (
        told
        | {"tasks": row.tasks, "n": f"{row.count}"}
        | {name: f"{share:.1%}" for name, share in shares}
        | {
            "width": f"{row.width:.3f}",
            "pinball": f"{row.pinball:.4f}",
            "off": "" if isnan(row.off) else f"{row.off:.0%}",
        }
    )


COMMAND = CommandKind(app, COMPARE)
