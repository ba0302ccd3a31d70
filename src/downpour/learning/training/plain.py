"""Torch's optimizers without the code for its compiler and its profiler.

The first optimizer that a process makes imports torch's compiler, only to be left alone by it:
1.3 s of processor time, as much again as torch itself. And each step says to compiler and profiler
that it is one: 5 % of a step of the digits network. Neither is used here, so the methods below
are torch's own, called without these wrappers. If a version of torch has other wrappers, they stay.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar, cast

import torch
from torch.optim import Optimizer

Kind = TypeVar("Kind", bound=Optimizer)


def unwrapped(kind: type[Kind]) -> type[Kind]:
    """Return a kind of optimizer that takes the same steps, to the bit, with less around them."""
    step, add_param_group = inspect.unwrap(kind.step), inspect.unwrap(kind.add_param_group)

    def plain_step(self: Optimizer, closure: None = None) -> Any:
        with torch.no_grad():
            return step(self, closure)

    def plain_add(self: Optimizer, param_group: dict[str, Any]) -> None:
        add_param_group(self, param_group)

    # By this mark torch knows that a step has its wrapper for the profiler.
    plain_step.hooked = True  # type: ignore[attr-defined]
    methods = {"step": plain_step, "add_param_group": plain_add}
    return cast("type[Kind]", type(kind.__name__, (kind,), methods))
