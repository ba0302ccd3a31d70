"""The optimizers of a worker: their groups of parameters, learning rates and states.

Those of a spec are torch's fused ones: one call for all parameters, and elementwise, so their
result does not depend on how the work is cut. A state belongs to a shard, not to a worker, so it
must survive a file (`optimizer_state.py`).
"""

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from downpour.base.errors import SpecError, listed
from downpour.base.names import Device
from downpour.core.spec import Spec
from downpour.core.spec_refusals import not_default
from downpour.learning.tasks import Position
from downpour.learning.tasks.adapted import Adapted
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import SCHEDULE_FIELDS, overrides, shown, theirs
from downpour.learning.training.optimizer_state import OptimizerState
from downpour.learning.training.parameters import Arrays

Kind = TypeVar("Kind", bound=Optimizer)


def unwrapped(kind: type[Kind]) -> type[Kind]:
    """Return a kind of optimizer that takes the same steps, to the bit, with less around them.

    The first optimizer that a process makes imports torch's compiler, only to be left alone by it:
    1.3 s of processor time, as much again as torch itself. And each step says to compiler and
    profiler that it is one: 5 % of a step of the digits network. Neither is used here, so these
    methods are torch's own, called without the wrappers. If a version of torch has other wrappers,
    they stay.
    """
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


_USUAL_WARMUP = 5 / 90
_SCALER = ":scaler"
"""The array of the scale of float16's losses and of the steps since it has changed."""


def rate_factor(loaded: LoadedTask, position: Position) -> float:
    """Return what the learning rate is multiplied by at a step: by the task, or by its spec.

    A training of E epochs with S steps each has T = E S steps. Its first W = `warmup` T steps warm
    up, or W = `warmup` if that is 1 or more. Step k, counted from 0 over all epochs, multiplies the
    learning rate by `min(1, (k + 1) / W)`. After the warm-up it also multiplies it by the
    schedule's factor at `p = (k - W) / (T - W)`. How often the shards meet in an epoch changes none
    of it.

    With `scale_rate`, the learning rate of n shards is n times as high (the linear scaling rule),
    and the warm-up rises to it from the rate of one: by `1 + (n - 1) k / W`. Both are of Goyal et
    al. 2017, "Accurate, Large Minibatch SGD", sections 2.1 and 2.2. So is the warm-up of a spec
    that names none, five of ninety epochs.
    """
    spec = loaded.spec
    with theirs(spec, "rate() fails"):
        own = loaded.task.rate(position.done)
    if own is None:
        return _by_spec(spec, position)
    if not isinstance(own, int | float) or not 0 <= own < math.inf:
        accepted = f"rate({position.done:g}) must return a number, 0 or above, not {shown(own)}"
        raise loaded.mistake("rate", accepted)
    return float(own) * _scale(spec)


def _scale(spec: Spec) -> int:
    return spec.shards or 1 if spec.scale_rate else 1


def _by_spec(spec: Spec, position: Position) -> float:
    total = position.total
    said = spec.warmup or (_USUAL_WARMUP if spec.scale_rate else 0.0)
    warmup, scale = said * total if said < 1 else said, _scale(spec)
    number = position.number
    if number >= warmup:
        return scale * _by_schedule(spec, position, (number - warmup) / (total - warmup))
    if spec.scale_rate:
        return 1 + (scale - 1) * number / warmup
    return min(1.0, (number + 1) / warmup)


