"""Loads a user's task by name: finds, makes and checks the class, and puts errors in one line.

We call a task's code through `theirs`, which turns its exceptions into a `SpecError` with the line
of the user's file.
"""

from __future__ import annotations

import inspect
import math
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch.utils._pytree import tree_leaves

from downpour.base.errors import DownpourError, SpecError
from downpour.core.spec import Spec
from downpour.core.spec_refusals import not_default
from downpour.learning import numerics
from downpour.learning.accelerators import is_plain
from downpour.learning.allowlist import load_factory
from downpour.learning.blame import describe_error, is_lack_of_memory, users_errors, with_place
from downpour.learning.tasks import ExampleList, Task
from downpour.learning.tasks.batches import read

NEEDED = ("model", "examples", "loss")

ARGUMENTS = {
    name: len(inspect.signature(method).parameters) - 1
    for name, method in vars(Task).items()
    if not name.startswith("_")
}
"""The methods of a task, and how many arguments each takes."""


def own_task(spec: Spec) -> Task:
    """Make the task that a spec names."""
    name = spec.task or ""
    made = load_factory("task", name)
    if not (isinstance(made, type) and issubclass(made, Task)):
        accepted = with_place("must be a class that inherits from downpour.Task", made)
        raise SpecError("task", name, accepted)
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
        "rate": ("schedule", "warmup", "final_rate", "decay", "decay_every"),
        "step": ("clip_norm", "accumulate", "inside"),
    }
    for method, fields in decided.items():
        for field, value in not_default(spec, fields).items():
            if overrides(task, method):
                raise SpecError(field, value, f"{spec.task} has its own {method}()")


_TOLERANCE = 1e-3


def sketched(examples: ExampleList, part: str, index: int) -> list[Any]:
    """Return a sketch of an example of a part, as values that JSON holds.

    The example's draws from global generators follow from its index here.
    """
    with numerics.seeded(index):
        example = read(examples, part, [index])
    return [_leaf(leaf) for leaf in tree_leaves(example)]


def resemble(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Say whether two sketches can be of the same example.

    Integers and text must be the same to the bit. Of floats the mean and the mean size count, to a
    thousandth, because decoding and scaling round differently on other processors.
    """
    return len(one) == len(other) and all(map(_alike, one, other))


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


def _alike(one: list[Any], other: list[Any]) -> bool:
    if one[:2] != other[:2] or one[0] != "float" or one == other:
        return one == other
    (mean, size), (mean_there, size_there) = one[2:], other[2:]
    slack = _TOLERANCE * max(size, size_there)
    return math.isclose(size, size_there, abs_tol=slack) and abs(mean - mean_there) <= slack
