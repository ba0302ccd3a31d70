"""Writes TensorBoard's event files from a record, at once or while the experiment runs.

You give TensorBoard a folder of runs. Each run has its own folder in it, named after the experiment
or its place in a grid. Steps are rounds, counted from 1, and training steps for the tags `step/…`.
The experiment's identifier holds the time of its submission, from which we compute times of day. A
record is all that we need, so every command and call writes event files through this module. The
`tensorboard` package defines the file's layout and messages.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import fmean
from typing import IO, Any, Self

import tomli_w

from downpour.base.errors import DownpourError, FileCorrupt, SpecError, require
from downpour.base.values import is_bare_name
from downpour.core.spec import Meetings
from downpour.files.store.publish import explain
from downpour.record import record_lines as told
from downpour.record.record import read_record
from downpour.record.result import result_of
from downpour.record.rows import Rows, StepCurve
from downpour.record.stored_experiments import submission_seconds
from downpour.record.tables import Tables

log = logging.getLogger(__name__)

_OURS = "events.out.tfevents.{}.downpour"

_COSTS = ("mitigation", "moves", "extra_work", "gradient_lost")

Scalars = Mapping[str, float | None]


class EventFiles:
    """The event files of one experiment, which grow as its record does.

    Args:
        folder: TensorBoard's folder of runs; made if it is missing.
        name: the name of the run; by default, its experiment's identifier. This replaces event
            files that were written under the same name before, and nothing else.
    """

    does = "event files are written"

    def __init__(self, folder: Path, name: str = "") -> None:
        require("writing event files", "tensorboard")
        self._folder = folder
        self._name = name
        self._file: _EventFile | None = None
        self._tables = Tables()
        self._curve = StepCurve(self._tables)
        self._used: defaultdict[int, list[told.ResourcesUsedLine]] = defaultdict(list)
        with self._writing():
            folder.mkdir(parents=True, exist_ok=True)

    def take(self, record: Iterable[tuple[float, told.RecordLine]]) -> None:
        """Write further lines of a record, whose first line is its submission."""
        with self._writing():
            for at_seconds, fact in record:
                self._tables.take(at_seconds, fact)
                self._take(at_seconds, fact)
            if self._file is not None:
                self._file.flush()

    def close(self) -> None:
        """Write the costs of stragglers, which need the whole record, and close the files."""
        file, self._file = self._file, None
        if file is None:
            return
        with self._writing(), file:
            for each in result_of(Rows(self._tables, details=False).finished()).rounds:
                ended = self._tables.rounds[each.round - 1].closed
                if each.stragglers is not None and ended is not None:
                    costs = {f"stragglers/{n}": getattr(each.stragglers, n) for n in _COSTS}
                    file.add_scalars(ended, each.round, costs)

    def _take(self, at_seconds: float, fact: told.RecordLine) -> None:
        if isinstance(fact, told.SubmittedLine) and self._file is None:
            name = self._name or fact.experiment
            if not is_bare_name(name):
                raise FileCorrupt("record", "its experiment's name cannot name a file")
            self._file = _EventFile(self._folder / name, at_seconds, fact)
        if self._file is None:
            return
        match fact:
            case told.PreparedLine():
                self._file.add_scalars(at_seconds, 0, {"parameters": fact.parameters})
            case told.ResourcesUsedLine():
                self._used[fact.round].append(fact)
            case told.AggregatedLine():
                scalars = _of_round(fact, self._tables.updates(fact.round))
                used = _of_resources(self._used.pop(fact.round, []))
                self._file.add_scalars(at_seconds, fact.round + 1, {**scalars, **used})
                for point in self._curve.points():
                    self._file.add(at_seconds, *point)
            case told.EvaluatedLine():
                self._file.add_scalars(at_seconds, fact.round + 1, _of_evaluation(fact))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpecError("tensorboard", str(self._folder), explain(error)) from None


def write_events(
    record: Sequence[tuple[float, told.RecordLine]], folder: Path, name: str = ""
) -> None:
    """Write the event files of a record; if it has a line twice, the later one counts."""
    latest = {_key(place, fact): place for place, (_, fact) in enumerate(record)}
    with closing(EventFiles(folder, name)) as files:
        files.take(record[place] for place in sorted(latest.values()))


class EndedRuns:
    """Writes event files of ended runs, each under the name of its record's folder.

    If writing fails, it logs one warning and the study continues.
    """

    def __init__(self, folder: Path) -> None:
        EventFiles(folder)  # raises if the folder cannot be used
        self._folder: Path | None = folder

    def write(self, record: Path) -> None:
        """Write the event files of one run."""
        if self._folder is None:
            return
        try:
            write_events(read_record(record), self._folder, record.parent.name)
        except DownpourError as error:
            log.warning("no more %s: %s", EventFiles.does, error)
            self._folder = None


class _EventFile:
    """One file of events: first the spec as text and as hyperparameters, then scalars.

    It makes the run's own folder, and removes event files of earlier calls from it.
    """

    def __init__(self, folder: Path, at_seconds: float, submitted: told.SubmittedLine) -> None:
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.plugins.text.summary_v2 import text_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        submitted_at = submission_seconds(submitted.experiment)
        self._zero = submitted_at - at_seconds
        self._rounds_before = Meetings.of(submitted.spec).before
        folder.mkdir(parents=True, exist_ok=True)
        for former in folder.glob(_OURS.format("*")):
            former.unlink()
        self._file: IO[bytes] = (folder / _OURS.format(int(submitted_at))).open("wb")
        self._records = RecordWriter(self._file)
        self._write(at_seconds, file_version="brain.Event:2")
        spec = {name: value for name, value in submitted.spec.items() if value is not None}
        # TensorBoard compares only these types.
        values = {n: v if isinstance(v, bool | int | float) else str(v) for n, v in spec.items()}
        self._write(at_seconds, summary=hparams_pb(values, submitted.experiment, submitted_at))
        text = "".join(f"    {line}\n" for line in tomli_w.dumps(spec).splitlines())
        self._write(at_seconds, summary=text_pb("spec", text))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add_scalars(self, at_seconds: float, rounds: int, scalars: Scalars) -> None:
        """Write numbers at a count of this experiment's rounds."""
        self.add(at_seconds, self._rounds_before + rounds, scalars)

    def add(self, at_seconds: float, step: int, scalars: Scalars) -> None:
        """Write numbers by their tags, leaving out missing measurements."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        measured = {t: v for t, v in scalars.items() if v is not None and math.isfinite(v)}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in measured.items()]
        if values:
            self._write(at_seconds, step=step, summary=Summary(value=values))

    def flush(self) -> None:
        """Let TensorBoard see everything written so far."""
        self._file.flush()

    def _write(self, at_seconds: float, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        event = Event(wall_time=self._zero + at_seconds, **fields)
        self._records.write(event.SerializeToString())


def _of_round(fact: told.AggregatedLine, updates: Iterable[told.UpdatedLine]) -> Scalars:
    """Return an epoch's numbers; if a worker trained several shards, use their mean."""
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    for update in updates:
        seconds[update.worker].append(update.completion_seconds)
    return {
        "loss/train": fact.loss,
        "seconds/train": fact.train_seconds,
        "seconds/aggregate": fact.seconds,
        **{f"completion_seconds/{worker}": fmean(each) for worker, each in seconds.items()},
    }


