"""The result of an experiment, folded from its record: a value to print, plot or compare.

You can make a result at any moment of an experiment, from its record so far. Epochs and rounds
count from 1 here; a round is an epoch if the shards meet once in it. A missing measurement is None,
never NaN, so that you can compare results and write them as JSON. If a restarted manager recorded
something twice, the later fact counts. In a notebook, `show/notebook.py` supplies the drawings.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from downpour.base.errors import FileCorrupt, SpecError, one_line, require
from downpour.base.states import LOSS, ExperimentState
from downpour.base.values import Part
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.publish import explain
from downpour.host.paths import path_of
from downpour.record.record import stream_lines, stream_record
from downpour.record.record_lines import Dated, FailedLine, FinishedLine, PreparedLine
from downpour.record.result_parts import (
    BestModel,
    FailureResult,
    RoundResult,
    TaskResult,
    TestResult,
    in_words,
    names_of,
)
from downpour.record.rows import (
    UNUSED,
    Rows,
    best_of,
    epochs_of,
    failures_of,
    numeric_classes_of,
    reason_of,
    rounds_of,
    state_of,
    test_of,
)
from downpour.record.timeline import (
    AttemptSpan,
    Stragglers,
    disturbed_seconds,
    stragglers_of,
    worker_changes,
)

_FRAME_PIXELS = 640
"""The height of a page in a notebook."""


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """A whole HTML page that a notebook shows in a frame.

    The frame is sandboxed: the page's scripts run, but reach neither the notebook nor the network.
    """

    html: str

    def __repr__(self) -> str:
        """Say how large the page is."""
        return f"<NotebookPage {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        look = f"width: 100%; height: {_FRAME_PIXELS}px; border: 0"
        # We don't use `srcdoc`, because it resolves links to #places against the notebook's
        # address.
        source = f"data:text/html;charset=utf-8;base64,{b64encode(self.html.encode()).decode()}"
        return f'<iframe sandbox="allow-scripts" style="{look}" src="{source}"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file that every browser shows without a network."""
        file = path_of("path", path)
        try:
            file.write_text(self.html, encoding="utf-8")
        except OSError as error:
            raise SpecError("path", str(file), explain(error)) from None


DRAWINGS: dict[str, Callable[[Any], Any]] = {}
"""The functions that draw a result, by the name of its method."""


