"""A network whose code makes one worker wrong, for `wrong_machines.py`.

It runs in the worker's process, as a fault of its machine would. `WRONG` names the fault and
`WRONG_FROM` the task, counted in this process, from which on it strikes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from downpour.cluster.worker import attempt, task_runner
from downpour.cluster.worker.task_runner import _indices_of as indices_of
from downpour.cluster.worker.task_runner import _LoadedExperiment as LoadedExperiment
from downpour.files.store import Work
from downpour.learning.training import optimizers

WORKER = "worker-2"
_TASK = {"number": 0, "attempt": 0, "forward": 0}


def network() -> nn.Module:
    """Return a small network for the digits; in the wrong worker, also install its fault."""
    kind = os.environ.get("WRONG", "")
    title = Path("/proc/self/cmdline").read_text().strip("\0 ")
    if kind and title.endswith(WORKER) and not _TASK["number"]:
        _count_tasks()
        _FAULTS[kind]()
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _strikes(*, watched: bool = True) -> bool:
    is_late = _TASK["number"] > int(os.environ["WRONG_FROM"])
    return is_late and (watched or _TASK["attempt"] == 0)


def _count_tasks() -> None:
    flow, run = attempt.TaskFlow, attempt.TaskFlow.run

    def counted(self: Any, task: Any, control: Any) -> Any:
        _TASK.update(number=_TASK["number"] + 1, attempt=task.id.attempt, forward=0)
        return run(self, task, control)

    flow.run = counted  # type: ignore[method-assign]
    _TASK["number"] = 1  # the task that makes the network


def _flip(array: np.ndarray[Any, Any]) -> None:
    """Flip one bit of the middle number, in the middle of its mantissa."""
    array.reshape(-1).view(np.uint32)[array.size // 2] ^= 1 << 12


def _change_work(change: Callable[[Work], Work], *, watched: bool = True) -> None:
    tasks, work_of = LoadedExperiment, LoadedExperiment.work_of

    def changed(self: Any, task: Any, begun: Any) -> Work:
        work = work_of(self, task, begun)
        return change(work) if _strikes(watched=watched) else work

    tasks.work_of = changed  # type: ignore[method-assign]


def _flipped(tensors: Mapping[str, Any]) -> dict[str, Any]:
    copies = {name: np.array(array) for name, array in tensors.items()}
    _flip(next(each for each in copies.values() if each.dtype == np.float32 and each.size > 1))
    return copies


def _weight() -> None:
    _change_work(lambda work: replace(work, parameters=_flipped(work.parameters)))


def _watched() -> None:
    _change_work(lambda work: replace(work, parameters=_flipped(work.parameters)), watched=False)


def _state() -> None:
    _change_work(lambda work: replace(work, optimizer_state=_flipped(work.optimizer_state)))


def _activation() -> None:
    relu = functional.relu

    def wrong(values: Tensor, inplace: bool = False) -> Tensor:  # noqa: FBT001, FBT002 - torch's
        out = relu(values, inplace=inplace)
        _TASK["forward"] += 1
        if _strikes() and values.requires_grad and _TASK["forward"] == 1:
            _flip(out.detach().numpy())
        return out

    functional.relu = wrong  # type: ignore[assignment]


def _optimizer(every: int) -> None:
    step = optimizers.Optimizers.step

    def skipped(self: Any) -> None:
        _TASK["forward"] += 1
        if not (_strikes() and _TASK["forward"] % every == 0):
            step(self)

    optimizers.Optimizers.step = skipped  # type: ignore[method-assign]


def _indices() -> None:
    def others(loaded: Any, held: Any) -> Any:
        indices, checksum = indices_of(loaded, held)
        return (indices[::-1].copy(), f"{checksum} back") if _strikes() else (indices, checksum)

    setattr(task_runner, indices_of.__name__, others)


def _library() -> None:
    linear = functional.linear

    def rounded(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        if not _strikes():
            return linear(values, weight, bias)
        product = (values.double() @ weight.double().t()).float()
        return product if bias is None else product + bias

    functional.linear = rounded  # type: ignore[assignment]


_FAULTS: Mapping[str, Callable[[], None]] = {
    "weight": _weight,
    "activation": _activation,
    "state": _state,
    "skips": lambda: _optimizer(4),
    "input": lambda: _optimizer(1),
    "indices": _indices,
    "watched": _watched,
    "library": _library,
}
KINDS = tuple(_FAULTS)
