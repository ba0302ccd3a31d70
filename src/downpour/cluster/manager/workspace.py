"""The manager's workspace for one experiment: its folder, and the objects made for it so far."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Protocol

from filelock import BaseFileLock
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, FileMissing, SpecError, StoreError
from downpour.base.states import Evaluation
from downpour.base.values import PublishedFile, TrialSums
from downpour.cluster.manager.aggregation import Aggregation
from downpour.core.node.journal import Line
from downpour.core.scheduler.events import HandedOn
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import leading_to
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files.store import SharedDirectory, Store, layout
from downpour.files.store.directory import names_in
from downpour.files.store.lease import Leader
from downpour.files.store.shared_directory import RUN_LOCK_NAME, give_back, is_sent, lock_file
from downpour.learning.shipping import Bundle
from downpour.learning.tasks.agreement import Data, Reading, open_data
from downpour.network.rpc.messages import IndexArray, IndicesFile
from downpour.record.journal import Journal, segments
from downpour.record.mirror import journal_of
from downpour.record.record import RecordReader, export_record

if TYPE_CHECKING:
    from downpour.cluster.manager.global_model import GlobalModel
    from downpour.learning.training.step import StepCost


log = logging.getLogger(__name__)

_SPEC_BYTES_MAX = 2**20
"""The limit for a spec's file, because another process may have replaced it with a larger one."""

_WORKERS_LOOK = 2.0
"""How long workers look for a dataset, in the patience of the shared directory, with a margin."""


class Evaluator(Protocol):
    """A network that evaluates versions, as `GlobalModel` or in the simulator."""

    def evaluate(
        self,
        parameters: Mapping[str, NDArray[Any]],
        held_out: IndexArray | None = None,
        reading: Reading | None = None,
    ) -> Evaluation:
        """Evaluate parameters on the test examples, or on the training examples held out."""

    def close(self) -> None:
        """Free what evaluations need beside the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The files that an experiment begins with, or continues with after a restart.

    `model` is a version, the first one or the newest. `outer` is the state of its outer optimizer,
    if it has one, and `frozen` is the file of never-trained parameters, if there are some. `trial`
    has the checksums of the steps that each process of a user's code repeats. The shards start with
    the states that an earlier experiment has `handed_on`. `drawn` is the network, and `step` is the
    cost of a training step on this machine, if this manager tried them. `remarks` describe unusual
    things; `warnings` tell the user what to know before training.
    """

    model: PublishedFile
    frozen: PublishedFile | None = None
    outer: PublishedFile | None = None
    trial: TrialSums | None = None
    handed_on: HandedOn = field(default_factory=HandedOn)
    drawn: GlobalModel | None = None
    step: StepCost | None = None
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedExperiment:
    """The result of `prepare`; remarks and warnings come from the data, the shards and `begun`.

    `shard_classes` are as in the record's line (`PreparedLine`). `rehearsed` says whether another
    process took the trial's steps with the same result. `loaders` read for evaluations; None: auto.
    """

    dataset_key: str
    dataset: Data
    shards: tuple[IndexArray, ...]
    held_out: IndexArray
    begun: Beginning
    prepare_seconds: float
    split_seconds: float
    remarks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    shard_classes: tuple[tuple[int, ...], ...] = ()
    rehearsed: bool = False
    loaders: int | None = 0


