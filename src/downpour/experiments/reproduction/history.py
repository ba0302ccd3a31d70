"""The start and the end of a replay: a record's history, and the outcome.

Besides spec, examples and code, the bytes follow only from this history. In an asynchronous mode,
the line of a version names its tasks and their staleness, and so the version that each began from.
In step, a version consists of the updates of its round. All of these began from the previous
version, or if rounds overlap, from the one before that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NoReturn

from downpour.base.errors import FileCorrupt, SpecError, StoreError
from downpour.base.values import is_bare_name
from downpour.core.spec import ResolvedSpec
from downpour.files.aggregators.passes import ORDER
from downpour.files.store import RECORD_NAME, SPEC_NAME, SharedDirectory
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.presence import RUN_LOCK_NAME, is_abandoned
from downpour.host.text import one_line
from downpour.record.record import read_record
from downpour.record.record_lines import (
    AggregatedLine,
    AssignedLine,
    AttemptFailedLine,
    CancelledLine,
    FailedLine,
    FinishedLine,
    PreparedLine,
    RecordLine,
    ResizedLine,
    SubmittedLine,
    UpdatedLine,
    WorkerJoinedLine,
)

_Portions = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTask:
    """A task whose update counts: its start, its worker and its result.

    `base` is the version that it began from, `staleness` how many versions were made since.
    `portion` is its range of samples if the round was recut, `share` how much of its steps the
    worker trained. `checksum` is the update's; it and the worker's `numeric_class` are empty in old
    records.
    """

    round: int
    shard: int
    base: int
    staleness: int
    worker: str
    numeric_class: str
    checksum: str
    portion: tuple[int, int] | None = None
    share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeVersion:
    """A model version and its tasks, in the order in which they count.

    If it was `summed_otherwise`, an earlier release added its updates in another order. Its file
    is `whole`, or a step from the previous version.
    """

    number: int
    file: str
    checksum: str
    tasks: tuple[TrainedTask, ...]
    summed_otherwise: bool = False
    whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """How an experiment's model came about.

    `fields` are the spec's. `versions` are numbered from 1; `first_checksum` is that of version 0,
    which the manager drew in its `numeric_class`. `result` is the final model's file, or None if
    the experiment did not finish.
    """

    experiment: str
    fields: dict[str, Any]
    program: str
    dataset: str
    first_checksum: str
    numeric_class: str
    versions: tuple[MadeVersion, ...]
    has_ended: bool
    result: str | None
    result_checksum: str

    @property
    def numeric_classes(self) -> frozenset[str]:
        """The numeric classes that computed the model, as far as they are known."""
        trained = (task.numeric_class for version in self.versions for task in version.tasks)
        return frozenset(filter(None, (self.numeric_class, *trained)))


def history_of(record: Iterable[RecordLine]) -> History:
    """Return the history in a record."""
    fold = _Fold()
    for line in record:
        fold.take(line)
    if fold.submitted is None:
        raise FileCorrupt("record", "does not begin with a submission")
    if fold.prepared is None:
        raise FileCorrupt("record", "has no model: the experiment never began to train")
    versions = tuple(fold.versions[number] for number in sorted(fold.versions))
    for number, version in enumerate(versions, start=1):
        if version.number != number:
            raise FileCorrupt("record", f"does not say which updates made version {number}")
    finished = fold.end if isinstance(fold.end, FinishedLine) else None
    return History(
        experiment=fold.submitted.experiment,
        fields=fold.submitted.spec,
        program=fold.submitted.version,
        dataset=fold.prepared.dataset,
        first_checksum=fold.prepared.checksum,
        numeric_class=fold.prepared.numeric_class,
        versions=versions,
        has_ended=fold.end is not None,
        result=finished.file if finished else None,
        result_checksum=finished.checksum if finished else "",
    )


@dataclass(slots=True)
class _Fold:
    """The record so far. If a restarted manager has recorded something twice, the later counts.

    `updates` are the accepted ones, by round and shard, with the worker's numeric class.
    """

    submitted: SubmittedLine | None = None
    prepared: PreparedLine | None = None
    end: FinishedLine | FailedLine | CancelledLine | None = None
    joined: dict[str, WorkerJoinedLine] = field(default_factory=dict)
    updates: dict[tuple[int, int], tuple[UpdatedLine, str]] = field(default_factory=dict)
    portions: dict[int, _Portions] = field(default_factory=dict)
    shares: dict[tuple[int, int], float] = field(default_factory=dict)
    versions: dict[int, MadeVersion] = field(default_factory=dict)

    def take(self, line: RecordLine) -> None:
        """Take the next line."""
        match line:
            case SubmittedLine():
                self.submitted = line
            case PreparedLine():
                self.prepared = line
            case WorkerJoinedLine():
                self.joined[line.worker] = line
            case ResizedLine():
                self.portions[line.round] = tuple(pairwise(accumulate(line.samples, initial=0)))
            case AssignedLine():
                self.shares[line.round, line.shard] = line.share
            case UpdatedLine():
                self.updates[line.round, line.shard] = line, self._class_of(line.worker)
            case AttemptFailedLine():
                self._refuse(line)
            case AggregatedLine():
                self.versions[line.version] = self._version(line)
            case FinishedLine() | FailedLine() | CancelledLine():
                self.end = line
            case _:
                pass

    def _class_of(self, worker: str) -> str:
        """Return the class in which a worker trained; empty if the record does not say."""
        asked = self.submitted.spec.get("device") if self.submitted is not None else None
        return self.joined[worker].class_for(asked) if worker in self.joined else ""

    def _refuse(self, line: AttemptFailedLine) -> None:
        """Forget an accepted update that the manager could not use."""
        accepted = self.updates.get((line.round, line.shard))
        if accepted is not None and accepted[0].attempt == line.attempt:
            del self.updates[line.round, line.shard]

    def _version(self, line: AggregatedLine) -> MadeVersion:
        in_step = tuple(key for key in sorted(self.updates) if key[0] == line.round)
        parts = line.parts or in_step
        staleness = line.staleness or (self._delay(line.version - 1),) * len(parts)
        if len(parts) != len(staleness):
            raise FileCorrupt("record", f"does not say which version {line.version} was made from")
        tasks = zip(parts, staleness, strict=True)
        return MadeVersion(
            number=line.version,
            file=line.file,
            checksum=line.checksum,
            tasks=tuple(self._task(line.version - 1, key, stale) for key, stale in tasks),
            summed_otherwise=not line.parts and line.summed != ORDER and len(parts) > 1,
            whole=line.whole,
        )

    def _delay(self, version: int) -> int:
        """Return the staleness of updates in step that make the next version."""
        fields = self.submitted.spec if self.submitted is not None else {}
        # In the first round, updates are stale only if it continues another experiment's rounds.
        follows = version > 0 or fields.get("states_checksum") is not None
        return int(fields.get("overlap", 0)) if follows else 0

    def _task(self, version: int, key: tuple[int, int], staleness: int) -> TrainedTask:
        number, shard = key
        if key not in self.updates or staleness > version + self._delay(version):
            raise FileCorrupt("record", f"does not say who trained round {number} shard {shard}")
        update, numeric_class = self.updates[key]
        cut = self.portions.get(number)
        return TrainedTask(
            round=number,
            shard=shard,
            base=version - staleness,
            staleness=staleness,
            worker=update.worker,
            numeric_class=numeric_class,
            checksum=update.checksum,
            portion=cut[shard] if cut else None,
            share=self.shares.get(key, 1.0),
        )


FIELD = "ID"


@dataclass(frozen=True, slots=True)
class Past:
    """An ended experiment: its spec, and how its model came about."""

    shared: SharedDirectory
    spec: ResolvedSpec
    history: History


def past_of(experiment: str, shared: Path) -> Past:
    """Return an experiment of a shared directory."""
    directory = SharedDirectory(shared)
    names_in(shared)
    if not isinstance(experiment, str) or not is_bare_name(experiment):
        _refuse(experiment, "must be an experiment's ID")
    folder = directory.experiments / experiment
    if not folder.is_dir():
        _refuse(experiment, f"no such experiment in {shared}")
    try:
        history = history_of(line for _, line in read_record(folder / RECORD_NAME))
    except StoreError as error:
        _refuse(experiment, f"cannot be replayed: {error}")
    if not history.has_ended and not is_abandoned(folder / RUN_LOCK_NAME):
        _refuse(experiment, "is still running; replay it after its end")
    spec = _spec_of(experiment, folder, history)
    if not spec.repeatable:
        _refuse(experiment, "has repeatable = false, so its bytes differ each time")
    return Past(directory, spec, history)


def _spec_of(experiment: str, folder: Path, history: History) -> ResolvedSpec:
    """Return the folder's spec, which must be the one in the record."""
    if not (folder / SPEC_NAME).is_file():
        _refuse(experiment, f"cannot be replayed: its {SPEC_NAME} is missing")
    try:
        spec = ResolvedSpec.from_toml(read_regular(folder / SPEC_NAME).decode())
        submitted = ResolvedSpec.make(history.fields)
    except (SpecError, StoreError, UnicodeDecodeError) as error:
        _refuse(experiment, f"cannot be replayed: its {SPEC_NAME} cannot be used: {error}")
    for name, value in submitted.model_dump().items():
        if getattr(spec, name) != getattr(submitted, name):
            accepted = f"its {SPEC_NAME} was changed: {name} was {value!r}"
            _refuse(experiment, f"cannot be replayed: {accepted}")
    return spec


