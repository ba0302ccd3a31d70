"""Carries out one task: load the model, train on the shard, publish the update.

The runner keeps the common inputs of an experiment's tasks (spec, dataset, network) between them.
Nothing here knows the manager; a `TaskControl` holds the progress, and tells whether the manager
still wants the task.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from downpour.base.devices import trained_on
from downpour.base.errors import OutOfMemory, StoreError, UnfitWorker
from downpour.base.values import Snapshot, Update
from downpour.cluster.worker.attempt import HandOverStop, TaskCancelled, TaskControl
from downpour.cluster.worker.task_inputs import (
    LoadedExperiment,
    ModelReader,
    begin,
    blaming_packages,
    built,
    opened,
    tensors_of,
    work_of,
)
from downpour.core.node.attempt import PATIENCE_SECONDS, NextStep, StepLoop
from downpour.core.spec import ResolvedSpec
from downpour.files.store import SharedDirectory, Store, encode, layout, publish_work
from downpour.learning.accelerators import release
from downpour.learning.shipping.receiving import settle_code
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.loop import ShardTraining
from downpour.learning.training.parameters import load_frozen
from downpour.learning.training.step import Shortage
from downpour.learning.user_code import differences
from downpour.network.rpc.messages import TaskMessage

if TYPE_CHECKING:
    from downpour.learning.intra_worker.team import Team


log = logging.getLogger(__name__)


class Snapshots:
    """Publishes and withdraws the snapshots of one attempt.

    `core/node/attempt.py` decides when. Nothing depends on a snapshot, so a failure to publish one
    is logged and training continues.

    Args:
        store: the experiment's files.
        control: the attempt.
    """

    def __init__(self, store: Store, control: TaskControl) -> None:
        self._store = store
        self._control = control

    def publish(self, training: ShardTraining) -> Snapshot | None:
        """Publish the state of a running training; returns None if it cannot be published."""
        # The token is longer than in other files' names, because an attempt's snapshots differ only
        # by it.
        name = layout.attempt_name("snapshot", self._control.attempt, secrets.token_hex(6))
        try:
            file = self._store.put_new(name, encode(training.snapshot(), {}))
        except StoreError as error:
            log.warning("%s: no snapshot: %s", self._control.attempt, error)
            # The file may exist although the write seemed to fail, and no other process knows its
            # name.
            self._remove(name)
            return None
        done, total = training.steps_done, training.steps_total
        return Snapshot(file=file, steps_done=done, steps_total=total)

    def withdraw_unknown(self) -> None:
        """Remove the last snapshot of an ended attempt, if the manager does not know that file."""
        # The manager removes the files that it knows. No other process would remove this one.
        snapshot = self._control.withdraw_unknown()
        if snapshot is not None:
            self._remove(snapshot.file.name)

    def _remove(self, name: str) -> None:
        try:
            self._store.delete(name)
        except StoreError as error:
            log.warning("%s: could not remove a snapshot: %s", self._control.attempt, error)


_AWAY_SECONDS = 300.0
"""How long the shared directory may be gone, full or closed, at a patience of 1. That is long
enough for a person to restart a manager that ended because of it. After that we suspect this
machine: the task fails, so that another machine tries it."""


class TaskRunner:
    """Runs tasks one after the other.

    Args:
        shared: holds their files.
        device: the device that this worker trains on.
        loop_class: makes the decisions between their steps.
        processes: how many processes may train a batch here; None: as many as the spec asks for.
        accepts_code: whether a task's code may come from the manager.
    """

    def __init__(
        self,
        shared: SharedDirectory,
        device: str,
        loop_class: type[StepLoop] = StepLoop,
        processes: int | None = None,
        *,
        accepts_code: bool = False,
    ) -> None:
        self._accepts_code = accepts_code
        self._differs: tuple[str, ...] = ()
        self._shared = replace(shared, sleep=self._pause)
        self._sleep = shared.sleep
        self._control: TaskControl | None = None
        self._device = device
        self._loop_class = loop_class
        self._processes = processes
        self._loaded: LoadedExperiment | None = None

    def run(self, task: TaskMessage, control: TaskControl) -> Update:
        """Train a task and publish its update.

        Raises:
            TaskCancelled: the attempt is no longer wanted.
            HandOverStop: another worker is to continue it; carries its snapshot.
            DownpourError: the spec or a file is invalid, or the training failed.
        """
        began = time.perf_counter()
        self._control = control
        loaded = self._load_experiment(task, control.patience)
        with blaming_packages(loaded.differs):
            begun = begin(loaded, task)
        control.begin(begun.training.steps_done, begun.training.steps_total)
        loaded_at = time.perf_counter()
        snapshots = Snapshots(loaded.snapshots, control)
        loop = self._loop_class(control, loaded.spec.snapshot_every, time.monotonic())
        try:
            with blaming_packages(loaded.differs):
                while not _is_trained(begun.training, loaded, control, snapshots, loop):
                    del begun  # it holds memory of the device
                    loaded.shortage.make_room()
                    left = replace(task, snapshot=control.snapshot or task.snapshot)
                    begun = begin(loaded, left)
        finally:
            snapshots.withdraw_unknown()
        training, team = begun.training, loaded.team
        trained = time.perf_counter()
        file, optimizer_state = publish_work(loaded.store, task.id, work_of(loaded, task, begun))
        return Update(
            file=file,
            samples=training.samples,
            steps=training.steps_done,
            loss=training.mean_loss,
            load_seconds=loaded_at - began,
            train_seconds=trained - loaded_at,
            optimizer_state=optimizer_state,
            publish_seconds=time.perf_counter() - trained,
            processes=team.processes if team is not None else 1,
            shortages=team.shortages if team is not None else loaded.shortage.count,
            trial=loaded.trial,
        )

    @property
    def differs(self) -> tuple[str, ...]:
        """The versions of packages that differ from the manager's, for the current experiment."""
        return self._differs

    @property
    def helpers(self) -> Team | None:
        """The helpers of the current experiment, if its spec asks for any."""
        return self._loaded.team if self._loaded is not None else None

    def _pause(self, seconds: float) -> None:
        """Sleep between two tries to read a file; raises TaskCancelled on a cancellation."""
        if self._control is not None:
            self._control.raise_if_cancelled()
        self._sleep(seconds)

    def _load_experiment(self, task: TaskMessage, patience: float) -> LoadedExperiment:
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
            raise UnfitWorker(f"this worker trains on the {self._device}; {asked}")
        spec = spec.replace(device=device)
        torch.set_num_threads(spec.threads)
        remedy = settle_code(spec, store, accepts=self._accepts_code)
        self._differs = differences(spec.packages)
        for one in self._differs:
            log.warning("this worker has %s", one)
        data = shared.retry_policy.call(partial(opened, spec, shared, task.dataset))
        made = built(spec, data, task.trial, remedy, self._differs)
        if task.frozen is not None:
            load_frozen(made.model, tensors_of(store, task.frozen))
        self._loaded = LoadedExperiment(
            experiment=task.id.experiment,
            spec=spec,
            store=store,
            snapshots=replace(
                shared,
                patience_seconds=min(seconds, PATIENCE_SECONDS),
                away_seconds=min(seconds, PATIENCE_SECONDS),
            ).store(task.id.experiment),
            models=ModelReader(store, keeps=spec.publishes_steps),
            task=made.task,
            model=made.model,
            team=self._team(made.task, made.model, task.dataset),
            shortage=Shortage(spec.device),
            differs=self._differs,
            trial=made.trial,
        )
        return self._loaded

    def _team(self, loaded: LoadedTask, model: torch.nn.Module, key: str) -> Team | None:
        wanted = loaded.spec.inside.processes
        processes = min(wanted, self._processes or wanted)
        if processes == 1:
            return None
        # Imported here, because most workers are one process and need no team.
        from downpour.learning.intra_worker.team import Team

        return Team(loaded, model, self._shared.datasets, key, processes)

    def close(self) -> None:
        """Release the last experiment's common inputs."""
        if self._loaded is not None and self._loaded.team is not None:
            self._loaded.team.close()
        if self._loaded is not None:
            device, self._loaded = self._loaded.spec.device, None
            release(device)


