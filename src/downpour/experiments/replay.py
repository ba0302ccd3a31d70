"""Retrains an experiment's tasks in the order in which they became part of versions.

The manager's and worker's code remakes the versions, in one process and a temporary folder. Its
layout is that of a shared directory, except for the prepared datasets, which are the experiment's
own. We remove files when no later task needs them. The replay compares every update and version
with the record's checksum. The first difference shows the fault, because everything later is made
from it. An audit trains some tasks alone, from the versions that the experiment still has.
"""

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from downpour.base import VERSION
from downpour.base.errors import SharedDirectoryError, SpecError, StoreError, UnfitWorker
from downpour.base.names import AUTO, CPU, Devices, checked_call
from downpour.base.values import AttemptId, PublishedFile, Update
from downpour.cluster.manager import work
from downpour.cluster.manager.command_runner import task_of
from downpour.cluster.manager.workspace import Workspace
from downpour.cluster.worker.attempt import TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.core.modes import mode_of
from downpour.core.scheduler.outputs import Aggregate, Prepare, Publish, Push
from downpour.experiments.replay_history import (
    FIELD,
    Audit,
    Difference,
    MadeVersion,
    Past,
    Replay,
    TrainedTask,
    past_of,
)
from downpour.experiments.surroundings import shared_path
from downpour.files.store import SPEC_NAME, DirectoryStore, SharedDirectory
from downpour.files.store.model_files import whole_content
from downpour.host.paths import empty_folder, path_of
from downpour.learning.accelerators import devices_here
from downpour.learning.numerics import numeric_class
from downpour.record import Result
from downpour.record.record import RecordReader
from downpour.record.record_lines import FinishedLine

OnShare = Callable[[float], object]
"""Takes the finished part of a task, in 0..1."""


@dataclass(slots=True, eq=False)
class _Watched(TaskControl):
    """A task that is never cancelled, and that reports its progress."""

    on_share: OnShare = field(kw_only=True)

    def advance(self, steps_done: int) -> None:
        TaskControl.advance(self, steps_done)
        self.on_share(steps_done / self.steps_total)


