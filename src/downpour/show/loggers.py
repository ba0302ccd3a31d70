"""Loggers: other places, besides our records, in which users store their experiments' numbers."""

import csv
import io
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any, Protocol

from downpour.base.errors import SpecError, require, shortened
from downpour.base.names import Family, Member
from downpour.base.states import ExperimentState
from downpour.files.store.publish import explain
from downpour.host.paths import path_of
from downpour.record.result import Result
from downpour.record.result_parts import RoundResult
from downpour.record.rows import StepPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """An experiment at the start of its log.

    `spec` holds the fields of its spec. If it resumes another experiment, `resumes` names that one
    first, then the one that this resumed, and so on. `rounds_before` and `epochs_before` count what
    all of them trained. The rounds and epochs that a logger gets continue from there.
    """

    experiment: str
    name: str
    spec: Mapping[str, Any]
    resumes: tuple[str, ...] = ()
    rounds_before: int = 0
    epochs_before: int = 0

    @property
    def first(self) -> str:
        """The experiment with which the training began; loggers continue its log."""
        return self.resumes[-1] if self.resumes else self.experiment


class Logger(Protocol):
    """Stores one experiment's epochs; one thread calls its methods one after the other.

    A method may raise anything: Downpour logs the error once, and training continues. A slow method
    delays only the calls after it. A logger may also have `log_steps(points)`. Downpour calls that
    once a round has become a model, with the training loss per step in a list of `StepPoint`.
    """

    def begin(self, run: LoggedRun) -> None:
        """Called first, after the experiment's submission."""

    def log(self, epoch: RoundResult) -> None:
        """Called after each evaluation, with the evaluated epoch."""

    def end(self, result: Result) -> None:
        """Called last, when the experiment has ended, or when its caller stops waiting for it."""


LoggerKind = Callable[[str], Logger]
"""Makes a logger from a target, the part after the colon of `--log NAME:TARGET`, or "".

Raises SpecError if the target cannot be used, and MissingPackage if a library is not installed.
"""


def scalars_of(run: LoggedRun, epoch: RoundResult) -> dict[str, float]:
    """Return the measurements of an epoch as numbers by name.

    Metrics and the loss are of the test examples, or of the validation examples if the spec
    reserves some.
    """
    part = "validation" if run.spec.get("validation") else "test"
    scalars = {
        **{f"{part}/{name}": value for name, value in epoch.metrics.items()},
        f"{part}/loss": epoch.test_loss,
        "train/loss": epoch.train_loss,
        "seconds/train": epoch.train_seconds,
        "seconds/aggregate": epoch.aggregate_seconds,
        "seconds/evaluate": epoch.evaluate_seconds,
        "bytes": epoch.bytes,
    }
    return {name: value for name, value in scalars.items() if value is not None}


def ending_of(result: Result) -> dict[str, float]:
    """Return the numbers known at the end: the test results, and the seconds of everything."""
    scalars: dict[str, float | None] = {"seconds/total": result.total_seconds}
    if result.tested is not None:
        scalars |= {f"test/{name}": value for name, value in result.tested.metrics.items()}
        scalars["test/loss"] = result.tested.loss
    return {name: value for name, value in scalars.items() if value is not None}


LOGGERS = Family(
    "log",
    "downpour.loggers",
    {
        "csv": Member("downpour.show.loggers:CsvFile", "csv:FILE"),
        "mlflow": Member("downpour.show.loggers:MlflowRun"),
        "wandb": Member("downpour.show.loggers:WandbRun", "Weights & Biases"),
        "trackio": Member("downpour.show.loggers:TrackioRun"),
    },
)
"""The places that can log epochs, one `LoggerKind` each."""


def logger_of(chosen: Logger | str) -> Logger:
    """Return the logger that a user names, as NAME or NAME:TARGET, or the logger itself."""
    if not isinstance(chosen, str):
        return chosen
    name, _, target = chosen.partition(":")
    kind: LoggerKind = LOGGERS[LOGGERS.check(name)]
    return kind(target)


_KEYS = ["experiment", "epoch", "round"]
Row = dict[str, str]


