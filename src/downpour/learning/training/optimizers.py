"""The optimizers of the local loop, and their state as named arrays.

Those of a spec are torch's fused ones: one call for all parameters, and elementwise, so their
result does not depend on how the work is cut. A state belongs to a shard, not to a worker, so it
must survive a file (`optimizer_state.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer

from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import not_default, overrides, theirs
from downpour.learning.training.optimizer_state import OptimizerState
from downpour.learning.training.parameter_groups import (
    _by_name,
    _check_all_trained,
    groups_of,
    trainable,
)
from downpour.learning.training.parameters import Arrays

_OF_THE_OPTIMIZER = (
    "optimizer",
    "learning_rate",
    "momentum",
    "nesterov",
    "weight_decay",
    "betas",
    "epsilon",
)


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
        _check_all_trained(self.by_name, model, loaded)
        self._groups = [group for one in self.by_name.values() for group in one.param_groups]
        self._rates = [float(group["lr"]) for group in self._groups]
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"] = rate
        self._state = OptimizerState(self.by_name, model, loaded)
        self._apply(1.0)

    def set_rate(self, factor: float) -> None:
        """Multiply every group's learning rate, as it was in the beginning.

        While the factor stays the same, an optimizer that changes the rates itself keeps its own.

        Raises:
            SpecError: one of torch's schedulers sets it as well, or a step has changed the groups.
        """
        if sum(len(one.param_groups) for one in self.by_name.values()) != len(self._groups):
            self._state.check_groups()
        if any("initial_lr" in group for group in self._groups):  # as torch's schedulers leave it
            accepted = (
                "a scheduler sets its learning rate, but another worker could "
                "not continue it: use the spec's schedule or rate(done) instead"
            )
            raise self._loaded.mistake("optimizer", accepted)
        if factor != self._factor:
            self._apply(factor)

    def _apply(self, factor: float) -> None:
        self._factor = factor
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"] = self._state.rates[id(group)] = rate * factor

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for one in self.by_name.values():
            if type(one).zero_grad is not Optimizer.zero_grad:
                one.zero_grad(set_to_none=True)
        # Not by torch's own method, whose call for the profiler took 2 % of a step of the digits.
        for parameter in self.trainable.values():
            parameter.grad = None

    def step(self) -> None:
        """Let every optimizer take its step.

        Raises:
            SpecError: one takes no sparse gradients, and there are some.
        """
        for one in self.by_name.values():
            try:
                one.step()
            except (RuntimeError, NotImplementedError) as error:
                self._check_sparse(error)
                raise

    def _check_sparse(self, error: Exception) -> None:
        """Refuse sparse gradients if they are why a step has failed."""
        gradients = ((name, value.grad) for name, value in self.trainable.items())
        sparse = (name for name, one in gradients if one is not None and one.is_sparse)
        name = next(sparse, None)
        if name is not None:
            accepted = (
                f"its optimizer takes no sparse gradients, but {name} has them: use sparse=False, "
                "or SparseAdam or Adagrad in optimizer()"
            )
            raise self._loaded.mistake("model", accepted) from error

    def arrays(self) -> Arrays:
        """Return copies of the state, see `optimizer_state.py`; empty if it has none.

        Raises:
            SpecError: other processes could not continue with a part of it.
        """
        return self._state.arrays()

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state by a result of `arrays`.

        Raises:
            FileCorrupt: a name or a shape is not of this network.
        """
        self._apply(1.0)
        self._state.load(arrays)


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
