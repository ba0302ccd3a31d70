"""The inputs of a task: data, a network, a state to continue from, and indices."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from downpour.base.errors import OtherCode, OutOfMemory, SpecError, StoreError, UnfitWorker
from downpour.base.values import PublishedFile, TrialSums
from downpour.core.spec import Spec
from downpour.files.store import (
    WHOLE,
    Array,
    Parameters,
    SharedDirectory,
    Start,
    Store,
    Work,
    decode,
    moved_by,
    optimizer_part,
    read_version,
    unsent_part,
)
from downpour.files.store.shared_directory import fetch_dataset
from downpour.learning.tasks import Data, open_data
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.numeric_class import numeric_class
from downpour.learning.training.numerics import lack_of_memory
from downpour.learning.training.parameters import load_parameters
from downpour.learning.training.repeating import (
    RULE,
    as_tried,
    difference,
    from_short,
    in_short,
    repeated,
)
from downpour.learning.training.step import Shortage
from downpour.learning.training.trial import report
from downpour.learning.user_code import check_code
from downpour.network.rpc.messages import IndexArray, IndicesFile, TaskMessage, unpack_indices

if TYPE_CHECKING:
    from downpour.learning.intra_worker.team import Team

log = logging.getLogger(__name__)


class ModelReader:
    """Reads the versions of one experiment; for one thread.

    If versions are differences, it keeps the last version in memory. The next version is one
    difference away from it, so the worker need not read a version twice.

    Args:
        store: Holds their files.
        keeps: Whether to keep the last version in memory.
    """

    def __init__(self, store: Store, *, keeps: bool) -> None:
        self._store = store
        self._keeps = keeps
        self._last: tuple[PublishedFile, Parameters] | None = None

    def read(
        self,
        file: PublishedFile,
        leading: Sequence[PublishedFile],
        whole: PublishedFile | None = None,
    ) -> Parameters:
        """Return a version, which the `leading` versions' steps lead to; don't change its tensors.

        If the version is not in memory, this reads the file that holds the `whole` of it, if there
        is one.
        """
        if whole is not None and self._known(file) is None:
            model: Parameters = decode(self._store.read(whole), whole.name)
        else:
            model = read_version(self._store, file, leading, self._known)
        if self._keeps:
            self._last = file, model
        return model

    def _known(self, file: PublishedFile) -> Parameters | None:
        if self._last is None or self._last[0] != file:
            return None
        return self._last[1]


Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedExperiment:
    """The common inputs of an experiment's tasks; `snapshots` is the same store, retried for less.

    `differs` has a phrase for each package of which this machine has another version, and `trial`
    is the checksum of the trial's steps in this process.
    """

    experiment: str
    spec: Spec
    store: Store
    snapshots: Store
    models: ModelReader
    task: LoadedTask
    model: torch.nn.Module
    team: Team | None
    shortage: Shortage
    differs: tuple[str, ...] = ()
    trial: str = ""


def opened(spec: Spec, shared: SharedDirectory, key: str) -> Data:
    """Open the data of an experiment."""
    fetch_dataset(shared, key)
    return open_data(spec, shared.datasets, key)


class BuiltTask(NamedTuple):
    """A task, its network, and the checksum of the trial's steps here; empty without a trial."""

    task: LoadedTask
    model: torch.nn.Module
    trial: str


def built(
    spec: Spec, data: Data, trial: TrialSums | None, remedy: str, differs: Sequence[str]
) -> BuiltTask:
    """Make the task and its network. The manager could, so a failure here is this machine's fault.

    In between, the task repeats the steps of the `trial`, if there is one. The error's line ends
    with the `remedy`, and with the packages in which this machine `differs`.
    """
    try:
        # Check the code before `load` imports it, so that only the submitted code ever runs. A
        # dataset's code does not matter here, because workers only read the data that it made.
        for field, name in spec.factories.items():
            if field != "dataset":
                check_code(field, name, spec.code)
        task = load(spec, data)
        # Before the network is built, because the steps need the memory of another one.
        checksum = "" if trial is None else _repeat(task, trial, differs)
        return BuiltTask(task, task.network(), checksum)
    except OtherCode as error:
        raise OtherCode(error.file, remedy) from error
    except SpecError as error:
        if not spec.trains_own_code or isinstance(error, _DependsOnProcess):
            raise
        raise _unfit(error, remedy, differs) from error


def _repeat(task: LoadedTask, trial: TrialSums, differs: Sequence[str]) -> str:
    """Repeat the steps of a trial in this process; returns their checksum, or nothing."""
    tried = copy(task)
    tried.spec = as_tried(task.spec)
    found = [(where, in_short(looks)) for where, looks in repeated(tried)]
    if not found:
        return ""
    its = str(numeric_class(task.spec.device))
    known = trial.looks if its == trial.numeric_class else found[0][1]
    what = difference(from_short(known), [(where, from_short(looks)) for where, looks in found])
    if what:
        try:
            report(task.spec, f"gives different bytes in another process: {what}; {RULE}")
        except SpecError as error:
            if differs:
                raise
            raise _DependsOnProcess(*task.spec.trained_code, error.accepted) from None
    return found[0][1][-1]


