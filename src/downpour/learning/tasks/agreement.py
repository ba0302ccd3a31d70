"""The facts about a user's examples on which manager and workers must agree, in a shared folder.

The examples stay where the task reads them. The folder holds their number, the labels, and a
sketch of a few. So a worker refuses to train if its task reads other data, or data that changed.
The folder's key follows from all that, as a prepared dataset's does from its arrays.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, SpecError, StoreError
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.files.store.publish import writing
from downpour.learning import datasets
from downpour.learning.allowlist import check_factory, source_file
from downpour.learning.datasets import PreparedDataset
from downpour.learning.datasets.array_folder import damage, open_array_folder, write_array_folder
from downpour.learning.tasks import resemble

_ARRAYS = ("labels", "block_ends")
_MANY = 100_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """The facts about a task's examples without reading them; `sketches` are by part and index.

    `labels` has shape (train_samples,), int64, or is None if examples have no classes.
    `block_ends` [blocks], int64, are the indices that follow the blocks of training examples, or
    None if the order does not depend on blocks. An epoch mixes `window_blocks` of them at a time.
    `files` are the fingerprints of each part's files, empty if its examples tell none; the files of
    a part that is absent are not compared.
    """

    facts: DatasetFacts
    labels: NDArray[np.int64] | None
    sketches: Mapping[str, Mapping[int, list[Any]]]
    block_ends: NDArray[np.int64] | None = None
    window_blocks: int = 1
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def understood(self) -> str:
        """How the examples were understood, in one line for people."""
        facts = self.facts
        kind = f"{facts.classes} classes" if facts.classes else "no labels"
        return f"{facts.train_samples:,} training and {facts.test_samples:,} test examples; {kind}"

    @property
    def remarks(self) -> tuple[str, ...]:
        """Remarks on unusual properties, for people, one line each."""
        count, found = self.facts.train_samples, []
        if self.block_ends is not None and _is_sorted(self):
            mixed = f"{self.window_blocks} of {len(self.block_ends)} blocks"
            found += [f'an epoch mixes {mixed}, and a class is in few: order = "random" mixes all']
        if count >= _MANY:
            size = f"{8 * count / 1e9:.2g} GB"
            where = f"{size} in the manager and {size} in all workers together"
            take = f"the indices of {count:,} training examples take {where}"
            found += [f"{take}; train_limit takes fewer"]
        return tuple(found)


def _is_sorted(data: TaskData) -> bool:
    """Whether blocks hold less than half of the classes that they would in random order."""
    labels, ends = data.labels, data.block_ends
    if labels is None or ends is None or len(ends) <= data.window_blocks:
        return False
    found = sum(len(np.unique(block)) for block in np.split(labels, ends[:-1]))
    shares, size = np.bincount(labels) / len(labels), len(labels) / len(ends)
    expected = len(ends) * (1 - (1 - shares) ** size).sum()
    return bool(2 * found < expected)


def open_task_data(root: Path, key: str) -> TaskData:
    """Open the folder of a task's data."""
    opened = open_array_folder(root, key, _ARRAYS)
    stated, ends = opened.facts, opened.arrays["block_ends"]
    try:
        facts = DatasetFacts(
            train_samples=int(stated["train_samples"]),
            test_samples=int(stated["test_samples"]),
            sample_shape=(),
            classes=int(stated["classes"]),
            targets_per_sample=0,
        )
        return TaskData(
            facts=facts,
            labels=opened.arrays["labels"] if facts.classes else None,
            sketches={
                part: {int(index): list(one) for index, one in stated["sketches"][part].items()}
                for part in ("train", "test")
            },
            block_ends=ends if len(ends) else None,
            window_blocks=int(stated["window_blocks"]),
            files={part: str(stated["files"][part]) for part in ("train", "test")},
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FileCorrupt(key, f"misses or garbles {error}") from None


def alike(one: TaskData, other: TaskData) -> bool:
    """Say whether two can be of the same examples, looked at on two machines."""
    exact = one.facts == other.facts and one.files == other.files
    exact = exact and one.window_blocks == other.window_blocks
    arrays = (one.labels, other.labels), (one.block_ends, other.block_ends)  # each may be None
    if not exact or not all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in arrays):
        return False
    return all(
        one.sketches[part].keys() == sketches.keys()
        and all(resemble(one.sketches[part][index], sketch) for index, sketch in sketches.items())
        for part, sketches in other.sketches.items()
    )


def task_data_key(spec: Spec, root: Path, begun_with: str | None) -> str:
    """Return the key of a task's data, writing its folder where it is missing."""
    if begun_with is not None and (reason := damage(root, begun_with, _ARRAYS)) is None:
        return begun_with
    from downpour.learning.tasks.own import looked_at

    facts, arrays = looked_at(spec)
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", spec.task or "").strip("-")[:64]
    with writing(root, f"task {spec.task}"):
        key = write_array_folder(root, f"task-{prefix}", facts, arrays)
    if begun_with not in (None, key):
        accepted = f"its examples have changed since the experiment began, and {reason}"
        raise SpecError("task", spec.task, accepted)
    return key


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