@dataclass(slots=True)
class Workspace:
    """One experiment's folder, and the objects made for it so far.

    `journal` writes its journal, and `record` reads the record that follows from the journal. The
    workspace of an embedded run holds `run_lock`, which shows other processes that the run is
    alive. We don't sync a run's journal: it need not outlive the machine, because only the run
    itself continues it. The manager journals nothing once the experiment is `concluded`. While the
    folder or its objects in a bucket are gone (`is_gone`), the experiment is held up. `prepare`
    makes the `global_model` if the experiment begins here; otherwise its first evaluation does.
    `copies` are versions that we also published whole, for workers that could not read them
    otherwise. At `missed_dataset_at`, by the monotonic clock, we last found no whole dataset.
    `token` draws as many bytes in hexadecimal, which make a file's name unique.
    """

    experiment: str
    spec: ResolvedSpec
    shared: SharedDirectory
    store: Store
    record: RecordReader
    spec_file: PublishedFile
    journal: Journal | None
    run_lock: BaseFileLock | None = None
    concluded: bool = False
    is_gone: bool = False
    prepared: PreparedExperiment | None = None
    global_model: Evaluator | None = None
    index_files: dict[tuple[int, tuple[int, int] | None], IndicesFile] = field(default_factory=dict)
    aggregation: Aggregation = field(init=False)
    copies: dict[PublishedFile, PublishedFile] = field(default_factory=dict)
    missed_dataset_at: float = -math.inf
    token: Callable[[int], str] = secrets.token_hex
    _writing: Lock = field(init=False, default_factory=Lock)
    _spec_seen: tuple[int, ...] | None = field(init=False, default=())
    _spec_checked: tuple[int, ...] | None = field(init=False, default=())

    def __post_init__(self) -> None:
        """Keep no version so far."""
        self.aggregation = Aggregation(self.spec, self.store)

    def settle(self, spec: ResolvedSpec) -> None:
        """Follow a spec in which preparation has decided what was open; workers read its file."""
        if spec != self.spec:
            with self._writing:
                self.spec = spec
                self.store.delete(layout.SPEC_NAME)
                self.spec_file = self.store.put_new(layout.SPEC_NAME, [_toml(spec)])

    def release(self) -> None:
        """Free the memory that the experiment needed to go on."""
        if self.global_model is not None:
            self.global_model.close()
        self.prepared = self.global_model = None
        for kept in (self.index_files, self.copies, self.aggregation):
            kept.clear()

    @property
    def folder(self) -> Path:
        """The folder of its journal, its record, and its store's files that are not objects."""
        return self.shared.experiment_path(self.experiment)

    def look(self) -> None:
        """Set `is_gone`, and keep the spec's file; if the directory is away, change nothing."""
        with suppress(StoreError, OSError):
            self.is_gone = not self._is_there()
            if self.is_gone:
                return
            before, self._spec_seen = self._spec_seen, self._look_of_spec()
            # If someone removed or changed the spec's file, restore it, because workers need it as
            # it was. Wait for a second look: someone may be removing the whole folder.
            if self._spec_seen == before != self._spec_checked:
                hasty = replace(self.shared, patience_seconds=0.0, away_seconds=None)
                store = hasty.store(self.experiment)
                with self._writing:
                    self.spec_file = _kept_spec(store, self.experiment, self.spec)
                self._spec_seen = self._spec_checked = self._look_of_spec()

    def _look_of_spec(self) -> tuple[int, ...] | None:
        """Return numbers that change with the spec's file; None if it is missing."""
        if self.shared.bucket is not None:
            return () if layout.SPEC_NAME in self._objects() else None
        try:
            found = (self.folder / layout.SPEC_NAME).lstat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _is_there(self) -> bool:
        # Check the folder, because open files stay writable after someone removes their folder.
        if not (self.folder.exists() or self.experiment in names_in(self.shared.experiments)):
            return False
        return self.shared.bucket is None or bool(self._objects())

    def _objects(self) -> list[str]:
        """Return the names of its objects in a bucket."""
        if self.shared.bucket is None:
            return []
        # Don't use the retries of `store`, because the caller looks again.
        place = self.folder.relative_to(self.shared.root).as_posix()
        return self.shared.bucket.names(place)

    @property
    def gone_reason(self) -> str:
        """The fault, in words, while the folder `is_gone`."""
        if self.shared.bucket is not None:
            return f"its objects are gone from {self.shared.where}"
        return f"its folder is gone from {self.shared.experiments}"

    def close(self) -> None:
        """Close the journal; the record can still be read."""
        if self.journal is not None:
            self.journal.close()
        if self.run_lock is not None:
            give_back(self.run_lock)

    def finish(self) -> None:
        """Export an ended experiment's record, and remove a run's journal: no manager reads it."""
        export_record(self.folder, self.record.all_lines())
        self.record = RecordReader(self.folder)  # its lines need not stay in memory
        if self.run_lock is not None:
            for segment in segments(self.folder):
                segment.unlink(missing_ok=True)