class Workbench:
    """Makes the versions of one experiment again, one after the other, in an empty folder."""

    def __init__(self, past: Past, folder: Path, device: str) -> None:
        # The experiment's directory has the datasets, and the files that it begins from.
        shared, experiment, spec = past.shared, past.experiment, past.spec
        bench = replace(SharedDirectory.open(folder, create=True), datasets_at=shared.datasets)
        store = bench.create_experiment(experiment)
        self._spec = spec
        self.folder = bench.experiment_path(experiment)
        """The folder of its files."""
        self._space = Workspace(
            experiment=experiment,
            spec=spec,
            shared=shared,
            store=store,
            record=RecordReader(self.folder),
            spec_file=store.put_new(SPEC_NAME, [spec.to_toml().encode()]),
            journal=None,
        )
        self._worker = TaskRunner(bench, device)
        self._models: dict[int, PublishedFile] = {}
        self._whole = {-1, 0}
        self._outer: PublishedFile | None = None
        self._states: dict[int, PublishedFile] = {}
        self._steps: dict[int, PublishedFile] = {}
        self._own: dict[int, PublishedFile] = {}
        self._mean: PublishedFile | None = None

    def close(self) -> None:
        """Close what is open; the files stay."""
        self._space.close()

    def begin(self, data_dir: Path | None, dataset: str) -> PublishedFile:
        """Make version 0; `dataset` is the key of the prepared data."""
        command = Prepare(experiment=self._space.experiment, spec=self._spec, dataset=dataset)
        made = work.prepare(self._space, data_dir, command)
        begun = made.begun
        self._space.prepared, self._space.global_model = made, begun.drawn
        self._models[0], self._outer = begun.model, begun.outer
        self._states, self._steps = dict(begun.handed_on.states), dict(begun.handed_on.steps)
        if begun.handed_on.former is not None:
            self._models[-1] = begun.handed_on.former
        return begun.model

    def take(self, version: MadeVersion, store: DirectoryStore) -> None:
        """Copy a whole version from the experiment's own files, instead of making it."""
        line = version.line
        file = PublishedFile(name=line.file, size_bytes=line.bytes, checksum=line.checksum)
        self._models[line.version] = self._space.store.put_new(line.file, [store.read(file)])
        self._whole.add(line.version)

    def train(self, task: TrainedTask, on_share: OnShare) -> Update:
        """Train a task from the version that it began from."""
        attempt = AttemptId(
            experiment=self._space.experiment, round=task.round, shard=task.shard, attempt=0
        )
        message = task_of(
            self._space,
            attempt,
            self._base(task),
            leading=self._leading(task.base),
            portion=task.portion,
            share=task.share,
            optimizer_state=self._states.get(task.shard),
            step=self._steps.get(task.shard),
        )
        return self._worker.run(message, _Watched(attempt, on_share=on_share))

    def apply(
        self, version: MadeVersion, updates: Sequence[Update], needed: Collection[int]
    ) -> PublishedFile:
        """Make the next version from its tasks' updates; keep older versions for later tasks."""
        mode, outer = mode_of(self._spec), self._outer
        command = Aggregate(
            experiment=self._space.experiment,
            round=version.number - 1,
            model=self._models[version.number - 1],
            whole=version.line.whole,
            versions=tuple(self._models[number] for number in sorted(self._models)),
            outer=outer,
            keeps_mean=bool(version.line.mean),
            pushes=tuple(
                Push(
                    round=task.round,
                    shard=task.shard,
                    update=update,
                    base=self._base(task),
                    staleness=task.staleness,
                    weight=mode.weight(task.staleness),
                )
                for task, update in zip(version.tasks, updates, strict=True)
            ),
            in_step=self._spec.in_step,
            mixes=mode.mixes,
            elastic=mode.elastic,
            train_seconds=0.0,
        )
        made = work.aggregate(self._space, command)
        shards = [task.shard for task in version.tasks]
        files = [update.file for update in updates]
        spent = _replaced(self._steps, shards, files) if self._spec.overlap else files
        spent += _replaced(self._own, shards, made.own or [None] * len(shards))
        spent += _replaced(self._states, shards, [update.optimizer_state for update in updates])
        spent += [outer] if outer is not None and made.outer is not None else []
        spent += [self._mean] if self._mean is not None else []
        self._mean = made.mean
        self._models[version.number], self._outer = made.model, made.outer or outer
        self._whole |= {version.number} if version.line.whole else set()
        linked = range(self._whole_before(min([version.number, *needed])), version.number)
        unneeded = self._models.keys() - {*needed, version.number}
        unneeded -= {*linked} if self._spec.publishes_steps else set()
        spent += [self._models.pop(number) for number in unneeded]
        for file in spent:
            self._space.store.delete(file.name)
        return made.model

    def publish(self, number: int) -> PublishedFile:
        """Publish a version, or the mean that it is ahead of, as the result; return its file."""
        command = Publish(
            experiment=self._space.experiment,
            model=self._mean or self._models[number],
            leading=self._leading(number),
        )
        return work.publish(self._space, command)

    def _leading(self, number: int) -> tuple[PublishedFile, ...]:
        """Return the versions whose steps lead to this one."""
        return tuple(self._models[n] for n in range(self._whole_before(number), number))

    def _whole_before(self, number: int) -> int:
        return max(n for n in self._whole if n <= number)

    def _base(self, task: TrainedTask) -> PublishedFile:
        """Return the file that a task began from: its shard's own, or a version."""
        return self._own.get(task.shard) or self._models[task.base]


def _replaced(
    kept: dict[int, PublishedFile], shards: Sequence[int], files: Sequence[PublishedFile | None]
) -> list[PublishedFile]:
    """Store for each shard the file that it continues with, if any; return the former files."""
    former = [kept.pop(shard) for shard in shards if shard in kept]
    kept |= {shard: file for shard, file in zip(shards, files, strict=True) if file is not None}
    return former


log = logging.getLogger(__name__)

OnProgress = Callable[[float, int], object]
"""Takes the number of trained tasks, with the current task's share, and of all tasks."""


