"""Loads the inputs of tasks and trains them with torch; `attempt.py` has the order of all.

The inputs are data, a network, a state to continue from, and indices. The runner keeps the common
inputs of an experiment's tasks (spec, dataset, network) between them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt
import torch
import xxhash

from downpour.base import errors
from downpour.base.names import trained_on
from downpour.base.values import PublishedFile, TrialSums, Update
from downpour.cluster.worker.attempt import LoadedTasks, ModelReader, TaskControl, TaskFlow, unfit
from downpour.core.node.attempt import PATIENCE_SECONDS
from downpour.core.spec import ResolvedSpec, Spec
from downpour.files import store as files
from downpour.files.store.shared_directory import fetch_dataset
from downpour.learning import accelerators, numerics, shipping, user_code
from downpour.learning.tasks.agreement import Data, Reading, open_data
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training import parameters, repeating
from downpour.learning.training.epoch_order import KeptArrays
from downpour.learning.training.loaders import Loaders, loaders_for
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.step import Shortage
from downpour.learning.training.trial import report
from downpour.network.rpc.messages import IndexArray, IndicesFile, TaskMessage, unpack_indices

if TYPE_CHECKING:
    from downpour.learning.intra_worker.team import Team

log = logging.getLogger(__name__)

Arrays = dict[str, npt.NDArray[Any]]


class _Kept(NamedTuple):
    """The last task's files, and its optimizer's arrays; the network still has its parameters."""

    update: PublishedFile
    optimizer_state: PublishedFile | None
    arrays: Mapping[str, files.Array]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoadedExperiment(LoadedTasks):
    """The common inputs of an experiment's tasks, with its network.

    `kept` holds the files of the last task; `indices` and `orders` are those of the last shards.
    """

    task: LoadedTask
    model: torch.nn.Module
    team: Team | None
    loaders: Loaders | None
    shortage: Shortage
    kept: list[_Kept] = field(default_factory=list)
    indices: KeptArrays = field(default_factory=KeptArrays)
    orders: KeptArrays = field(default_factory=KeptArrays)

    def keep(
        self, work: files.Work, file: PublishedFile, optimizer_state: PublishedFile | None
    ) -> None:
        """Keep the result of a task, if it is whole, so that the next one need not read it."""
        if work.start is None and self.team is None:
            self.kept[:] = [_Kept(file, optimizer_state, work.optimizer_state)]

    def begin(self, task: TaskMessage) -> _BegunTask:
        """Begin a task where an earlier attempt's snapshot ends, or at the task's beginning."""
        begun = _afresh(self, task)
        if task.snapshot is not None:
            try:
                begun.training.restore({**_tensors_of(self.snapshots, task.snapshot.file)})
            except errors.StoreError as error:
                log.warning("%s begins at its beginning: %s", task.id, error)
                # Begin a new training, because `restore` may have loaded part of the snapshot.
                begun = _afresh(self, task)
        begun.training.read_ahead()
        return begun

    def work_of(self, task: TaskMessage, begun: _BegunTask) -> files.Work:
        """Return the remaining work of a task."""
        spec, training = self.spec, begun.training
        # Copy nothing, because the next task begins only after we have written the files.
        return files.Work(
            parameters=training.parameters(copy=False),
            optimizer_state=training.optimizer_state(copy=False)
            if spec.optimizer_state == "keep"
            else {},
            samples=training.samples,
            steps=training.steps_done,
            loss=training.mean_loss,
            curve=training.curve,
            start=_start_of(self, task, begun.start) if spec.update_codec != files.WHOLE else None,
        )

    @property
    def processes(self) -> int:
        """How many processes train a batch."""
        return self.team.processes if self.team is not None else 1

    @property
    def shortages(self) -> int:
        """How often memory ran out."""
        return self.team.shortages if self.team is not None else self.shortage.count


def _opened(spec: Spec, shared: files.SharedDirectory, key: str) -> Data:
    fetch_dataset(shared, key)
    return open_data(spec, shared.datasets, key)


def _built(
    spec: Spec, data: Data, trial: TrialSums | None, remedy: str, differs: Sequence[str]
) -> tuple[LoadedTask, torch.nn.Module, str]:
    """Make the task and its network. The manager could, so a failure here is this machine's fault.

    In between, the task repeats the steps of the `trial`, if there is one; this also returns their
    checksum. An error ends with the `remedy`, and the packages in which this machine `differs`.
    """
    try:
        # Check the code before `load` imports it, so that only the submitted code ever runs. A
        # dataset's code does not matter here, because workers only read the data that it made.
        for field, name in spec.factories.items():
            if field != "dataset":
                user_code.check_code(field, name, spec.code)
        task = load(spec, data)
        task.examples("train")
        # Before the network is built, because the steps need the memory of another one.
        checksum = "" if trial is None else _repeat(task, trial, differs)
        return task, task.network(), checksum
    except errors.OtherCode as error:
        raise errors.OtherCode(error.file, remedy) from error
    except errors.SpecError as error:
        if not spec.trains_own_code or isinstance(error, _DependsOnProcess):
            raise
        raise unfit(error, remedy, tuple(differs)) from error


def _repeat(task: LoadedTask, trial: TrialSums, differs: Sequence[str]) -> str:
    """Repeat the steps of a trial in this process; returns their checksum, or nothing."""
    tried = copy(task)
    tried.spec = repeating.as_tried(task.spec)
    found = [(where, repeating.in_short(looks)) for where, looks in repeating.repeated(tried)]
    if not found:
        return ""
    its = str(numerics.numeric_class(task.spec.device))
    known = trial.looks if its == trial.numeric_class else found[0][1]
    what = repeating.difference(
        repeating.from_short(known),
        [(where, repeating.from_short(looks)) for where, looks in found],
    )
    if what and trial.rehearsed and its == trial.numeric_class:
        # Two processes of the manager have agreed, so this machine is to blame.
        raise errors.UnfitWorker(f"this worker computes other bytes than the manager: {what}")
    if what:
        try:
            report(task.spec, f"gives different bytes in another process: {what}; {repeating.RULE}")
        except errors.SpecError as error:
            if differs:
                raise
            raise _DependsOnProcess(*task.spec.trained_code, error.accepted) from None
    return found[0][1][-1]


class _DependsOnProcess(errors.SpecError):
    """A user's code gives other bytes in another process, so no machine is to blame."""