def _is_trained(
    training: ShardTraining,
    loaded: LoadedExperiment,
    control: TaskControl,
    snapshots: Snapshots,
    loop: StepLoop,
) -> bool:
    """Train to the end, see `train_steps`; false if memory ran out and a retry may help."""
    try:
        train_steps(training, control, snapshots, loop)
    except OutOfMemory as error:
        if not loaded.shortage.may_try_again():
            raise
        # Log it as text, because a log that keeps the error would keep the failed step's memory.
        log.warning("retrying %s: %s", control.attempt, str(error))
        return False
    return True


def train_steps(
    training: ShardTraining,
    control: TaskControl,
    snapshots: Snapshots,
    loop: StepLoop,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Train to the end, step by step, as the loop decides."""
    while (step := loop.next(clock())) is not NextStep.FINISH:
        match step:
            case NextStep.TRAIN:
                training.advance(1)
                # Repeating steps after a shortage of memory is no progress.
                control.advance(max(control.steps_done, training.steps_done))
            case NextStep.SAVE:
                control.snapshot = snapshots.publish(training) or control.snapshot
                loop.saved(clock())
            case NextStep.HAND_OVER:
                snapshot = snapshots.publish(training)
                if snapshot is not None:
                    raise HandOverStop(snapshot)
            case NextStep.STOP:
                raise TaskCancelled