def _of_resources(used: Sequence[told.ResourcesUsedLine]) -> Scalars:
    """Return the resources used in an epoch: mean shares of time, and the maximum of all else."""
    by_worker: defaultdict[str, list[told.Sample]] = defaultdict(list)
    for attempt in used:
        by_worker[attempt.worker] += attempt.samples
    scalars: dict[str, float] = {}
    for worker, samples in by_worker.items():
        if samples:
            scalars[f"cpu_share/{worker}"] = fmean(sample.cpu_share for sample in samples)
            scalars[f"io_wait/{worker}"] = fmean(sample.io_wait for sample in samples)
            scalars[f"memory_bytes/{worker}"] = max(sample.memory_bytes for sample in samples)
            scalars[f"threads/{worker}"] = max(sample.threads for sample in samples)
    return scalars


def _of_evaluation(fact: told.EvaluatedLine) -> Scalars:
    by_class = enumerate(fact.class_accuracy)
    return {
        **{f"{name}/{fact.part}": value for name, value in fact.metrics.items()},
        f"loss/{fact.part}": fact.loss,
        "seconds/evaluate": fact.seconds,
        **{f"accuracy_by_class/{label}": accuracy for label, accuracy in by_class},
    }


def _key(place: int, fact: told.RecordLine) -> tuple[object, ...]:
    """Return a key that is equal for lines of which only the later one counts."""
    match fact:
        case told.PreparedLine():
            return (told.PreparedLine,)
        case told.UpdatedLine():
            return told.UpdatedLine, fact.round, fact.shard
        case told.AggregatedLine() | told.EvaluatedLine():
            return type(fact), fact.round
        case _:
            return (place,)