class _BegunTask(NamedTuple):
    """A task that has begun, and its first parameters; None if a file has them."""

    training: ShardTraining
    start: Mapping[str, files.Array] | None


def _afresh(loaded: _LoadedExperiment, task: TaskMessage) -> _BegunTask:
    loaded.task.look_again(task.id.round)
    kept = loaded.kept.pop() if loaded.kept else None
    start = None
    # A round's only update is the next version, under another name.
    if kept is None or task.step is not None or kept.update.checksum != task.model.checksum:
        model = loaded.models.read(task.model, task.leading, task.whole)
        if task.step is not None:
            model = files.moved_by(
                model, files.decode(loaded.store.read(task.step), task.step.name)
            )
        start = model.tensors
        parameters.load_parameters(loaded.model, start)
    indices, checksum = _indices_of(loaded, task.indices)
    part = LocalTask(
        indices=indices,
        checksum=checksum,
        round=loaded.spec.rounds_before + task.id.round,
        shard=task.id.shard,
        share=task.share,
    )
    known = kept is not None and kept.optimizer_state == task.optimizer_state
    arrays = kept.arrays if kept and known else _handed_on(loaded, task)
    training = _placed(loaded, part, files.optimizer_part(arrays))
    # Keep a computed start, which is in two files; one file costs little to read again.
    return _BegunTask(training, start if task.step is not None else None)


def _placed(loaded: _LoadedExperiment, part: LocalTask, state: Arrays) -> ShardTraining:
    """Return a training with its network and optimizer already on the device."""
    try:
        with numerics.lack_of_memory():
            return ShardTraining(
                loaded.task,
                loaded.model,
                part,
                optimizer_state=state,
                helpers=loaded.team,
                loaders=loaded.loaders,
                spills=loaded.shortage.spills,
                orders=loaded.orders,
            )
    except errors.OutOfMemory as error:
        wanted = "the network and its optimizer alone need too much: use a device with more memory"
        raise errors.OutOfMemory(f"{error}; {wanted}") from error


def _start_of(
    loaded: _LoadedExperiment, task: TaskMessage, held: Mapping[str, files.Array] | None
) -> files.Start:
    """Read the model once more, so that neither training nor snapshots need to hold it."""
    model = loaded.models.read(task.model, task.leading, task.whole)
    return files.Start(
        model=model,
        file=task.model,
        tensors=model.tensors if held is None else held,
        compression=loaded.spec.update_codec,
        unsent=files.unsent_part(_handed_on(loaded, task), model.tensors),
    )


def _handed_on(loaded: _LoadedExperiment, task: TaskMessage) -> Mapping[str, npt.NDArray[Any]]:
    """Return the optimizer state that the shard's previous task left for this one."""
    state = task.optimizer_state
    return _tensors_of(loaded.store, state) if state is not None else {}


def _tensors_of(store: files.Store, file: PublishedFile) -> Mapping[str, npt.NDArray[Any]]:
    return files.decode(store.read(file), file.name).tensors


def _indices_of(
    loaded: _LoadedExperiment, held: IndexArray | IndicesFile
) -> tuple[IndexArray, str]:
    """Return the indices of a task, from its message or from a file, and their checksum."""
    if not isinstance(held, IndicesFile):
        return held, xxhash.xxh3_128_hexdigest(held.data)
    # Not the name, because a restarted manager publishes the content again. The width, because
    # equal bytes could be other indices.
    checksum = f"{held.width_bytes} {held.file.checksum}"

    def read() -> IndexArray:
        content = loaded.store.read(held.file)
        return unpack_indices(held.width_bytes, held.count, content)

    return loaded.indices.get(checksum, held.count, read), checksum


