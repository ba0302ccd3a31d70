"""The optimizers of the local loop, and their state as named arrays.

Those of a spec are torch's fused ones: one call for all parameters, and elementwise, so their
result does not depend on how the work is cut. A state belongs to a shard, not to a worker, so it
must survive a file: every array is named `parameter/what`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from downpour.base.errors import FileCorrupt
from downpour.core.spec import Spec
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import not_default, overrides, theirs
from downpour.learning.training.parameters import Arrays, array_of, copy_into
from downpour.learning.training.plain import unwrapped

Groups = list[dict[str, Any]]

SGD = unwrapped(torch.optim.SGD)
Adam = unwrapped(torch.optim.Adam)
AdamW = unwrapped(torch.optim.AdamW)

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
        # first gradient late. From zeros the first step is what it is from nothing.
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def _adam(groups: Groups, spec: Spec) -> Optimizer:
    return Adam(groups, **_adaptive(spec))


def _adamw(groups: Groups, spec: Spec) -> Optimizer:
    return AdamW(groups, **_adaptive(spec))


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
    "adam": _adam,
    "adamw": _adamw,
}


class Optimizers:
    """The optimizers of one network, by name, and what its parameters are trained with.

    A task's own may be several; the spec's is called "optimizer".

    Args:
        loaded: the task, which may choose groups of parameters and optimizers of its own.
        model: the network.

    Raises:
        SpecError: the task's groups leave a trainable parameter out or name one twice, or what it
            returns are no optimizers of them.
    """

    def __init__(self, loaded: LoadedTask, model: nn.Module) -> None:
        self._loaded = loaded
        self._trainable = _trainable(model)
        groups = _groups(loaded, model, self._trainable)
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
                        "a scheduler sets its learning rate, and would not go on elsewhere: the "
                        "spec's schedule or rate(done) takes its place"
                    )
                    raise self._loaded.mistake("optimizer", accepted)
                group["lr"] = rate * factor

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for one in self.by_name.values():
            if type(one).zero_grad is not Optimizer.zero_grad:
                one.zero_grad(set_to_none=True)
        # Not by torch's own method, whose call for the profiler took 2 % of a step of the digits.
        for parameter in self._trainable.values():
            parameter.grad = None

    def step(self) -> None:
        """Let every optimizer take its step."""
        for one in self.by_name.values():
            one.step()

    def arrays(self) -> Arrays:
        """Return copies of the state, each named `parameter/what`; empty where there is none.

        Raises:
            SpecError: a part of it is no tensor, so it cannot go on elsewhere.
        """
        return {
            f"{name}/{what}": array_of(self._tensor(name, what, value))
            for name, parameter in self._trainable.items()
            for what, value in self._owner[name].state.get(parameter, {}).items()
            if value is not None
        }

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state by what `arrays` returned.

        Raises:
            FileCorrupt: a name or a shape is not of this network.
        """
        for one in self.by_name.values():
            one.state.clear()
        for full_name, array in arrays.items():
            name, _, what = full_name.rpartition("/")
            parameter = self._trainable.get(name)
            if parameter is None:
                raise FileCorrupt("optimizer state", f"{full_name} is of another network")
            owner = self._owner[name]
            owner.state[parameter][what] = _restored(owner, parameter, what, array, full_name)

    def _tensor(self, name: str, what: str, value: object) -> Tensor:
        if isinstance(value, Tensor):
            return value
        accepted = (
            f"its optimizer keeps {what} of {name}, which is {type(value).__name__}: only tensors "
            "can go on elsewhere"
        )
        raise self._loaded.mistake("optimizer", accepted)


def without_effect(loaded: LoadedTask, model: nn.Module) -> tuple[str, ...]:
    """Say which fields were given although the task's own optimizer decides: a line, or none.

    They are not refused: an optimizer() may leave the choice to the spec, and one spec may be of
    several tasks.

    Raises:
        SpecError: the task fails.
    """
    given = not_default(loaded.spec, _OF_THE_OPTIMIZER)
    if not given or not overrides(loaded.task, "optimizer"):
        return ()
    groups = _groups(loaded, model, _trainable(model))
    with theirs(loaded.spec, "optimizer() fails"):
        if loaded.task.optimizer(groups) is None:
            return ()
    fields = " and ".join(f"{field} = {value!r}" for field, value in given.items())
    have = "have" if len(given) > 1 else "has"
    return (f"{fields} {have} no effect: {loaded.spec.task} has an optimizer() of its own",)