@checked_call()
def replay(
    experiment: str | Result,
    *,
    shared: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    until: int | None = None,
    to: str | os.PathLike[str] | None = None,
    on_progress: OnProgress | None = None,
) -> Replay:
    """Train an ended experiment once more, and compare every byte with the original.

    Args:
        experiment: Its ID, or its result.
        shared: The shared directory; by default the result's, DOWNPOUR_SHARED, or ./shared_dir.
        data_dir: A folder of datasets in torchvision's layout, in case the prepared dataset is
            gone; by default DOWNPOUR_DATA.
        until: The last version to make; by default, `replay` makes all, and the final model.
        to: A new or empty folder for the model and the spec. Without it, `replay` keeps nothing,
            and ends at the first difference.
        on_progress: Called after each step.

    Raises:
        SpecError: the experiment or version does not exist, it is still running, it is not
            repeatable, or something it was trained with is gone or has changed.
        DownpourError: a task fails here.
    """
    if isinstance(experiment, Result):
        shared = shared or (experiment.model_file.parents[2] if experiment.model_file else None)
        experiment = experiment.experiment
    data_dir = data_dir or os.environ.get("DOWNPOUR_DATA")
    source = path_of("data_dir", data_dir) if data_dir else None
    past = past_of(experiment, shared_path(shared))
    versions = past.history.versions[: _last(past, until)]
    kept = empty_folder("to", path_of("to", to)) if to is not None else None
    with _workbench(past) as (bench, device):
        again = _Again(
            past, bench, device, on_progress or (lambda _done, _tasks: None), stops=kept is None
        )
        made = again.make(versions, source)
        return Replay(
            experiment=past.experiment,
            version=again.version,
            checksum=made.checksum,
            compared=again.compared,
            difference=again.difference,
            model_file=_keep(bench.folder, made.name, kept, again.name) if kept else None,
        )


@dataclass(slots=True)
class _Again:
    """Makes the versions of an experiment again and compares them; `version` is the last one made.

    It ends at the first difference if it `stops`. `name` is the original name of the last
    version's file.
    """

    past: Past
    bench: Workbench
    device: str
    on_progress: OnProgress
    stops: bool
    version: int = 0
    name: str = ""
    compared: int = 0
    difference: Difference | None = None
    _trained: int = 0
    _tasks: int = 0

    def make(self, versions: Sequence[MadeVersion], data_dir: Path | None) -> PublishedFile:
        """Make these versions, and the result if they are all; return the last file."""
        history = self.past.history
        self._tasks = sum(len(version.tasks) for version in versions)
        last_use = {task.base: v.number for v in versions for task in v.tasks}
        model = self.bench.begin(data_dir, history.prepared.dataset)
        self.name = model.name
        self._compare(0, "the initial model", history.prepared.checksum, model)
        for version in versions:
            updates = [self._train(version, task) for task in version.tasks if not self._is_over]
            if self._is_over:
                return model
            needed = [base for base, last in last_use.items() if last > version.number]
            model = self.bench.apply(version, updates, needed)
            self.version, self.name = version.number, version.line.file
            self._compare(
                version.number,
                "the model of its updates",
                version.line.checksum,
                model,
                summed_otherwise=version.summed_otherwise,
            )
        ended, is_all = history.ended, len(versions) == len(history.versions)
        if not isinstance(ended, FinishedLine) or self._is_over or not is_all:
            return model
        self.name = ended.file
        result = self.bench.publish(self.version)
        self._compare(self.version, ended.file, ended.checksum, result)
        return result

    @property
    def _is_over(self) -> bool:
        return self.stops and self.difference is not None

    def _train(self, version: MadeVersion, task: TrainedTask) -> Update:
        def progress(share: float) -> None:
            self.on_progress(self._trained + share, self._tasks)

        update = self.bench.train(task, progress)
        self._trained += 1
        what = f"the update of round {task.round + 1} shard {task.shard}"
        self._compare(version.number, what, task.checksum, update.file, task)
        return update

    def _compare(
        self,
        version: int,
        what: str,
        then: str,
        now: PublishedFile,
        task: TrainedTask | None = None,
        *,
        summed_otherwise: bool = False,
    ) -> None:
        self.compared += 1
        if then == now.checksum or self.difference is not None:
            return
        known = task.numeric_class if task else self.past.history.prepared.numeric_class
        self.difference = Difference(
            version=version,
            what=what,
            task=task,
            then=then,
            now=now.checksum,
            numeric_class_then=known,
            numeric_class_now=str(numeric_class(self.device if task else CPU)),
            summed_otherwise=summed_otherwise,
        )


