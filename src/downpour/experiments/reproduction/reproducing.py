"""Retrains an experiment's tasks in the order in which they became part of versions.

The replay compares every update and version with the record's checksum. The first difference shows
the fault, because everything later is made from it.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from downpour.base import VERSION
from downpour.base.errors import SharedDirectoryError, SpecError, StoreError, UnfitWorker
from downpour.base.names import AUTO, CPU, Devices, checked_call
from downpour.base.values import PublishedFile, Update
from downpour.experiments.reproduction.history import (
    FIELD,
    Difference,
    MadeVersion,
    Past,
    Replay,
    TrainedTask,
    past_of,
)
from downpour.experiments.reproduction.workbench import Workbench
from downpour.experiments.running.surroundings import shared_path
from downpour.files.store import SPEC_NAME, DirectoryStore
from downpour.files.store.model_files import whole_content
from downpour.host.paths import empty_folder, path_of
from downpour.learning.accelerators import devices_here
from downpour.learning.training.numerics import numeric_class
from downpour.record import Result
from downpour.record.record_lines import FinishedLine

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
    device = device_for(past, devices_here())
    _warn(past, device)
    with (
        _told(past),
        tempfile.TemporaryDirectory(prefix="downpour-replay-") as folder,
        closing(Workbench(past, Path(folder), device)) as bench,
    ):
        again = _Again(
            past, bench, device, on_progress or (lambda _done, _tasks: None), stops=kept is None
        )
        made = again.make(versions, source)
        return Replay(
            experiment=experiment,
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
def _told(past: Past) -> Iterator[None]:
    """Report what makes a replay impossible as the user's mistake, in the user's words."""
    try:
        yield
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