def open_workspace(
    shared: SharedDirectory,
    experiment: str,
    spec: ResolvedSpec,
    leader: Leader | None = None,
    *,
    of_run: bool = False,
    bundle: Bundle | None = None,
) -> Workspace:
    """Make an experiment's folder, with its resolved spec.

    Without a `leader`, no manager continues it. The `bundle` has code for workers that lack it.
    """
    folder = shared.experiment_path(experiment)
    store = shared.create_experiment(experiment)
    # Lock first: a manager that starts now removes folders that hold neither files nor a lock.
    run_lock = lock_file(folder / RUN_LOCK_NAME) if of_run else None
    if bundle is not None:
        store.put_new(layout.bundle_name(bundle.digest), [bundle.packed()])
    return Workspace(
        experiment=experiment,
        spec=spec,
        shared=shared,
        store=store,
        record=RecordReader(folder),
        spec_file=store.put_new(layout.SPEC_NAME, [_toml(spec)]),
        journal=journal_of(shared, experiment, leader, syncs=not of_run) if leader else None,
        run_lock=run_lock,
    )


def reopen_workspace(
    shared: SharedDirectory,
    experiment: Experiment,
    leader: Leader,
    journal_lines: Sequence[Line],
    *,
    of_run: bool = False,
) -> Workspace:
    """Open the folder of an earlier manager's experiment, to continue it.

    Workers follow the spec's file, so this restores the file if it differs from the journal's.
    `experiment` is the state that results from the journal's lines.
    """
    folder, store = shared.experiment_path(experiment.name), shared.store(experiment.name)
    # Check first, because if we leave out this experiment, its files must stay as they are.
    _check_files(experiment, set(store.list()))
    return Workspace(
        experiment=experiment.name,
        spec=experiment.spec,
        shared=shared,
        store=store,
        record=RecordReader(folder),
        spec_file=_kept_spec(store, experiment.name, experiment.spec),
        journal=journal_of(shared, experiment.name, leader, journal_lines, syncs=not of_run),
        run_lock=lock_file(folder / RUN_LOCK_NAME) if of_run else None,
    )


def _check_files(experiment: Experiment, names: set[str]) -> None:
    """Refuse a journal whose last lines are lost, because continuing from it would repeat work."""
    states = experiment.files_of_shards()
    singles = (experiment.frozen, experiment.outer, experiment.kept_best)
    kept = [file for file in singles if file is not None]
    # If rounds overlap, the next ones begin from the version before the newest.
    newest = experiment.models[-1 - experiment.mode.overlaps :]
    leading = leading_to(experiment, newest[0]) if newest else ()
    needed = (*leading, *newest, *experiment.evaluating.values(), *states, *kept)
    needed = (*needed, *map(experiment.shown, needed))
    gone = [file.name for file in needed if file.name not in names]
    if gone:
        reason = f"its last lines are missing: it needs {gone[0]}, which was removed"
        raise FileCorrupt("journal", reason)
    if layout.FINAL_NAME in names and not experiment.training_is_done:
        raise FileCorrupt("journal", "its last lines are missing: there is a final model")


def _kept_spec(store: Store, experiment: str, spec: ResolvedSpec) -> PublishedFile:
    """Return the file of an experiment's spec, restored if it is missing or differs."""
    there = layout.SPEC_NAME in store.list()
    if there:
        text = store.read_unchecked(layout.SPEC_NAME, limit_bytes=_SPEC_BYTES_MAX)
        # Also compare the specs, because another version may write an equal one differently.
        if text == _toml(spec) or _parsed(text) == spec:
            return store.describe(layout.SPEC_NAME)
        store.delete(layout.SPEC_NAME)
    fault = "is not the submitted one" if there else "is missing"
    log.warning("%s: %s %s; it is restored", experiment, layout.SPEC_NAME, fault)
    try:
        return store.put_new(layout.SPEC_NAME, [_toml(spec)])
    except StoreError:
        # The former manager, which ends, may have just written it, with the number of meetings.
        if layout.SPEC_NAME not in store.list():
            raise
        return _kept_spec(store, experiment, spec)


