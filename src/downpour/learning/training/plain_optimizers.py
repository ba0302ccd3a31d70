"""The optimizers that a spec names, with torch's arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from downpour.core.spec import Spec
from downpour.learning.training.plain import unwrapped

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
