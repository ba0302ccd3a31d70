"""The groups of parameters that an optimizer trains, with the names of their parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import overrides, theirs
from downpour.learning.training.plain_optimizers import OPTIMIZERS


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