def audit(
    experiment: str,
    share: float,
    seed: int | None,
    *,
    shared: Path,
    data_dir: Path | None,
    on_progress: OnProgress,
) -> Audit:
    """Train a share of an experiment's tasks again, each alone; it may still be running.

    Raises:
        SpecError: as `replay`, or no task can be trained alone in its numeric class here.
        DownpourError: a task fails here.
    """
    if not 0 < share <= 1:
        raise SpecError("share", share, "must be above 0 and at most 1")
    seed = secrets.randbelow(2**32) if seed is None else seed
    past = past_of(experiment, shared, is_over=False)
    history, rows = past.history, list[dict[str, Any]]()
    with _workbench(past) as (bench, device):
        here = str(numeric_class(device))
        first = bench.begin(data_dir, history.prepared.dataset)
        kept = DirectoryStore(past.shared.experiments / past.experiment)
        alone = past.trained_alone(here, kept.list(), first.checksum)
        count = max(1, round(share * len(history.tasks)))
        drawn = sorted(alone, key=lambda task: task.place(seed))[:count]
        # All at once, because the manager of a running experiment removes versions.
        for number in {task.base for task in drawn if task.base > 0}:
            bench.take(history.versions[number - 1], kept)
        for task in drawn:
            made = bench.train(task, lambda part: on_progress(len(rows) + part, len(drawn)))
            (bench.folder / made.file.name).unlink()
            rows.append(task.row(made.file.checksum))
    return Audit(past.experiment, share, seed, here, len(history.tasks), len(alone), rows)


def _last(past: Past, until: int | None) -> int:
    count = len(past.history.versions)
    if until is None:
        return count
    if not isinstance(until, int) or isinstance(until, bool) or not 0 <= until <= count:
        accepted = f"{past.experiment} has the versions 0 to {count}"
        raise SpecError("until", until, accepted)
    return until


def device_for(past: Past, here: Devices) -> str:
    """Return the device on which this machine trains an experiment once more.

    If each worker took its best device, it is the device in the record.
    """
    asked, known = past.spec.device, past.history.numeric_classes
    if asked == AUTO:
        own = (one for one in (*here.accelerators, CPU) if str(numeric_class(one)) in known)
        return next(own, here.best)
    if not here.has(asked):
        accepted = f"was trained on {asked}, but torch finds no such device here, only {here}"
        raise SpecError(FIELD, past.experiment, accepted)
    return asked


def _warn(past: Past, device: str) -> None:
    """Log what differs from the original, if it may change the bytes."""
    history = past.history
    if history.ended is None:
        text = "%s: its record has no end (a killed run, or a cut file); it has %d versions"
        log.warning(text, past.experiment, len(history.versions))
    here = {str(numeric_class(CPU)), str(numeric_class(device))}
    if other := sorted(history.numeric_classes - here):
        text = (
            "%s was computed in another numeric class, so its bytes may differ: %s; here it is %s"
        )
        log.warning(text, past.experiment, "; ".join(other), "; ".join(sorted(here)))
    if history.submitted.version != VERSION:
        text = "%s was trained by Downpour %s, and this is %s: its bytes may differ"
        log.warning(text, past.experiment, history.submitted.version, VERSION)


@contextmanager
def _workbench(past: Past) -> Iterator[tuple[Workbench, str]]:
    """Yield a workbench in a temporary folder, and its device.

    If a replay is impossible, this reports it as the user's mistake, in the user's words.
    """
    device = device_for(past, devices_here())
    _warn(past, device)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="downpour-replay-") as folder,
            closing(Workbench(past, Path(folder), device)) as bench,
        ):
            yield bench, device
    except SharedDirectoryError:
        raise
    except (UnfitWorker, StoreError) as error:
        accepted = f"cannot be replayed: {error}"
        raise SpecError(FIELD, past.experiment, accepted) from error


def _keep(folder: Path, made: str, kept: Path, name: str) -> Path:
    """Copy a model and the spec out of the temporary folder; return the model's path."""
    try:
        shutil.copyfile(folder / SPEC_NAME, kept / SPEC_NAME)
        # Write the whole model: it may be a step from versions that we remove.
        with (kept / name).open("wb") as file:
            file.writelines(whole_content(DirectoryStore(folder), made))
        return kept / name
    except OSError as error:
        raise SpecError("to", str(kept), f"cannot be written: {error.strerror}") from None