_AWAY_SECONDS = 300.0
"""How long the shared directory may be gone, full or closed, at a patience of 1. That is long
enough for a person to restart a manager that ended because of it. After that we suspect this
machine: the task fails, so that another machine tries it."""


class TaskRunner(TaskFlow):
    """Runs tasks one after the other.

    At most `processes` train a batch here; None: as many as the spec asks for. As many `loaders`
    read ahead; None: as many as pay off. If it `accepts_code`, that may come from the manager.
    """

    def __init__(
        self,
        shared: files.SharedDirectory,
        device: str,
        processes: int | None = None,
        loaders: int | None = 0,
        *,
        accepts_code: bool = False,
    ) -> None:
        super().__init__(sleep=shared.sleep)
        self._accepts_code = accepts_code
        self.differs: tuple[str, ...] = ()
        """The versions of packages that differ from the manager's, for the current experiment."""
        self._shared = replace(shared, sleep=self._pause, moved=self._moved)
        self._device = device
        self._processes = processes
        self._loaders = loaders
        self._loaded: _LoadedExperiment | None = None

    @property
    def blocks(self) -> tuple[str, Mapping[str, str]]:
        """The current experiment, and the digests of its blocks that were read here so far."""
        if self._loaded is None:
            return "", {}
        return self._loaded.experiment, self._loaded.task.block_digests

    def run(self, task: TaskMessage, control: TaskControl) -> Update:
        """Train a task and publish its update; see `TaskFlow`."""
        try:
            return super().run(task, control)
        except (errors.FileCorrupt, errors.FileMissing):
            if self._loaded is not None and self._loaded.spec.task is None:
                self.close()  # the manager may have replaced the dataset
            raise

    def _load(self, task: TaskMessage, patience: float) -> _LoadedExperiment:
        if self._loaded is not None and self._loaded.experiment == task.id.experiment:
            if self._loaded.team is not None:
                self._loaded.team.mend()
            return self._loaded
        # Close first, to free the memory of the former experiment's network and dataset.
        self.close()
        seconds = self._shared.patience_seconds * patience
        shared = replace(
            self._shared, patience_seconds=seconds, away_seconds=_AWAY_SECONDS * patience
        )
        store = shared.store(task.id.experiment)
        spec = ResolvedSpec.from_toml(bytes(store.read(task.spec)).decode())
        device = trained_on(spec.device, self._device)
        if device is None:
            asked = f"start it with --device {spec.device}"
            raise errors.UnfitWorker(f"this worker trains on the {self._device}; {asked}")
        spec = spec.replace(device=device)
        torch.set_num_threads(spec.threads)
        remedy = shipping.settle_code(spec, store, accepts=self._accepts_code)
        self.differs = user_code.differences(spec.packages)
        for one in self.differs:
            log.warning("this worker has %s", one)
        data = shared.retry_policy.call(partial(_opened, spec, shared, task.dataset))
        loaded, model, trial = _built(spec, data, task.trial, remedy, self.differs)
        accelerators.release(device)  # what the trial has used
        if task.frozen is not None:
            parameters.load_frozen(model, _tensors_of(store, task.frozen))
        versions = ModelReader(store, keeps=spec.publishes_steps)
        if spec.publishes_steps and spec.init_from is None:
            drawn = files.encode(
                parameters.parameters_of(model), files.model_metadata(parameters.buffers_of(model))
            )
            versions.draw((*task.leading, task.model)[0], b"".join(drawn))
        self._loaded = _LoadedExperiment(
            experiment=task.id.experiment,
            spec=spec,
            store=store,
            snapshots=replace(
                shared,
                patience_seconds=min(seconds, PATIENCE_SECONDS),
                away_seconds=min(seconds, PATIENCE_SECONDS),
            ).store(task.id.experiment),
            snapshot_every=spec.snapshot_every,
            models=versions,
            task=loaded,
            model=model,
            team=self._team(loaded, model, task.dataset),
            loaders=loaders_for(
                loaded, Reading(self._shared.datasets, task.dataset, self._loaders)
            ),
            shortage=Shortage(spec.device),
            differs=self.differs,
            trial=trial,
        )
        return self._loaded

    def _team(self, loaded: LoadedTask, model: torch.nn.Module, key: str) -> Team | None:
        wanted = loaded.spec.inside.processes
        processes = min(wanted, self._processes or wanted)
        if processes == 1:
            return None
        from downpour.learning.intra_worker.team import Team

        return Team(loaded, model, self._shared.datasets, key, processes)

    def close(self) -> None:
        """Release the last experiment's common inputs."""
        if self._loaded is not None and self._loaded.team is not None:
            self._loaded.team.close()
        if self._loaded is not None and self._loaded.loaders is not None:
            self._loaded.loaders.close()
        if self._loaded is not None:
            device, self._loaded = self._loaded.spec.device, None
            accelerators.release(device)