class CsvFile:
    """Appends a row for each epoch; rows of other experiments stay.

    The first columns are `experiment`, `epoch` and `round`. A resumed experiment keeps the rows of
    earlier experiments, and replaces the rows of rounds that it trains again.

    Args:
        target: The file; made if it is missing.
    """

    def __init__(self, target: str) -> None:
        if not target:
            raise SpecError("log", "csv", "needs a file: csv:FILE")
        self._path = path_of("log", target)
        self._columns: list[str] = []
        self._read()
        try:
            with self._path.open("a"):
                pass  # check now, because later errors only reach the log
        except OSError as error:
            raise self._refusal(explain(error)) from None

    def begin(self, run: LoggedRun) -> None:
        """Keep the rows that count."""
        self._run = run
        rows = self._read()
        kept = [row for row in rows if not self._is_again(row)]
        if len(kept) < len(rows):
            self._write(kept)

    def log(self, epoch: RoundResult) -> None:
        """Append a row; if it has new columns, add them to all rows."""
        keys = self._run.experiment, epoch.epoch, epoch.round
        scalars = scalars_of(self._run, epoch)
        row = dict(zip(_KEYS, map(str, keys), strict=True))
        row |= {name: f"{value:.10g}" for name, value in scalars.items()}
        rows = self._read()
        if columns := [name for name in row if name not in self._columns]:
            self._columns += columns
            self._write([*rows, row])
        else:
            with self._path.open("a", newline="", encoding="utf-8") as file:
                file.write(self._text([row]))

    def end(self, result: Result) -> None:
        """Leave the file as it is."""

    def _is_again(self, row: Row) -> bool:
        """Whether a row is about a round that this experiment trains again."""
        if row["experiment"] == self._run.experiment:
            return True
        return row["experiment"] in self._run.resumes and int(row["round"]) > (
            self._run.rounds_before
        )

    def _read(self) -> list[Row]:
        """Return all rows, and note the columns."""
        try:
            with self._path.open(newline="", encoding="utf-8") as file:
                table = csv.DictReader(file, strict=True)
                self._columns = list(table.fieldnames or [])
                rows = list(table)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._refusal(explain(error)) from None
        except (csv.Error, UnicodeDecodeError):
            raise self._refusal("is not a CSV file") from None
        is_ours = not self._columns or self._columns[: len(_KEYS)] == _KEYS
        if not is_ours or any(not (row["round"] or "").isdecimal() for row in rows):
            raise self._refusal(f"its columns must begin with {', '.join(_KEYS)}; name a new file")
        return rows

    def _write(self, rows: list[Row]) -> None:
        """Replace the whole file; a crash leaves the old file or the new one."""
        header = dict(zip(self._columns, self._columns, strict=True))
        beside = self._path.with_name(f".{self._path.name}.new")
        beside.write_text(self._text([header, *rows]), encoding="utf-8", newline="")
        beside.replace(self._path)

    def _text(self, rows: list[Row]) -> str:
        text = io.StringIO(newline="")
        csv.DictWriter(text, self._columns, lineterminator="\n").writerows(rows)
        return text.getvalue()

    def _refusal(self, why: str) -> SpecError:
        return SpecError("log", f"csv:{self._path}", why)


_TAG = "downpour.experiment"
_VALUE_LETTERS_MAX = 6000
_STATUS = {ExperimentState.FINISHED: "FINISHED", ExperimentState.CANCELLED: "KILLED"}