def _parsed(toml: bytes) -> Spec | None:
    try:
        return ResolvedSpec.from_toml(toml.decode())
    except (SpecError, UnicodeDecodeError):
        return None


def _toml(spec: Spec) -> bytes:
    return spec.to_toml().encode()


def misses_dataset(space: Workspace, reason: str) -> bool:
    """Whether an attempt failed because the prepared dataset is missing or damaged.

    The `reason` then names it. Workers look for a while, so one may say so just after its repair.
    """
    made, now = space.prepared, time.monotonic()
    if made is None or made.dataset_key not in reason:
        return False
    try:
        open_data(space.spec, space.shared.datasets, made.dataset_key)
        if not is_sent(space.shared, made.dataset_key):
            space.missed_dataset_at = now
    except (FileMissing, FileCorrupt):
        space.missed_dataset_at = now
    except StoreError:
        return False
    return now - space.missed_dataset_at <= _WORKERS_LOOK * space.shared.patience_seconds


_BUCKET_LOOKS = 5
"""One look in this many includes a bucket, because each look at one is a request."""


class Workspaces(Mapping[str, Workspace]):
    """The workspaces by experiment; `fail` ends one whose folder is gone for `gone_seconds`."""

    def __init__(
        self,
        spaces: Iterable[Workspace],
        fail: Callable[[str, str], object],
        gone_seconds: float = 60.0,
    ) -> None:
        self._spaces = {space.experiment: space for space in spaces}
        self._fail = fail
        self._gone_seconds = gone_seconds
        self._gone_since: dict[str, float] = {}
        self._looks = count()

    def __getitem__(self, experiment: str) -> Workspace:
        return self._spaces[experiment]

    def __iter__(self) -> Iterator[str]:
        # Copy it, because other threads add workspaces meanwhile.
        return iter(list(self._spaces))

    def __len__(self) -> int:
        return len(self._spaces)

    def add(self, space: Workspace) -> None:
        """Add a new experiment's workspace, before its submission reaches the core."""
        self._spaces[space.experiment] = space

    def look(self) -> None:
        """Check whether the folders of experiments that have not ended still exist.

        An experiment whose folder is gone is held up. If that lasts too long, it fails, because
        others wait behind it. If the folder comes back, its last version can be resumed.
        """
        asks_bucket = next(self._looks) % _BUCKET_LOOKS == 0
        for space in list(self._spaces.values()):
            if space.concluded:
                self._gone_since.pop(space.experiment, None)
            elif space.shared.bucket is None or (asks_bucket and space.prepared is not None):
                space.look()
                self._hold_up(space)

    def gives_up(self, experiment: str) -> bool:
        """Fail an experiment if only its folder is gone; returns whether that is the case."""
        space = self._spaces[experiment]
        space.look()
        if space.is_gone:
            self._give_up(space)
        return space.is_gone

    def _hold_up(self, space: Workspace) -> None:
        """Say once that an experiment is held up; give it up when that lasts too long."""
        experiment, now = space.experiment, time.monotonic()
        if not space.is_gone:
            if self._gone_since.pop(experiment, None) is not None:
                log.warning("%s goes on: its folder is back", experiment)
        elif experiment not in self._gone_since:
            self._gone_since[experiment] = now
            log.warning("%s is held up: %s", experiment, space.gone_reason)
        # An experiment that waits for its turn holds up no others; it fails at its preparation.
        elif space.prepared and now - self._gone_since[experiment] >= self._gone_seconds:
            self._give_up(space)

    def _give_up(self, space: Workspace) -> None:
        """Fail an experiment whose folder is gone; all others go on."""
        log.warning("%s fails: %s", space.experiment, space.gone_reason)
        self._fail(space.experiment, space.gone_reason)
