"""The facts about a user's examples on which manager and workers must agree, in a shared folder.

The examples stay where the task reads them. The folder holds their number, the labels, and a
sketch of a few. So a worker refuses to train if its task reads other data, or data that changed.
The folder's key follows from all that, as a prepared dataset's does from its arrays.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import FileCorrupt, SpecError, StoreError, UnfitWorker, size_in_words
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.files.store.publish import writing
from downpour.host.machine import free_memory
from downpour.learning import datasets
from downpour.learning.allowlist import check_factory, source_file
from downpour.learning.datasets import PreparedDataset
from downpour.learning.datasets.array_folder import damage, open_array_folder, write_array_folder

if TYPE_CHECKING:
    from downpour.learning.tasks import ExampleList, Task

CLASSES_MAX = 1_000_000

_ARRAYS = ("labels", "block_ends")
EXAMPLES_MAX = 2**31 - 1
"""Their indices, eight bytes each, are in the memory of the manager."""
_MANY = 100_000_000
_DIVIDING_BYTES = 20
"""For each example, what dividing them into shards takes for a moment."""
_WINDOW_BLOCKS = 8
"""How many blocks an epoch mixes at a time, if the examples do not say it."""
_LOOKED_AT = 16
"""How many examples are compared: the first, the last, and some between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskData:
    """The facts about a task's examples without reading them; `sketches` are by part and index.

    `labels` has shape (train_samples,), int64, or is None if examples have no classes.
    `block_ends` [blocks], int64, are the indices that follow the blocks of training examples, or
    None if the order does not depend on blocks. An epoch mixes `window_blocks` of them at a time.
    `files` are the fingerprints of the files of each part, if its examples tell them.
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
    from downpour.learning.tasks.own import resemble

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
    facts, arrays = _looked_at(spec)
    prefix = re.sub(r"[^A-Za-z0-9]+", "-", spec.task or "").strip("-")[:64]
    with writing(root, f"task {spec.task}"):
        key = write_array_folder(root, f"task-{prefix}", facts, arrays)
    if begun_with not in (None, key):
        accepted = f"its examples have changed since the experiment began, and {reason}"
        raise SpecError("task", spec.task, accepted)
    return key


def check_examples(
    spec: Spec, data: TaskData, part: str, examples: ExampleList, number: int | None = None
) -> None:
    """Check that this machine's examples of a part are those of the manager.

    Of the manager's sketches, `number` says which one to compare; absent: all of them.
    """
    from downpour.learning.tasks.own import resemble, sketched

    count = data.facts.train_samples if part == "train" else data.facts.test_samples
    here = limited(len(examples), spec, part)
    if here != count:
        raise UnfitWorker(f"{spec.task} has {here} {part} examples here, but {count} elsewhere")
    if _fingerprint(examples) != data.files.get(part, ""):
        raise UnfitWorker(f"{spec.task}: the files of its {part} examples are different here")
    sketches = list(data.sketches[part].items())
    if number is not None and sketches:
        sketches = [sketches[number % len(sketches)]]
    for index, expected in sketches:
        if not resemble(sketched(examples, part, index), expected):
            raise UnfitWorker(f"{spec.task}: {part} example {index} is different here")


def limited(count: int, spec: Spec, part: str) -> int:
    """Return how many examples of a part are used."""
    limit = spec.train_limit if part == "train" else spec.test_limit
    return count if limit is None else min(count, limit)


def _looked_at(spec: Spec) -> tuple[dict[str, Any], dict[str, NDArray[np.int64]]]:
    """Make the task and look at its data; returns what the folder states, and its arrays."""
    from downpour.learning.tasks.own import examples_of, own_task

    task = own_task(spec)
    counts, sketches, ends, files, windows = {}, {}, {}, {}, {}
    for part in ("train", "test"):
        examples = examples_of(task, spec, part)
        counts[part], sketches[part], ends[part] = _part(task, spec, part, examples)
        files[part] = _fingerprint(examples)
        windows[part] = int(getattr(examples, "window_blocks", _WINDOW_BLOCKS))
    labels = _labels(task, spec, counts["train"])
    facts = {
        "task": spec.task,
        "train_samples": limited(counts["train"], spec, "train"),
        "test_samples": limited(counts["test"], spec, "test"),
        "classes": int(labels.max()) + 1 if len(labels) else 0,
        "sketches": sketches,
        "files": files,
        "window_blocks": windows["train"],
    }
    return facts, {"labels": labels, "block_ends": ends["train"]}


def _fingerprint(examples: object) -> str:
    """Return what examples tell of their files; other libraries' fingerprints are none."""
    found = getattr(examples, "fingerprint", "")
    return found if isinstance(found, str) else ""