def _restored(
    owner: Optimizer, parameter: nn.Parameter, what: str, array: NDArray[Any], full_name: str
) -> Tensor:
    """Return a part of an optimizer's state as a tensor.

    Raises:
        FileCorrupt: it does not have the shape that the spec's optimizers give it.
    """
    if what in _OF_ITS_SHAPE or array.shape == tuple(parameter.shape):
        # Fused kernels walk through memory: a buffer must lie in it as its parameter does.
        value = torch.empty_like(parameter, requires_grad=False)
        copy_into(value, array, full_name)
        return value
    # Torch's plain optimizers count steps on the CPU, wherever the parameter is.
    counts_there = what != "step" or owner.defaults.get("fused") or owner.defaults.get("capturable")
    if what == "step" and array.shape:
        raise FileCorrupt("optimizer state", f"{full_name} should be one number")
    return torch.tensor(array).to(parameter.device if counts_there else "cpu")


def _groups(
    loaded: LoadedTask, model: nn.Module, trainable: Mapping[str, nn.Parameter]
) -> list[dict[str, Any]]:
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
        more = f" and {len(left) - 1} more" if len(left) > 1 else ""
        raise loaded.mistake("groups", f"groups() leaves out the parameter {left[0]}{more}")
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
        _check_options(given, loaded)
    by_name = {"optimizer": given} if isinstance(given, Optimizer) else given
    if not isinstance(by_name, Mapping) or not all(
        isinstance(one, Optimizer) for one in by_name.values()
    ):
        accepted = "optimizer() must return a torch.optim.Optimizer, or several by name"
        raise loaded.mistake("optimizer", accepted)
    closures = any(isinstance(one, torch.optim.LBFGS) for one in by_name.values())
    if closures and not loaded.has_own_step:
        accepted = "LBFGS calls the loss by itself, so the task needs a step() of its own"
        raise loaded.mistake("optimizer", accepted)
    return dict(by_name)


def _check_options(optimizer: Optimizer, loaded: LoadedTask) -> None:
    """Refuse an option of a group that the spec's optimizer would ignore, as torch does."""
    known = {*optimizer.defaults, "params", "param_names", "name"}
    for group in optimizer.param_groups:
        if ignored := sorted(group.keys() - known):
            options = ", ".join(sorted(optimizer.defaults))
            accepted = f"groups() gives {ignored[0]!r}, and the optimizer's options are {options}"
            raise loaded.mistake("groups", accepted)


def _owners(
    by_name: Mapping[str, Optimizer], model: nn.Module, loaded: LoadedTask
) -> dict[str, Optimizer]:
    """Return the optimizer of each trainable parameter."""
    owner: dict[int, Optimizer] = {}
    known = set(map(id, model.parameters()))
    for one in by_name.values():
        for group in one.param_groups:
            for parameter in group["params"]:
                if id(parameter) in owner:
                    accepted = "optimizer() gives a parameter to two optimizers"
                    raise loaded.mistake("optimizer", accepted)
                if id(parameter) not in known:
                    kind = f"{parameter.dtype} {list(parameter.shape)}"
                    accepted = f"its optimizer trains a parameter that model() has not: {kind}"
                    method = "optimizer" if overrides(loaded.task, "optimizer") else "groups"
                    raise loaded.mistake(method, accepted)
                owner[id(parameter)] = one
    trainable = _trainable(model)
    if left := [name for name, value in trainable.items() if id(value) not in owner]:
        raise loaded.mistake("optimizer", f"optimizer() leaves out the parameter {left[0]}")
    return {name: owner[id(value)] for name, value in trainable.items()}


def _trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: value for name, value in model.named_parameters() if value.requires_grad}