def _by_schedule(spec: Spec, position: Position, share: float) -> float:
    """Return the factor at a share, in 0..1, of the steps after the warm-up."""
    match spec.schedule:
        case "cosine":
            return spec.final_rate + (1 - spec.final_rate) * (1 + math.cos(math.pi * share)) / 2
        case "linear":
            return 1 - (1 - spec.final_rate) * share
        case "step":
            return float(spec.decay ** (position.epoch // spec.decay_every))
        case "constant":
            return 1.0


Groups = list[dict[str, Any]]

SGD = unwrapped(torch.optim.SGD)
Adam = unwrapped(torch.optim.Adam)
AdamW = unwrapped(torch.optim.AdamW)


def _sgd(groups: Groups, spec: Spec) -> Optimizer:
    optimizer = SGD(
        groups,
        lr=spec.learning_rate,
        momentum=spec.momentum,
        nesterov=spec.nesterov,
        weight_decay=spec.weight_decay,
        fused=True,
    )
    if spec.momentum:
        # The fused kernel takes buffers for all parameters or for none, and a parameter may get its
        # first gradient late. From zeros the first step is the same as without a buffer.
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _adaptive(spec: Spec) -> dict[str, Any]:
    return {
        "lr": spec.learning_rate,
        "betas": spec.betas,
        "eps": spec.epsilon,
        "weight_decay": spec.weight_decay,
        "fused": True,
    }


OPTIMIZERS: dict[str, Callable[[Groups, Spec], Optimizer]] = {
    "sgd": _sgd,
    "adam": lambda groups, spec: Adam(groups, **_adaptive(spec)),
    "adamw": lambda groups, spec: AdamW(groups, **_adaptive(spec)),
}


def groups_of(
    loaded: LoadedTask, model: nn.Module, trainable: Mapping[str, nn.Parameter]
) -> list[dict[str, Any]]:
    """Return the parameters in groups, each with the names of its parameters."""
    with theirs(loaded.spec, "groups() fails"):
        given = loaded.task.groups(model)
        named = [{"params": trainable.values()}] if given is None else list(given)
    if not all(isinstance(group, Mapping) and "params" in group for group in named):
        accepted = 'groups() must return a list of {"params": parameters, ...}'
        raise loaded.mistake("groups", accepted)
    with theirs(loaded.spec, "groups() fails"):
        groups = [{**group, "params": _listed(group["params"])} for group in named]
    members = [id(one) for group in groups for one in group["params"]]
    names = {id(parameter): name for name, parameter in trainable.items()}
    twice = next((names.get(one, "one") for one in members if members.count(one) > 1), None)
    if twice is not None:
        raise loaded.mistake("groups", f"groups() names the parameter {twice} twice")
    if left := [name for one, name in names.items() if one not in set(members)]:
        raise loaded.mistake("groups", f"groups() leaves out the parameter {listed(left, 1)}")
    return groups


def _listed(params: Any) -> list[Any]:
    """List a group's parameters: torch also takes one alone, or an iterator, which ends once."""
    return [params] if isinstance(params, Tensor) else list(params)


def _by_name(loaded: LoadedTask, groups: list[dict[str, Any]]) -> dict[str, Optimizer]:
    spec = loaded.spec
    with theirs(spec, "optimizer() fails"):
        given = loaded.task.optimizer(groups)
    if given is None:
        with theirs(spec, "groups() fails"):
            given = OPTIMIZERS[spec.optimizer](groups, spec)
        check_options(given, loaded)
    by_name = {"optimizer": given} if isinstance(given, Optimizer) else given
    if not isinstance(by_name, Mapping) or not all(
        isinstance(one, Optimizer) for one in by_name.values()
    ):
        accepted = "optimizer() must return a torch.optim.Optimizer, or several by name"
        raise loaded.mistake("optimizer", accepted)
    if any(callable(getattr(one, "eval", None)) for one in by_name.values()):
        accepted = (
            "its optimizer has eval(), as schedule-free ones do: it evaluates other parameters "
            "than it trains, but a model has one set; average them in a buffer of the model"
        )
        raise loaded.mistake("optimizer", accepted)
    closures = any(isinstance(one, torch.optim.LBFGS) for one in by_name.values())
    if closures and not loaded.has_own_step:
        accepted = "LBFGS calls the loss itself, so the task needs its own step()"
        raise loaded.mistake("optimizer", accepted)
    return dict(by_name)


def check_options(optimizer: Optimizer, loaded: LoadedTask) -> None:
    """Refuse an option of a group that the spec's optimizer would ignore, as torch does."""
    known = {*optimizer.defaults, "params", "param_names", "name"}
    for group in optimizer.param_groups:
        if ignored := sorted(group.keys() - known):
            options = ", ".join(sorted(optimizer.defaults))
            accepted = f"groups() gives {ignored[0]!r}, but the optimizer's options are {options}"
            raise loaded.mistake("groups", accepted)


def _check_all_trained(
    by_name: Mapping[str, Optimizer], model: nn.Module, loaded: LoadedTask
) -> None:
    """Refuse optimizers unless each trainable parameter has exactly one."""
    owned: set[int] = set()
    known = set(map(id, model.parameters()))
    for one in by_name.values():
        for group in one.param_groups:
            for parameter in group["params"]:
                if id(parameter) in owned:
                    accepted = "optimizer() gives a parameter to two optimizers"
                    raise loaded.mistake("optimizer", accepted)
                if id(parameter) not in known:
                    kind = f"{parameter.dtype} {list(parameter.shape)}"
                    accepted = f"its optimizer trains a parameter that model() lacks: {kind}"
                    method = "optimizer" if overrides(loaded.task, "optimizer") else "groups"
                    raise loaded.mistake(method, accepted)
                owned.add(id(parameter))
    trained = trainable(model)
    if left := [name for name, value in trained.items() if id(value) not in owned]:
        raise loaded.mistake("optimizer", f"optimizer() leaves out the parameter {left[0]}")


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are trained, by name."""
    return {name: value for name, value in model.named_parameters() if value.requires_grad}


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
    """

    def __init__(self, loaded: LoadedTask, model: nn.Module) -> None:
        self._loaded = loaded
        self.trainable = trainable(model)
        groups = groups_of(loaded, model, self.trainable)
        self.by_name = _by_name(loaded, groups)
        _check_all_trained(self.by_name, model, loaded)
        self._groups = [group for one in self.by_name.values() for group in one.param_groups]
        for group in self._groups:
            group["lr"] = float(group["lr"])
        self._rates = [group["lr"] for group in self._groups]
        self._state = OptimizerState(self.by_name, model, loaded)
        is_half = loaded.spec.precision == "float16"
        if is_half and loaded.has_own_step:
            accepted = "needs a task without its own step(), which would have to scale the loss"
            raise SpecError("precision", "float16", accepted)
        self._scaler = torch.amp.GradScaler(Device.of(loaded.spec.device).kind, enabled=is_half)
        self._apply(1.0)

    def reach(self, model: nn.Module, position: Position) -> None:
        """Set the learning rates to those of a step of the network."""
        loaded = self._loaded
        task = loaded.task
        options = task.reach(model, position) if isinstance(task, Adapted) else None
        if options is None:
            self.set_rate(rate_factor(loaded, position))
            return
        for field, value in not_default(loaded.spec, SCHEDULE_FIELDS).items():
            raise SpecError(field, value, f"{loaded.spec.task} has its own scheduler")
        for group, own in zip(self._groups, options, strict=True):
            group.update(own)
            group["lr"] = self._state.rates[id(group)] = float(own["lr"]) * _scale(loaded.spec)

    def set_rate(self, factor: float) -> None:
        """Multiply every group's learning rate, as it was in the beginning.

        While the factor stays the same, an optimizer that changes the rates itself keeps its own.
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

    def scaled(self, loss: Tensor) -> Tensor:
        """Return a loss times the scale of float16, or as it is in other precisions."""
        return self._scaler.scale(loss)

    def unscale(self) -> None:
        """Divide gradients by the scale of their loss."""
        for one in self.by_name.values():
            self._scaler.unscale_(one)

    def step(self) -> None:
        """Let every optimizer take its step, unless gradients of float16 have overflowed."""
        for one in self.by_name.values():
            try:
                self._scaler.step(one)
            except (RuntimeError, NotImplementedError) as error:
                self._check_sparse(error)
                raise
        self._scaler.update()

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

    def arrays(self, *, copy: bool = True) -> Arrays:
        """Return the state, see `OptimizerState.arrays`, and that of float16's scale."""
        arrays = self._state.arrays(copy=copy)
        if state := self._scaler.state_dict():  # only of float16
            arrays[_SCALER] = np.array([state["scale"], state["_growth_tracker"]], np.float64)
        return arrays

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state by a result of `arrays`."""
        self._apply(1.0)
        if self._scaler.is_enabled() and _SCALER in arrays:
            scale, tracker = arrays[_SCALER].tolist()
            state = {**self._scaler.state_dict(), "scale": scale, "_growth_tracker": int(tracker)}
            self._scaler.load_state_dict(state)
        self._state.load({name: one for name, one in arrays.items() if name != _SCALER})


def without_effect(loaded: LoadedTask, model: nn.Module) -> tuple[str, ...]:
    """Say which fields were given although the task's own optimizer decides: a line, or none.

    We do not refuse them: an optimizer() may leave the choice to the spec, and one spec may be of
    several tasks.
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