class MlflowRun:
    """Logs to the tracking server that MLflow's own settings name, or to the target.

    The spec's name is the name of the MLflow experiment. A tag of the run has the identifier of the
    first experiment of a training, so a resumed experiment finds the run again and continues it.

    Args:
        target: A tracking URI, such as http://HOST:PORT or sqlite:///FILE; by default MLflow's own.
    """

    def __init__(self, target: str) -> None:
        require("--log mlflow", "mlflow")
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        try:
            self._client = MlflowClient(target or None)
        except (MlflowException, ImportError) as error:  # a database needs SQLAlchemy
            name = f"mlflow:{target}" if target else "mlflow"
            raise SpecError("log", name, shortened(str(error), 200)) from None

    def begin(self, run: LoggedRun) -> None:
        """Begin a run, or continue the run of the experiment that this one resumes."""
        self._run = run
        found = self._client.get_experiment_by_name(run.name)
        place = found.experiment_id if found else self._client.create_experiment(run.name)
        search = f"tags.`{_TAG}` = '{run.first}'"
        runs: Any = self._client.search_runs([place], search, max_results=1) if run.resumes else ()
        if runs:
            self._id: str = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            made = self._client.create_run(place, tags={_TAG: run.first}, run_name=run.experiment)
            self._id = made.info.run_id
            for name, value in run.spec.items():
                self._client.log_param(self._id, name, str(value)[:_VALUE_LETTERS_MAX])
        self._last_epoch, self._last_step = map(self._last_of, ("seconds/train", "step/loss"))

    def log(self, epoch: RoundResult) -> None:
        """Log the metrics of an epoch at its number, unless the run already has that epoch."""
        if epoch.epoch > self._last_epoch:
            self._log([StepPoint(epoch.epoch, scalars_of(self._run, epoch))])

    def log_steps(self, points: Sequence[StepPoint]) -> None:
        """Log the points that the run does not have."""
        self._log([point for point in points if point.step > self._last_step])

    def end(self, result: Result) -> None:
        """Log the final numbers, and say how the experiment ended."""
        last = self._run.epochs_before + len(result.epochs)
        self._log([StepPoint(last, ending_of(result))])
        self._client.set_terminated(self._id, _STATUS.get(result.state, "FAILED"))

    def _last_of(self, metric: str) -> int:
        points = self._client.get_metric_history(self._id, metric)
        return max((point.step for point in points), default=0)

    def _log(self, points: Sequence[StepPoint]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        rows = [(*each, now, point.step) for point in points for each in point.scalars.items()]
        self._client.log_batch(self._id, [Metric(*row) for row in rows])


class TrackioRun:
    """Logs into Trackio's local folder, or to the place that Trackio's own settings name.

    The first experiment of a training names the run, so a resumed experiment continues it.

    Args:
        target: The project; by default the spec's name.
    """

    def __init__(self, target: str) -> None:
        require("--log trackio", "trackio")
        self._project = target

    def begin(self, run: LoggedRun) -> None:
        """Begin a run, or continue the run of the experiment that this one resumes."""
        import trackio

        self._run = run
        with redirect_stdout(sys.stderr):  # Trackio prints, and standard output is for results
            self._log = trackio.init(
                project=self._project or run.name,
                name=run.first,
                config=dict(run.spec),
                resume="allow",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )

    def log(self, epoch: RoundResult) -> None:
        """Log an epoch at its number."""
        self._log.log(scalars_of(self._run, epoch), step=epoch.epoch)

    def log_steps(self, points: Sequence[StepPoint]) -> None:
        """Log points at their steps."""
        for point in points:
            self._log.log(point.scalars, step=point.step)

    def end(self, result: Result) -> None:
        """Log the final numbers, and finish the run."""
        import trackio

        last = self._run.epochs_before + len(result.epochs)
        self._log.log(ending_of(result), step=last)
        with redirect_stdout(sys.stderr):
            trackio.finish()


_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9_.-]")


class WandbRun:
    """Writes a run into ./wandb, or into WANDB_DIR; `wandb sync` uploads it later.

    Nothing leaves this machine unless WANDB_MODE is "online". The run has the identifier of the
    first experiment of a training. So the parts of a resumed training become one run, if you
    synchronize them with `wandb sync --append`.

    Args:
        target: The project; by default the spec's name.
    """

    def __init__(self, target: str) -> None:
        require("--log wandb", "wandb")
        self._project = target

    def begin(self, run: LoggedRun) -> None:
        """Begin a run."""
        mode: Any = os.environ.get("WANDB_MODE", "offline")
        if mode != "online":
            # wandb reads this during its import; otherwise it would report its own errors to its
            # makers.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self._run = run
        settings = wandb.Settings(
            console="off",
            disable_code=True,
            disable_git=True,
            quiet=True,
            silent=True,
            x_disable_meta=True,
            x_disable_stats=True,
        )
        self._log = wandb.init(
            project=self._project or run.name,
            id=_NOT_IN_AN_ID.sub("-", run.first)[:128],
            name=run.experiment,
            config=dict(run.spec),
            mode=mode,
            resume="allow",
            reinit="create_new",
            settings=settings,
        )
        for names in ("test/*", "validation/*", "train/*", "seconds/*", "bytes"):
            self._log.define_metric(names, step_metric="epoch")
        self._step = 0

    def log(self, epoch: RoundResult) -> None:
        """Log an epoch, with its number as `epoch`, after the steps so far."""
        self._step = max(self._step + 1, epoch.epoch)  # wandb drops rows of earlier steps
        row = {"epoch": epoch.epoch, **scalars_of(self._run, epoch)}
        self._log.log(row, step=self._step)

    def log_steps(self, points: Sequence[StepPoint]) -> None:
        """Log points at their steps."""
        for point in points:
            self._step = max(self._step, point.step)
            self._log.log(point.scalars, step=self._step)

    def end(self, result: Result) -> None:
        """Log the final numbers, and finish the run."""
        self._log.summary.update(ending_of(result))
        self._log.finish(exit_code=int(result.state is not ExperimentState.FINISHED))