if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_REASON_SHOWN = 200
_LAID_FLAT = {"class_accuracy", "stragglers", "metrics"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """An experiment as far as it has come.

    `reason` says why it failed, was cancelled, or ended before its last epoch, or that it is
    paused. `asked_wrongly` says that the user can fix it by changing the spec. `model_file` is the
    final model, if the experiment is finished and its folder known. `best` is set if the spec keeps
    the best model, or stops early. `tested` is set if the spec's `validation` sets training
    examples apart. Downpour then evaluates epochs on these. The seconds of steps that have not
    happened yet are 0.
    `epochs` sum up their rounds. `stragglers` sums all of them up, if the policy was not `wait` or
    work was lost.
    `dataset` says how Downpour understood the examples; further lines say what is unusual about
    them. `numeric_classes` maps each numeric class to the processes that computed in it. These are
    the workers whose updates counted. If the workers train on the processor, the manager is one of
    them, because it drew the initial model there. `verified` says whether two processes have
    trained the first steps of your code to the same bytes; it is None if the spec trains none.
    `worker_changes` has a line for each worker that joined late, left, was lost or computes wrong,
    and for each process that its user disturbed on purpose. `spans` are the attempts at shards over
    time, and at `disturbed_seconds` a user disturbed a process; `timeline` draws both. `retrained`
    counts the tasks that had another update before.
    """

    experiment: str
    name: str
    spec: dict[str, Any]
    shards: int
    state: ExperimentState
    reason: str | None
    asked_wrongly: bool
    train_samples: int
    test_samples: int
    classes: int
    parameters: int
    rounds: tuple[RoundResult, ...]
    epochs: tuple[RoundResult, ...]
    tasks: Sequence[TaskResult]
    failures: tuple[FailureResult, ...]
    prepare_seconds: float
    split_seconds: float
    total_seconds: float
    model_file: Path | None
    stragglers: Stragglers | None = None
    numeric_classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    verified: bool | None = None
    dataset: tuple[str, ...] = ()
    worker_changes: tuple[str, ...] = ()
    best: BestModel | None = None
    tested: TestResult | None = None
    spans: Sequence[AttemptSpan] = field(default=(), repr=False, compare=False)
    disturbed_seconds: tuple[float, ...] = field(default=(), repr=False, compare=False)
    retrained: int = field(default=0, repr=False, compare=False)
    folder: Path | None = field(default=None, repr=False, compare=False)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Result:
        """Read the result of the experiment in a folder, `SHARED/experiments/ID`.

        Raises:
            SpecError: the argument is not a path.
            FileMissing: the folder has no record.
            FileCorrupt: someone altered the record.
        """
        folder = path_of("folder", folder)
        return result_of(rows_in(folder, UNUSED), folder)

    @classmethod
    def from_lines(cls, lines: Iterable[str], folder: Path | None = None) -> Result:
        """Make a result from the lines of a record, beginning with the first.

        Raises:
            FileCorrupt: a line cannot be read, or no line is a submission.
        """
        texts = [line.encode(errors="replace") for line in lines]
        return result_of(Rows.of(lambda: stream_lines(texts, without=UNUSED)), folder)

    @classmethod
    def from_record(cls, record: Sequence[Dated], folder: Path | None = None) -> Result:
        """Make a result from a record.

        Raises:
            FileCorrupt: the record has no submission.
        """
        return result_of(Rows.of(lambda: record), folder)

    def __repr__(self) -> str:
        """Say in one line which experiment it is, how far it came and how good it is."""
        count = len(self.epochs)
        parts = [self.state, f"{count} epoch{'' if count == 1 else 's'}"]
        measured = in_words(self.metrics, self.test_loss, self.last_part)
        parts += [measured] if measured else []
        parts += [f"{self.total_seconds:.1f} s"]
        parts += ["not verified"] if self.verified is False else []
        parts += [self.reason[:_REASON_SHOWN]] if self.reason else []
        return one_line(f"<Result {self.experiment}: {', '.join(parts)}>")

    def _repr_html_(self) -> str:
        return str(DRAWINGS["html"](self))

    def plot(self) -> Figure:
        """Draw metrics and losses by epoch; a notebook shows the figure.

        Raises:
            MissingPackage: Matplotlib is not installed.
        """
        drawn: Figure = DRAWINGS["plot"](self)
        return drawn

    def timeline(self) -> Figure:
        """Draw when each worker trained each shard; a notebook shows the figure.

        Raises:
            MissingPackage: Matplotlib is not installed.
        """
        drawn: Figure = DRAWINGS["timeline"](self)
        return drawn

    def page(self) -> NotebookPage:
        """Return the page of `downpour dashboard` with this experiment inside; a notebook shows it.

        Raises:
            SpecError: this machine does not see the experiment's folder.
        """
        drawn: NotebookPage = DRAWINGS["page"](self)
        return drawn

    @property
    def part(self) -> Part:
        """The examples that Downpour evaluates epochs on."""
        return "validation" if self.spec.get("validation") else "test"

    @property
    def last_part(self) -> Part:
        """The examples of the last evaluation."""
        return self.part if self.tested is None else "test"

    @property
    def metrics(self) -> dict[str, float | None]:
        """The task's metrics at the last evaluation, by name and in its order.

        If the spec sets training examples apart for validation, this is the evaluation on the test
        examples, once Downpour has made it.
        """
        if self.tested is not None:
            return self.tested.metrics
        return next((r.metrics for r in reversed(self.rounds) if r.metrics), {})

    @property
    def test_loss(self) -> float | None:
        """The loss on the test examples at the last evaluation; None before the first."""
        return self.measured(LOSS)

    @property
    def accuracy(self) -> float | None:
        """The share of right answers in the last evaluation, in 0..1; None before the first.

        It is also None if the task has no metric named `accuracy`: `metrics` has all its metrics.
        """
        return self.measured("accuracy")

    def measured(self, name: str) -> float | None:
        """Return a metric, or the loss as "loss", from the last evaluation that has it."""
        tested = [] if self.tested is None else [self.tested.measured(name)]
        found = chain(tested, (r.measured(name) for r in reversed(self.rounds)))
        return next((value for value in found if value is not None), None)

    @property
    def train_seconds(self) -> float:
        """The training time of all epochs together, without aggregation and evaluation."""
        return sum(r.train_seconds for r in self.rounds)

    @property
    def aggregate_seconds(self) -> float:
        """The aggregation time of all epochs together."""
        return sum(r.aggregate_seconds for r in self.rounds)

    @property
    def evaluate_seconds(self) -> float:
        """The evaluation time of all epochs together."""
        return sum(r.evaluate_seconds for r in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Turn the whole result into values that JSON can hold."""
        file = None if self.model_file is None else str(self.model_file)
        fields = {
            **dataclasses.asdict(dataclasses.replace(self, tasks=(), spans=())),
            "model_file": file,
        }
        fields["tasks"] = self._tasks_rows()
        for name in ("spans", "disturbed_seconds", "retrained", "folder"):
            del fields[name]
        for rows in ("rounds", "epochs"):
            fields[rows] = [self._with_metrics(row) for row in fields[rows]]
        if self.tested is None:
            del fields["tested"]
        if self.best is None:
            del fields["best"]
        else:
            fields["best"]["file"] = None if self.best.file is None else str(self.best.file)
        for part in (fields, *fields["rounds"], *fields["epochs"]):
            if part["stragglers"] is None:
                del part["stragglers"]
        if self.epochs == self.rounds:  # they would be the same thing under another name
            del fields["epochs"]
        return fields

    def to_json(self) -> str:
        """Write the whole result as indented JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_csv(self, table: Literal["rounds", "tasks"] = "rounds") -> str:
        """Write the epochs, or the tasks, as CSV with a header; missing measurements are empty."""
        rows = self._rounds_rows() if table == "rounds" else self._tasks_rows()
        columns = _columns(RoundResult if table == "rounds" else TaskResult, rows)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def to_frame(self, *, every_column: bool = False) -> pd.DataFrame:
        """Turn the epochs into a data frame, one row each.

        Args:
            every_column: Add the cost of stragglers, the seconds of each stage, and a column for
                each class. Without it, the frame has the metrics, losses, seconds and bytes.

        Raises:
            MissingPackage: pandas is not installed.
        """
        rows = self._rounds_rows()
        columns = _columns(RoundResult, rows)
        if not every_column:  # pandas prints these in 80 columns and leaves none out
            metrics = names_of(r.metrics for r in self.rounds)
            shown = ["epoch", *(f"metric_{m}" if m not in columns else m for m in metrics)]
            losses = "train_loss", "validation_loss", "test_loss"
            shown += [name for name in (*losses, "train_seconds", "bytes") if name in columns]
            rows = [{name: row.get(name) for name in shown} for row in rows]
            columns = shown
        return frame_of(rows, columns)

    def tasks_frame(self) -> pd.DataFrame:
        """Turn the tasks into a data frame, one row each.

        Raises:
            MissingPackage: pandas is not installed.
        """
        rows = self._tasks_rows()
        return frame_of(rows, _columns(TaskResult, rows))

    def _rounds_rows(self) -> list[dict[str, Any]]:
        """Flatten each epoch: the cost of stragglers, if known, and the accuracy of each class."""
        rows = []
        for row in (self._with_metrics(dataclasses.asdict(r)) for r in self.epochs):
            by_class = enumerate(row.pop("class_accuracy"))
            stragglers = row.pop("stragglers") or {}
            classes = {f"accuracy_class_{label}": a for label, a in by_class}
            rows.append({**row, **stragglers, **classes})
        return rows

    def _with_metrics(self, row: dict[str, Any]) -> dict[str, Any]:
        """Flatten an epoch's metrics, each under its own name, or under "metric_" and its name.

        They come after the epoch. The longer name avoids the name of an existing column.
        """
        place = {"epoch": row.pop("epoch"), "round": row.pop("round")}
        metrics = row.pop("metrics")
        if self.part == "validation":
            row["validation_loss"] = row.pop("test_loss")
        named = {
            f"metric_{name}" if name in row or name in place else name: metrics.get(name)
            for name in names_of(r.metrics for r in self.rounds)
        }
        return {**place, **named, **row}

    def _tasks_rows(self) -> list[dict[str, Any]]:
        return [dataclasses.asdict(task) for task in self.tasks]


def rows_in(folder: Path, without: Collection[str] = (), *, details: bool = True) -> Rows:
    """Read the rows of a record in a folder, without these kinds of lines."""
    return Rows.of(lambda: stream_record(folder / RECORD_NAME, without), details=details)


def rounds_in(folder: Path, without: Collection[str] = UNUSED) -> Result:
    """Read a result without tasks and attempts, which takes half of the time and memory."""
    return result_of(rows_in(folder, without, details=False), folder)


def result_of(rows: Rows, folder: Path | None = None) -> Result:
    """Make a result from the rows of a record, once all are there."""
    tables = rows.tables
    submitted = tables.submitted
    if submitted is None:
        raise FileCorrupt(str(folder or "record"), "the record has no submission")
    prepared, ended = tables.prepared, tables.ended
    costs = [row.cost for row in rows.rounds.values() if row.cost is not None]
    if submitted.spec.get("policy", "wait") == "wait" and all(cost.lossless for cost in costs):
        costs = []
    rounds = rounds_of(rows, with_costs=bool(costs))
    finished = ended if isinstance(ended, FinishedLine) else None
    return Result(
        experiment=submitted.experiment,
        name=submitted.name,
        spec=submitted.spec,
        shards=(len(prepared.shard_samples) if prepared else 0) or submitted.shards,
        state=state_of(tables),
        reason=reason_of(rows),
        asked_wrongly=isinstance(ended, FailedLine) and ended.asked_wrongly,
        train_samples=prepared.train_samples if prepared else 0,
        test_samples=prepared.test_samples if prepared else 0,
        classes=prepared.classes if prepared else 0,
        parameters=prepared.parameters if prepared else 0,
        prepare_seconds=prepared.prepare_seconds if prepared else 0.0,
        split_seconds=prepared.split_seconds if prepared else 0.0,
        rounds=rounds,
        epochs=rounds if tables.meetings.each == 1 else epochs_of(rows, with_costs=bool(costs)),
        tasks=rows.tasks,
        failures=failures_of(tables),
        total_seconds=finished.total_seconds if finished else tables.now - tables.begin,
        model_file=folder / finished.file if folder and finished else None,
        stragglers=stragglers_of(costs) if costs else None,
        numeric_classes=numeric_classes_of(tables),
        verified=tables.verified,
        worker_changes=worker_changes(tables),
        best=best_of(tables, folder),
        tested=test_of(tables),
        dataset=(*(_remarks(prepared) if prepared else ()), *_sent(rows)),
        spans=rows.attempt_spans(),
        disturbed_seconds=disturbed_seconds(tables),
        retrained=rows.retrained,
        folder=folder,
    )


def _remarks(prepared: PreparedLine) -> Iterator[str]:
    """Yield how Downpour understood the examples, the cost of a step, and what to check again."""
    if prepared.understood:
        yield prepared.understood
    yield from prepared.remarks
    if prepared.step_seconds is not None and prepared.step_bytes is not None:
        megabytes = prepared.step_bytes / 1e6
        yield f"when tried, a step took {prepared.step_seconds:.2g} s and {megabytes:.3g} MB"
    yield from prepared.warnings


def _sent(rows: Rows) -> Iterator[str]:
    """Yield the sizes of an update and of a model version, if the spec compresses them."""
    if not rows.rounds or not rows.update_bytes or rows.tables.prepared is None:
        return
    model = rows.tables.prepared.bytes
    for what, field_name, largest in (
        ("updates", "compression", rows.update_bytes),
        ("model versions", "model_compression", rows.step_bytes),
    ):
        codec = rows.tables.spec.get(field_name, "none")
        if codec != "none" and largest:
            fewer = f"{model / largest:.3g} times fewer than the model's {model:,}"
            yield f"{what} ({codec}): {largest:,} bytes each, {fewer}"


def _columns(row_type: type[RoundResult | TaskResult], rows: list[dict[str, Any]]) -> list[str]:
    """Name the columns, even if the table has no rows."""
    if rows:
        return list(dict.fromkeys(key for row in rows for key in row))
    return [f.name for f in dataclasses.fields(row_type) if f.name not in _LAID_FLAT]


def frame_of(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    """Return a data frame of rows; missing values are NaN."""
    require("a data frame", "frames")
    import pandas as pd

    numbers = [{k: math.nan if v is None else v for k, v in row.items()} for row in rows]
    return pd.DataFrame(numbers, columns=columns)