def _refuse(experiment: object, accepted: str) -> NoReturn:
    raise SpecError(FIELD, experiment, accepted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first file whose bytes differ from the original's.

    `task` is the task of the file, if it is an update. It is None for a model version whose updates
    all agree. `then` and `now` are the file's checksums, and `numeric_class_then` and `_now` the
    classes that computed it; the former is empty if the record does not say who did. If an earlier
    release has `summed_otherwise`, the version differs by rounding.
    """

    version: int
    what: str
    task: TrainedTask | None
    then: str
    now: str
    numeric_class_then: str
    numeric_class_now: str
    summed_otherwise: bool = False

    def __str__(self) -> str:
        """Say it in one line; the record may hold anything."""
        why = "; an earlier release made it, and added the updates in another order"
        return one_line(self._said() + (why if self.summed_otherwise else ""))

    def _said(self) -> str:
        by = f", which {self.task.worker} trained," if self.task else ""
        line = f"version {self.version} differs: {self.what}{by} had checksum {self.then}"
        if self.numeric_class_then not in {"", self.numeric_class_now}:
            where = f" in numeric class {self.numeric_class_then!r}, and has {self.now}"
            return f"{line}{where} in this machine's, {self.numeric_class_now!r}"
        return f"{line}, and now has {self.now} in the same numeric class"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An experiment that was trained once more.

    `version` is the last version that the replay made. `checksum` is its file's, or, if the replay
    made all versions, that of the whole final model. `compared` counts the updates, versions and
    final models whose checksum the record has. `model_file` is the last model, if the user wanted
    to keep it.
    """

    experiment: str
    version: int
    checksum: str
    compared: int
    difference: Difference | None
    model_file: Path | None

    @property
    def same(self) -> bool:
        """Whether all compared files have the same bytes."""
        return self.difference is None and self.compared > 0

    def __repr__(self) -> str:
        """Say in one line which experiment it is, and how it compares."""
        return one_line(f"<Replay {self}>")

    def __str__(self) -> str:
        """Say in one line how it compares."""
        if self.difference is not None:
            return str(self.difference)
        known = f"{self.compared} checksums agree"
        if not self.compared:
            known = "its record has no checksum to compare with"
        return f"{self.experiment}: version {self.version} has checksum {self.checksum}; {known}"
