"""The optimizers of the local loop, and their state as named arrays.

Those of a spec are torch's fused ones: one call for all parameters, and elementwise, so their
result does not depend on how the work is cut. A state belongs to a shard, not to a worker, so it
must survive a file: every array is named `parameter/what`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from downpour.base.errors import FileCorrupt
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import not_default, overrides, theirs
from downpour.learning.training.parameter_groups import _by_name, _owners, groups_of, trainable
from downpour.learning.training.parameters import Arrays, array_of, copy_into

_OF_THE_OPTIMIZER = (
    "optimizer",
    "learning_rate",
    "momentum",
    "nesterov",
    "weight_decay",
    "betas",
    "epsilon",
)
_OF_ITS_SHAPE = frozenset({"momentum_buffer", "exp_avg", "exp_avg_sq"})


class Optimizers:
    """The optimizers of one network, by name, and what its parameters are trained with.

    A task's own may be several; the spec's is called "optimizer".

    Args:
        loaded: the task, which may choose its own groups of parameters and optimizers.
        model: the network.

    Raises:
        SpecError: the task's groups leave a trainable parameter out or name one twice, or what it
            returns are no optimizers of them.
    """

    def __init__(self, loaded: LoadedTask, model: nn.Module) -> None:
        self._loaded = loaded
        self.trainable = trainable(model)
        groups = groups_of(loaded, model, self.trainable)
        self.by_name = _by_name(loaded, groups)
        self._rates = [
            [float(group["lr"]) for group in one.param_groups] for one in self.by_name.values()
        ]
        self._owner = _owners(self.by_name, model, loaded)

    def set_rate(self, factor: float) -> None:
        """Multiply every group's learning rate, as it was in the beginning.

        Raises:
            SpecError: one of torch's schedulers sets it as well.
        """
        for one, rates in zip(self.by_name.values(), self._rates, strict=True):
            for group, rate in zip(one.param_groups, rates, strict=True):
                if "initial_lr" in group:  # as every scheduler of torch.optim leaves it
                    accepted = (
                        "a scheduler sets its learning rate, but another worker could "
                        "not continue it: use the spec's schedule or rate(done) instead"
                    )
                    raise self._loaded.mistake("optimizer", accepted)
                group["lr"] = rate * factor

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for one in self.by_name.values():
            if type(one).zero_grad is not Optimizer.zero_grad:
                one.zero_grad(set_to_none=True)
        # Not by torch's own method, whose call for the profiler took 2 % of a step of the digits.
        for parameter in self.trainable.values():
            parameter.grad = None

    def step(self) -> None:
        """Let every optimizer take its step."""
        for one in self.by_name.values():
            one.step()

    def arrays(self) -> Arrays:
        """Return copies of the state, each named `parameter/what`; empty if it has none.

        Raises:
            SpecError: a part of it is no tensor, so it cannot go on elsewhere.
        """
        return {
            f"{name}/{what}": array_of(self._tensor(name, what, value))
            for name, parameter in self.trainable.items()
            for what, value in self._owner[name].state.get(parameter, {}).items()
            if value is not None
        }

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state by a result of `arrays`.

        Raises:
            FileCorrupt: a name or a shape is not of this network.
        """
        for one in self.by_name.values():
            one.state.clear()
        for full_name, array in arrays.items():
            name, _, what = full_name.rpartition("/")
            parameter = self.trainable.get(name)
            if parameter is None:
                raise FileCorrupt("optimizer state", f"{full_name} belongs to another network")
            owner = self._owner[name]
            owner.state[parameter][what] = _restored(owner, parameter, what, array, full_name)

    def _tensor(self, name: str, what: str, value: object) -> Tensor:
        if isinstance(value, Tensor):
            return value
        accepted = (
            f"its optimizer keeps {what} of {name}, a {type(value).__name__}: other "
            "workers can only continue with tensors"
        )
        raise self._loaded.mistake("optimizer", accepted)


def without_effect(loaded: LoadedTask, model: nn.Module) -> tuple[str, ...]:
    """Say which fields were given although the task's own optimizer decides: a line, or none.

    We do not refuse them: an optimizer() may leave the choice to the spec, and one spec may be of
    several tasks.

    Raises:
        SpecError: the task fails.
    """
    given = not_default(loaded.spec, _OF_THE_OPTIMIZER)
    if not given or not overrides(loaded.task, "optimizer"):
        return ()
    groups = groups_of(loaded, model, trainable(model))
    with theirs(loaded.spec, "optimizer() fails"):
        if loaded.task.optimizer(groups) is None:
            return ()
    fields = " and ".join(f"{field} = {value!r}" for field, value in given.items())
    have = "have" if len(given) > 1 else "has"
    return (f"{fields} {have} no effect: {loaded.spec.task} has its own optimizer()",)


def _restored(
    owner: Optimizer, parameter: nn.Parameter, what: str, array: NDArray[Any], full_name: str
) -> Tensor:
    """Return a part of an optimizer's state as a tensor.

    Raises:
        FileCorrupt: it does not have the shape that the spec's optimizers give it.
    """
    if what in _OF_ITS_SHAPE or array.shape == tuple(parameter.shape):
        # Fused kernels walk through memory: a buffer must have the layout of its parameter.
        value = torch.empty_like(parameter, requires_grad=False)
        copy_into(value, array, full_name)
        return value
    # Torch's plain optimizers count steps on the CPU, wherever the parameter is.
    counts_there = what != "step" or owner.defaults.get("fused") or owner.defaults.get("capturable")
    if what == "step" and array.shape:
        raise FileCorrupt("optimizer state", f"{full_name} should be one number")
    return torch.tensor(array).to(parameter.device if counts_there else "cpu")
