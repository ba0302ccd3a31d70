"""Loads the inputs of tasks and trains them with torch; `attempt.py` has the order of all.

The runner keeps the common inputs of an experiment's tasks (spec, dataset, network) between them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from downpour.base.devices import trained_on
from downpour.base.errors import UnfitWorker
from downpour.cluster.worker.attempt import ModelReader, TaskFlow
from downpour.cluster.worker.task_inputs import LoadedExperiment, built, opened, tensors_of
from downpour.core.node.attempt import PATIENCE_SECONDS
from downpour.core.spec import ResolvedSpec
from downpour.files.store import SharedDirectory
from downpour.learning.accelerators import release
from downpour.learning.shipping import settle_code
from downpour.learning.tasks import Reading
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.loaders import loaders_for
from downpour.learning.training.parameters import load_frozen
from downpour.learning.training.step import Shortage
from downpour.learning.user_code import differences
from downpour.network.rpc.messages import TaskMessage

if TYPE_CHECKING:
    from downpour.learning.intra_worker.team import Team


log = logging.getLogger(__name__)

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
        shared: SharedDirectory,
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
        self._loaded: LoadedExperiment | None = None

    @property
    def blocks(self) -> tuple[str, Mapping[str, str]]:
        """The current experiment, and the digests of its blocks that were read here so far."""
        if self._loaded is None:
            return "", {}
        return self._loaded.experiment, self._loaded.task.block_digests

    def _load(self, task: TaskMessage, patience: float) -> LoadedExperiment:
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
        self.differs = differences(spec.packages)
        for one in self.differs:
            log.warning("this worker has %s", one)
        data = shared.retry_policy.call(partial(opened, spec, shared, task.dataset))
        loaded, model, trial = built(spec, data, task.trial, remedy, self.differs)
        release(device)  # what the trial has used
        if task.frozen is not None:
            load_frozen(model, tensors_of(store, task.frozen))
        self._loaded = LoadedExperiment(
            experiment=task.id.experiment,
            spec=spec,
            store=store,
            snapshots=replace(
                shared,
                patience_seconds=min(seconds, PATIENCE_SECONDS),
                away_seconds=min(seconds, PATIENCE_SECONDS),
            ).store(task.id.experiment),
            snapshot_every=spec.snapshot_every,
            models=ModelReader(store, keeps=spec.publishes_steps),
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
        # Imported here, because most workers are one process and need no team.
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
            release(device)
