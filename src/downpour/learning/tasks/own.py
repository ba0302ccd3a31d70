"""Loads a user's task by name: finds, makes and checks the class, and puts errors in one line.

We call a task's code through `theirs`, which turns its exceptions into a `SpecError` with the line
of the user's file.
"""

import inspect
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, FunctionType
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Dataset

from downpour.base.errors import DownpourError, SpecError, size_in_words
from downpour.core.spec import Spec
from downpour.core.spec_refusals import not_default
from downpour.host.machine import free_memory
from downpour.learning import numerics
from downpour.learning.accelerators import is_plain
from downpour.learning.allowlist import load_factory
from downpour.learning.blame import describe_error, is_lack_of_memory, users_errors, with_place
from downpour.learning.datasets import CLASSES_MAX
from downpour.learning.tasks import ExampleList, Task, resemble
from downpour.learning.tasks.adapted import LIGHTNING, Adapted, derives, is_adaptable
from downpour.learning.tasks.batches import read

NEEDED = ("model", "examples", "loss")
SCHEDULE_FIELDS = ("schedule", "warmup", "final_rate", "decay", "decay_every")

ARGUMENTS = {
    name: len(inspect.signature(method).parameters) - 1
    for name, method in vars(Task).items()
    if not name.startswith("_")
}
"""The methods of a task, and how many arguments each takes."""


def own_task(spec: Spec) -> Task:
    """Make the task that a spec names."""
    name = spec.task or ""
    with numerics.seeded(spec.seed):  # a module may build its network while it is imported
        made = load_factory("task", name, is_adaptable)
    if not (isinstance(made, type) and issubclass(made, Task)):
        with theirs(spec, "cannot be made", made), numerics.seeded(spec.seed):
            found = _adapted(name, made, spec.task_options)
        if found is None:
            accepted = (
                "must be a class that inherits from downpour.Task or LightningModule, or a "
                "function that returns a LightningModule or a Trainer"
            )
            raise SpecError("task", name, with_place(accepted, made))
        return found
    missing = [method for method in NEEDED if not overrides(made, method)]
    if missing:
        lacks = f"lacks {' and '.join(f'{method}()' for method in missing)}"
        raise SpecError("task", name, with_place(lacks, made))
    try:
        inspect.signature(made).bind(**spec.task_options)
    except TypeError as error:
        accepted = with_place(f"{name}: {error}", made.__init__)
        raise SpecError("task_options", spec.task_options, accepted) from None
    with theirs(spec, "cannot be made"), numerics.seeded(spec.seed):
        task = made(**spec.task_options)
    for method, count in ARGUMENTS.items():
        _check_arguments(task, method, count, name)
    _refuse_twice_said(task, spec)
    return task


def _adapted(name: str, found: Any, options: Mapping[str, Any]) -> Adapted | None:
    """Make a task from another library's class, from an object, or from a function's result.

    None if it is none of them.
    """
    if isinstance(found, type) and derives(found, LIGHTNING, "LightningModule"):
        from downpour.learning.tasks.lightning_task import LightningTask, made_of

        return LightningTask(name, lambda: made_of(name, found, options))
    is_function = isinstance(found, FunctionType)
    made = found(**options) if is_function else found
    if is_adaptable(made):
        from downpour.learning.tasks.trainer_task import TrainerTask

        return TrainerTask(name, made)
    first = made[0] if isinstance(made, tuple) and made else made
    if is_function and derives(type(first), LIGHTNING, "LightningModule"):
        from downpour.learning.tasks.lightning_task import LightningTask

        return LightningTask(name, lambda: found(**options))
    return None


def examples_of(task: Task, spec: Spec, part: str) -> ExampleList:
    """Return a task's examples of a part; what they draw once follows from the seed."""
    with theirs(spec, f'examples("{part}") fails'), numerics.seeded(spec.seed):
        return task.examples(part)


def mistake(spec: Spec, task: Task, method: str, accepted: str) -> SpecError:
    """Return the refusal of a result of a user's method, with the line where that begins."""
    return SpecError(*spec.trained_code, with_place(accepted, getattr(task, method)))


def overrides(task: Task | type[Task], method: str) -> bool:
    """Whether a task brings its own method."""
    kind = task if isinstance(task, type) else type(task)
    return getattr(kind, method) is not getattr(Task, method)


@contextmanager
def theirs(spec: Spec, what: str, called: Any = None) -> Iterator[None]:
    """Turn what a user's code raises into a SpecError that says `what` failed, and where.

    If no line of the user's raised it, where is that of the method that was `called`.

    Only what torch raises for a lack of memory passes, because its cause may be the machine.
    """
    try:
        yield
    except (DownpourError, MemoryError):
        raise
    except users_errors() as error:
        if is_lack_of_memory(error):
            raise
        raise SpecError(*spec.trained_code, told(error, what, called)) from error


def told(error: BaseException, what: str, called: Any = None) -> str:
    """Say `what` failed, and how, in one line that names the method of the task.

    The line that raised it may be in another function, which the method has called.
    """
    line = f"{what}: {describe_error(error, called)}"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = (one.f_code.co_name for one in frames if _is_users(one))
    method = next((name for name in names if name in ARGUMENTS), None)
    if method is None or f"{method}(" in what or f" in {method})" in line:
        return line
    return f"{what}: {method}(): {describe_error(error, called)}"


