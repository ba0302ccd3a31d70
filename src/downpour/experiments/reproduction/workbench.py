"""A folder in which the manager's and worker's code remakes versions, in one process.

Its layout is that of a shared directory, except for the prepared datasets, which are the
experiment's own. We remove files when no later task needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from downpour.base.values import AttemptId, PublishedFile, Update
from downpour.cluster.manager import work
from downpour.cluster.manager.command_runner import task_of
from downpour.cluster.manager.workspace import Workspace
from downpour.cluster.worker.attempt import TaskControl
from downpour.cluster.worker.task_runner import TaskRunner
from downpour.core.modes import mode_of
from downpour.core.scheduler.outputs import Aggregate, Prepare, Publish, Push
from downpour.experiments.reproduction.history import MadeVersion, Past, TrainedTask
from downpour.files.store import SPEC_NAME, SharedDirectory
from downpour.record.record import RecordReader

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
        spent += [outer] if outer is not None else []
        self._models[version.number], self._outer = made.model, made.outer
        self._whole |= {version.number} if version.line.whole else set()
        linked = range(self._whole_before(min([version.number, *needed])), version.number)
        unneeded = self._models.keys() - {*needed, version.number}
        unneeded -= {*linked} if self._spec.publishes_steps else set()
        spent += [self._models.pop(number) for number in unneeded]
        for file in spent:
            self._space.store.delete(file.name)
        return made.model

    def publish(self, number: int) -> PublishedFile:
        """Publish a version as the experiment's result; return its file."""
        command = Publish(
            experiment=self._space.experiment,
            model=self._models[number],
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