class _DependsOnProcess(SpecError):
    """A user's code gives other bytes in another process, so no machine is to blame."""


@contextmanager
def blaming_packages(differs: Sequence[str]) -> Iterator[None]:
    """If an import fails and this machine `differs` from the manager's, blame this machine.

    A task's functions may import packages that the manager has and this machine lacks.
    """
    try:
        yield
    except SpecError as error:
        if not differs or not isinstance(error.__cause__, ImportError):
            raise
        raise _unfit(error, "", differs) from error


def _unfit(error: SpecError, remedy: str, differs: Sequence[str]) -> UnfitWorker:
    versions = f"; this worker has {'; '.join(differs)}" if differs else ""
    return UnfitWorker(f"this worker cannot train it: {error}{remedy}{versions}")


class BegunTask(NamedTuple):
    """A task that has begun, and its first parameters; None if a file has them."""

    training: ShardTraining
    start: Mapping[str, Array] | None


def begin(loaded: LoadedExperiment, task: TaskMessage) -> BegunTask:
    """Begin a task where an earlier attempt's snapshot ends, or at the task's beginning."""
    begun = _afresh(loaded, task)
    if task.snapshot is None:
        return begun
    try:
        begun.training.restore(tensors_of(loaded.snapshots, task.snapshot.file))
    except StoreError as error:
        log.warning("%s begins at its beginning: %s", task.id, error)
        # Begin a new training, because `restore` may have loaded part of the snapshot before it
        # failed.
        return _afresh(loaded, task)
    return begun


def _afresh(loaded: LoadedExperiment, task: TaskMessage) -> BegunTask:
    loaded.task.look_again(task.id.round)
    start = _begun_from(loaded, task)
    load_parameters(loaded.model, start)
    part = LocalTask(
        indices=indices_of(loaded.store, task.indices),
        round=loaded.spec.rounds_before + task.id.round,
        shard=task.id.shard,
        share=task.share,
    )
    training = _placed(loaded, part, optimizer_part(_handed_on(loaded, task)))
    # Reading a computed start again would take two files, so keep it. A start from one file costs
    # little to read again.
    return BegunTask(training, start if task.step is not None else None)


def _placed(loaded: LoadedExperiment, part: LocalTask, state: Arrays) -> ShardTraining:
    """Return a training with its network and optimizer already on the device."""
    try:
        with lack_of_memory():
            return ShardTraining(
                loaded.task,
                loaded.model,
                part,
                optimizer_state=state,
                helpers=loaded.team,
                spills=loaded.shortage.spills,
            )
    except OutOfMemory as error:
        wanted = "the network and its optimizer alone need too much: use a device with more memory"
        raise OutOfMemory(f"{error}; {wanted}") from error


def work_of(loaded: LoadedExperiment, task: TaskMessage, begun: BegunTask) -> Work:
    """Return the remaining work of a task."""
    spec, training = loaded.spec, begun.training
    # Don't copy the parameters, because the next task begins only after we have written the file.
    return Work(
        parameters=training.parameters(copy=False),
        optimizer_state=training.optimizer_state() if spec.optimizer_state == "keep" else {},
        samples=training.samples,
        steps=training.steps_done,
        loss=training.mean_loss,
        start=_start_of(loaded, task, begun.start) if spec.update_codec != WHOLE else None,
    )


def _start_of(
    loaded: LoadedExperiment, task: TaskMessage, held: Mapping[str, Array] | None
) -> Start:
    """Read the model once more, so that neither training nor snapshots need to hold it."""
    model = loaded.models.read(task.model, task.leading, task.whole)
    return Start(
        model=model,
        file=task.model,
        tensors=model.tensors if held is None else held,
        compression=loaded.spec.update_codec,
        unsent=unsent_part(_handed_on(loaded, task), model.tensors),
    )


def _begun_from(loaded: LoadedExperiment, task: TaskMessage) -> Mapping[str, Array]:
    """Return the parameters and buffers that a task begins from."""
    model = loaded.models.read(task.model, task.leading, task.whole)
    if task.step is not None:
        model = moved_by(model, decode(loaded.store.read(task.step), task.step.name))
    return model.tensors


def _handed_on(loaded: LoadedExperiment, task: TaskMessage) -> Mapping[str, npt.NDArray[Any]]:
    """Return the optimizer state that the shard's previous task left for this one."""
    state = task.optimizer_state
    return tensors_of(loaded.store, state) if state is not None else {}


def tensors_of(store: Store, file: PublishedFile) -> Mapping[str, npt.NDArray[Any]]:
    """Read the tensors of a published file."""
    return decode(store.read(file), file.name).tensors


def indices_of(store: Store, indices: IndexArray | IndicesFile) -> npt.NDArray[np.int64]:
    """Return the indices of a task, from its message or from a file."""
    if not isinstance(indices, IndicesFile):
        return indices
    return unpack_indices(indices.width_bytes, indices.count, store.read(indices.file))