def _is_users(frame: FrameType) -> bool:
    """Whether it is of a task's method that a user has written."""
    is_ours = str(frame.f_globals.get("__name__", "")).startswith("downpour.")
    return isinstance(frame.f_locals.get("self"), Task) and not is_ours


def shown(value: object) -> str:
    """Return what a method of the user's has returned, for a line; it may fail to show itself."""
    try:
        return f"{value!r:.80}"
    except users_errors():
        return f"a {type(value).__name__}"


def _check_arguments(task: Task, method: str, count: int, name: str) -> None:
    # Of the made task, because a method may be static, of the class, or any callable object.
    called = getattr(task, method)
    try:
        inspect.signature(called).bind(*range(count))
    except ValueError:  # some callables do not tell their arguments
        return
    except TypeError as error:
        names = ", ".join(inspect.signature(getattr(Task, method)).parameters)
        accepted = f"{method}() must take ({names}): {error}"
        raise SpecError("task", name, with_place(accepted, called)) from None


def _refuse_twice_said(task: Task, spec: Spec) -> None:
    """Refuse fields that would have no effect, because the task decides what they say."""
    decided = {
        "rate": SCHEDULE_FIELDS,
        "step": ("clip_norm", "accumulate", "inside"),
    }
    for method, fields in decided.items():
        for field, value in not_default(spec, fields).items():
            if overrides(task, method):
                raise SpecError(field, value, f"{spec.task} has its own {method}()")


def sketched(examples: ExampleList, part: str, index: int) -> list[Any]:
    """Return a sketch of an example of a part, as values that JSON holds.

    The example's draws from global generators follow from its index here.
    """
    with numerics.seeded(index):
        example = read(examples, part, [index])
    return [_leaf(leaf) for leaf in tree_leaves(example)]


def _leaf(leaf: Any) -> list[Any]:
    if isinstance(leaf, bool | int | str | bytes | None.__class__):
        return ["plain", repr(leaf)[:200]]
    if isinstance(leaf, float):
        leaf = np.float64(leaf)
    if isinstance(leaf, torch.Tensor):
        if not is_plain(leaf):
            return ["object", f"{leaf.layout} {leaf.dtype}", leaf.dim()]
        leaf = _array(leaf)
    if not isinstance(leaf, np.ndarray | np.generic):
        return ["object", type(leaf).__name__]
    array = np.asarray(leaf)
    if array.dtype.kind == "f":
        numbers = np.nan_to_num(array.astype(np.float64))
        size = float(np.abs(numbers).mean()) if array.size else 0.0
        return ["float", list(array.shape), float(numbers.mean()) if array.size else 0.0, size]
    content = np.ascontiguousarray(array).reshape(-1)
    digest = xxhash.xxh3_64_hexdigest(content.tobytes())
    return [str(array.dtype), list(array.shape), digest]


def _array(leaf: torch.Tensor) -> NDArray[Any]:
    """Return a copy of a tensor's numbers, as floats that numpy has."""
    leaf = leaf.detach().cpu()
    if leaf.is_floating_point() and leaf.dtype not in {torch.float16, torch.float64}:
        return leaf.to(torch.float32, copy=True).numpy()
    return leaf.clone().numpy()


_EXAMPLES_MAX = 2**31 - 1
"""Their indices, eight bytes each, are in the memory of the manager."""
_DIVIDING_BYTES = 20
"""For each example, what dividing them into shards takes for a moment."""
_WINDOW_BLOCKS = 8
"""How many blocks an epoch mixes at a time, if the examples do not say it."""
_LOOKED_AT = 16
"""How many examples are compared: the first, the last, and some between."""


def looked_at(spec: Spec) -> tuple[dict[str, Any], dict[str, NDArray[np.int64]]]:
    """Make the task and look at its data; returns what the folder states, and its arrays."""
    task = own_task(spec)
    counts, sketches, ends, files, windows = {}, {}, {}, {}, {}
    for part in ("train", "test"):
        examples = examples_of(task, spec, part)
        counts[part], sketches[part], ends[part] = _part(task, spec, part, examples)
        files[part] = fingerprint_of(examples)
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


def limited(count: int, spec: Spec, part: str) -> int:
    """Return how many examples of a part are used."""
    limit = spec.train_limit if part == "train" else spec.test_limit
    return count if limit is None else min(count, limit)


def fingerprint_of(examples: object) -> str:
    """Return what examples tell of their files; other libraries' fingerprints are none."""
    found = getattr(examples, "fingerprint", "")
    return found if isinstance(found, str) else ""


def _remedy(examples: object) -> str:
    """Say what to return instead of an object without examples by index; empty if it may have."""
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
    if used > _EXAMPLES_MAX:
        accepted = f'examples("{part}") has {count} examples; at most {_EXAMPLES_MAX} are possible'
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
    ends = getattr(examples, "block_ends", None)
    if spec.order == "blocks" and ends is None and part == "train":
        accepted = (
            'order = "blocks" needs examples with block_ends, as those of downpour.data.Blocks'
        )
        raise mistake(spec, task, "examples", accepted)
    if ends is None or spec.order in {"random", "given"} or spec.batches != "shuffled":
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