def _remedy(examples: object) -> str:
    """Say what to return instead of an object without examples by index; empty if it may have."""
    from torch.utils.data import DataLoader, Dataset

    if isinstance(examples, DataLoader):
        return "return its dataset; batch_size and collate() make the batches"
    if isinstance(examples, tuple | dict):
        # Of (x, y) the length is 2, and training would go on with two examples of the wrong shape.
        return "torch.utils.data.TensorDataset(x, y) makes one from columns"
    # torch's streams inherit an index that only raises; litdata's and mosaicml's have their own.
    index = getattr(type(examples), "__getitem__", Dataset.__getitem__)
    has_index = index is not Dataset.__getitem__ or hasattr(examples, "__getitems__")
    if not has_index or not hasattr(examples, "__len__"):
        return "record a stream to a list, or open its files with downpour.data.Blocks"
    return ""


def _part(
    task: Task, spec: Spec, part: str, examples: ExampleList
) -> tuple[int, dict[int, list[Any]], NDArray[np.int64]]:
    """Return how many examples a part has, sketches of some used ones, and where blocks end."""
    from downpour.learning.tasks.own import mistake, resemble, sketched, theirs

    if remedy := _remedy(examples):
        accepted = (
            f'examples("{part}") must return examples by index, not a '
            f"{type(examples).__name__}: {remedy}"
        )
        raise mistake(spec, task, "examples", accepted)
    with theirs(spec, f'examples("{part}") fails', task.examples):
        count = len(examples)
    if count < 1:
        raise mistake(spec, task, "examples", f'examples("{part}") is empty')
    used = limited(count, spec, part)
    if used > EXAMPLES_MAX:
        accepted = f'examples("{part}") has {count} examples; at most {EXAMPLES_MAX} are possible'
        raise mistake(spec, task, "examples", accepted)
    needed_bytes, free_bytes = used * _DIVIDING_BYTES, free_memory()
    if part == "train" and needed_bytes > free_bytes:
        free = f"only {size_in_words(free_bytes)} are free"
        needs = f"needs {size_in_words(needed_bytes)} of memory, but {free}"
        raise SpecError("train_limit", spec.train_limit, f"dividing {used:,} examples {needs}")
    indices = np.unique(np.linspace(0, used - 1, _LOOKED_AT).astype(int)).tolist()
    with theirs(spec, f'cannot read an example of "{part}"', task.examples):
        sketches = {index: sketched(examples, part, index) for index in indices}
        if not spec.repeatable:
            return count, {}, _block_ends(task, spec, part, examples)
        for index, sketch in sketches.items():
            if not resemble(sketch, sketched(examples, part, index)):
                accepted = (
                    f'example {index} of "{part}" differs on a second read: it must '
                    "draw random numbers only from the global generators of torch, Python or numpy"
                )
                raise mistake(spec, task, "examples", accepted)
    return count, sketches, _block_ends(task, spec, part, examples)


def _block_ends(task: Task, spec: Spec, part: str, examples: ExampleList) -> NDArray[np.int64]:
    """Return where the blocks of the used examples end; nothing if the order ignores them."""
    from downpour.learning.tasks.own import mistake

    ends = getattr(examples, "block_ends", None)
    if spec.order == "blocks" and ends is None and part == "train":
        accepted = (
            'order = "blocks" needs examples with block_ends, as those of downpour.data.Blocks'
        )
        raise mistake(spec, task, "examples", accepted)
    if ends is None or spec.order == "random" or spec.batches != "shuffled":
        return np.empty(0, np.int64)
    ends = np.asarray(ends)
    if ends.ndim != 1 or not len(ends) or ends[-1] != len(examples) or (np.diff(ends) <= 0).any():
        accepted = f"block_ends must ascend, and end in {len(examples)}, the number of examples"
        raise mistake(spec, task, "examples", accepted)
    return np.unique(np.minimum(ends, limited(len(examples), spec, "train"))).astype(np.int64)


def _labels(task: Task, spec: Spec, count: int) -> NDArray[np.int64]:
    """Return the labels of the used examples; of length 0 if the task has none.

    There are `count` training examples, used or not.
    """
    from downpour.learning import numerics
    from downpour.learning.tasks.own import mistake, theirs

    with theirs(spec, "labels() fails"), numerics.seeded(spec.seed):
        given = task.labels()
        labels = np.empty(0, np.int64) if given is None else np.asarray(given)
    if given is None:
        return labels
    if labels.ndim != 1 or len(labels) != count or labels.dtype.kind not in "iu":
        accepted = (
            f"labels() must return {count} class numbers, one for each training example, "
            f"but returned {labels.dtype} {list(labels.shape)}"
        )
        raise mistake(spec, task, "labels", accepted)
    if labels.min() < 0 or labels.max() >= CLASSES_MAX:
        raise mistake(spec, task, "labels", "labels() must return class numbers, 0 or above")
    return labels[: limited(count, spec, "train")].astype(np.int64)


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
