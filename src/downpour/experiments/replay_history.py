"""The start and the end of a replay: a record's history, and the outcome.

Besides spec, examples and code, the bytes follow only from this history. In an asynchronous mode,
the line of a version names its tasks and their staleness, and so the version that each began from.
In step, a version consists of the updates of its round. All of these began from the previous
version, or if rounds overlap, from the one before that.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from downpour.base.errors import FileCorrupt, SpecError, StoreError, one_line
from downpour.base.values import is_bare_name
from downpour.core.modes import mode_of
from downpour.core.spec import ResolvedSpec
from downpour.files.aggregators.passes import ORDER
from downpour.files.store import RECORD_NAME, SPEC_NAME, SharedDirectory
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.shared_directory import RUN_LOCK_NAME, is_abandoned
from downpour.record import record_lines as told
from downpour.record.record import read_record
from downpour.record.tables import RecordedAttempt, RecordedVersion, Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedTask:
    """A task whose update counts: its start, its worker and its result.

    `base` is the version that it began from, `staleness` how many versions were made since.
    `portion` is its range of samples if the round was recut, `share` how much of its steps the
    worker trained. `checksum` is the update's. The worker's `numeric_class` is empty if the record
    does not say.
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

    def place(self, seed: int) -> bytes:
        """Return its place among all tasks in the order of a draw."""
        return hashlib.blake2b(f"{seed} {self.round} {self.shard}".encode()).digest()

    def row(self, now: str) -> dict[str, Any]:
        """Compare its checksum with that of its update now."""
        row = {"round": self.round + 1, "shard": self.shard, "worker": self.worker}
        same = now == self.checksum
        return {**row, "recorded": self.checksum, "recomputed": now, "agrees": same}


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeVersion:
    """A model version and its tasks, in the order in which they count."""

    line: told.AggregatedLine
    tasks: tuple[TrainedTask, ...]

    @property
    def number(self) -> int:
        """Its number, from 1."""
        return self.line.version

    @property
    def summed_otherwise(self) -> bool:
        """Whether an earlier release added its updates in another order."""
        return not self.line.parts and self.line.summed != ORDER and len(self.tasks) > 1


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """How an experiment's model came about: the record's lines, and the versions from 1 on."""

    submitted: told.SubmittedLine
    prepared: told.PreparedLine
    versions: tuple[MadeVersion, ...]
    ended: told.EndLine | None

    @property
    def tasks(self) -> list[TrainedTask]:
        """The tasks whose updates count, in their order."""
        return [task for version in self.versions for task in version.tasks]

    @property
    def numeric_classes(self) -> frozenset[str]:
        """The numeric classes that computed the model, as far as they are known."""
        trained = (task.numeric_class for task in self.tasks)
        return frozenset(filter(None, (self.prepared.numeric_class, *trained)))


def history_of(tables: Tables) -> History:
    """Return the history in a record."""
    submitted, prepared, ended = tables.submitted, tables.prepared, tables.ended
    if submitted is None:
        raise FileCorrupt("record", "does not begin with a submission")
    if prepared is None:
        raise FileCorrupt("record", "has no model: the experiment never began to train")
    versions = tuple(_made(tables, tables.versions[number]) for number in sorted(tables.versions))
    for number, version in enumerate(versions, start=1):
        if version.number != number:
            raise FileCorrupt("record", f"does not say which updates made version {number}")
    return History(submitted=submitted, prepared=prepared, versions=versions, ended=ended)


def _made(tables: Tables, version: RecordedVersion) -> MadeVersion:
    line = version.line
    parts = line.parts or tuple(version.updates)
    # In the first round, updates are stale only if it continues another experiment's rounds.
    follows = line.version > 1 or tables.spec.get("states_checksum") is not None
    delay = int(tables.spec.get("overlap", 0)) if follows else 0
    staleness = line.staleness or (delay,) * len(parts)
    if len(parts) != len(staleness):
        raise FileCorrupt("record", f"does not say which version {line.version} was made from")
    tasks = []
    for (number, shard), stale in zip(parts, staleness, strict=True):
        attempt = version.updates.get((number, shard))
        if attempt is None or stale > line.version - 1 + delay:
            raise FileCorrupt("record", f"does not say who trained round {number} shard {shard}")
        sizes = tables.rounds[number].samples
        tasks.append(_task(attempt, line.version - 1, stale, sizes))
    return MadeVersion(line=line, tasks=tuple(tasks))


def _task(
    attempt: RecordedAttempt, version: int, staleness: int, sizes: tuple[int, ...]
) -> TrainedTask:
    assert attempt.updated is not None  # noqa: S101 - a version was made from its update
    begin = sum(sizes[: attempt.shard])
    return TrainedTask(
        round=attempt.round,
        shard=attempt.shard,
        base=version - staleness,
        staleness=staleness,
        worker=attempt.updated.worker,
        numeric_class=attempt.numeric_class,
        checksum=attempt.updated.checksum,
        portion=(begin, begin + sizes[attempt.shard]) if sizes else None,
        share=attempt.assigned.share if attempt.assigned is not None else 1.0,
    )


