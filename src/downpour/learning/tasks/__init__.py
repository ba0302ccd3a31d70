"""The training task: the user's own, or the built-in one of dataset, model and loss.

`prepare_data` puts what all processes must agree on into a folder, and returns its key;
`open_data` reads it. Neither opening nor this module imports torch. `loaded.load` makes the task of
a spec, for code that trains or evaluates.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from downpour.base.errors import SpecError, StoreError
from downpour.core.spec import Spec
from downpour.learning import datasets
from downpour.learning.allowlist import check_factory, source_file
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks.agreement import TaskData, alike, open_task_data, task_data_key

Data = PreparedDataset | TaskData
"""The facts about a spec's examples: counts, labels, and the built-in task's examples too."""


class Reading(NamedTuple):
    """A prepared dataset, and how many loaders may read it ahead; None: as many as pay off."""

    datasets: Path
    key: str
    loaders: int | None


def check_named(spec: Spec, data_dir: Path | None = None) -> None:
    """Check the names of a task or a dataset before anything starts; imports no module."""
    if spec.task is None:
        datasets.check_source(spec, data_dir)
        if ":" in spec.model:
            check_factory("model", spec.model)
    elif source_file(check_factory("task", spec.task)) is None:
        module = spec.task.partition(":")[0]
        raise SpecError("task", spec.task, f"no module {module} on the import path")


def prepare_data(
    spec: Spec, root: Path, data_dir: Path | None = None, begun_with: str | None = None
) -> str:
    """Return the key of the spec's data under `root`, making its folder where it is missing.

    `begun_with` is the key that an experiment goes on with; see `datasets.prepare`.
    """
    if spec.task is None:
        return datasets.prepare(spec, root, data_dir, begun_with)
    return task_data_key(spec, root, begun_with)


def open_data(spec: Spec, root: Path, key: str) -> Data:
    """Open the folder that `prepare_data` made."""
    if spec.task is None:
        return datasets.open_prepared(root, key, by_blocks=spec.order == "blocks")
    return open_task_data(root, key)


def check_same_data(spec: Spec, root: Path, key: str) -> None:
    """Check that a key's data are the data of the spec's `data_key`, if it names any."""
    if spec.data_key in {None, key}:
        return
    field, name = ("task", spec.task) if spec.task else ("dataset", spec.dataset)
    # The key of a task's data follows from sketches of its examples, and their means may differ in
    # the last digit on a machine of another kind.
    if spec.task is not None:
        with suppress(StoreError):
            if alike(open_task_data(root, str(spec.data_key)), open_task_data(root, key)):
                return
    accepted = f"its examples have changed: data_key names {spec.data_key}, and these are {key}"
    raise SpecError(field, name, accepted)