FIELD = "ID"


@dataclass(frozen=True, slots=True)
class Past:
    """An ended experiment: its spec, and how its model came about."""

    experiment: str
    shared: SharedDirectory
    spec: ResolvedSpec
    history: History

    def trained_alone(self, here: str, files: Collection[str], first: str) -> list[TrainedTask]:
        """Return the tasks of this numeric class that begin from version 0 or one of these files.

        Version 0 must have the same checksum as here, where it is `first`. The manager does not
        keep the files that a shard's task leaves for its next one.
        """
        tasks, made = self.history.tasks, self.history.versions
        if not tasks:
            _refuse(self.experiment, "no update of it counts, so there is nothing to train again")
        at_hand = {each.number for each in made if each.line.whole and each.line.file in files}
        at_hand |= {0, -1} if first == self.history.prepared.checksum else set()
        goes_on = self.spec.shards_go_on or mode_of(self.spec).elastic
        firsts = {task.shard: task for task in reversed(tasks)}
        found = [task for task in tasks if not goes_on or task is firsts[task.shard]]
        found = [task for task in found if task.base in at_hand and task.numeric_class == here]
        if not found:
            known = "; ".join(sorted(self.history.numeric_classes))
            accepted = f"no task of numeric class {here}, this machine's, can be trained alone"
            _refuse(self.experiment, f"{accepted}; the classes on record: {known}")
        return found


def past_of(experiment: str, shared: Path, *, is_over: bool = True) -> Past:
    """Return an experiment of a shared directory; unless `is_over` is False, it must have ended."""
    directory = SharedDirectory(shared)
    names_in(shared)
    if not isinstance(experiment, str) or not is_bare_name(experiment):
        _refuse(experiment, "must be an experiment's ID")
    experiment = directory.whole_id(experiment)
    folder = directory.experiments / experiment
    if not folder.is_dir():
        _refuse(experiment, f"no such experiment in {shared}")
    try:
        history = history_of(Tables.of(read_record(folder / RECORD_NAME)))
    except StoreError as error:
        _refuse(experiment, f"cannot be replayed: {error}")
    if is_over and history.ended is None and not is_abandoned(folder / RUN_LOCK_NAME):
        _refuse(experiment, "is still running; replay it after its end")
    spec = _spec_of(experiment, folder, history)
    if not spec.repeatable:
        _refuse(experiment, "has repeatable = false, so its bytes differ each time")
    return Past(experiment, directory, spec, history)


def _spec_of(experiment: str, folder: Path, history: History) -> ResolvedSpec:
    """Return the folder's spec, which must be the one in the record."""
    if not (folder / SPEC_NAME).is_file():
        _refuse(experiment, f"cannot be replayed: its {SPEC_NAME} is missing")
    try:
        spec = ResolvedSpec.from_toml(read_regular(folder / SPEC_NAME).decode())
        submitted = ResolvedSpec.make(history.submitted.spec)
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
        return self.difference is None

    def __repr__(self) -> str:
        return one_line(f"<Replay {self}>")

    def __str__(self) -> str:
        if self.difference is not None:
            return str(self.difference)
        made = f"{self.experiment}: version {self.version} has checksum {self.checksum}"
        return f"{made}; {self.compared} checksums agree"


@dataclass(frozen=True, slots=True)
class Audit:
    """Tasks trained again, each alone, in the numeric class in which they were trained.

    The record has `tasks`, and `alone` can be trained alone here. Rounds in `rows` count from 1.
    """

    experiment: str
    share: float
    seed: int
    numeric_class: str
    tasks: int
    alone: int
    rows: list[dict[str, Any]]

    def lines(self) -> Iterator[str]:
        """Say how the audit went, how to repeat it and, in the last line, its outcome."""
        every = Counter(row["worker"] for row in self.rows)
        agree = Counter(row["worker"] for row in self.rows if row["agrees"])
        yield from (f"{name}: {agree[name]} of {count} agree" for name, count in every.items())
        yield f"numeric class, on record and here: {self.numeric_class}"
        found = f"{self.alone} of {self.tasks} tasks can be trained alone here"
        yield f"{found}; downpour replay {self.experiment} retrains all"
        drawn = f"--share {self.share} --seed {self.seed}"
        yield f"drawn by: downpour audit {self.experiment} {drawn}"
        if wrong := sorted(name for name in every if agree[name] < every[name]):
            yield f"other bytes than on record: {', '.join(wrong)}"
        else:
            tasks = f"{every.total()} audited tasks of {len(every)} workers"
            yield f"all {tasks} have the bytes on record"
