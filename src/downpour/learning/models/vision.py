"""The classification networks of torchvision.models, by name and without pretrained weights.

torchvision is imported only when one of them is asked for. Its networks take three channels; an
example with one is shown to them three times, which leaves their parameters as torchvision
names and shapes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from downpour.base.errors import SpecError
from downpour.host.extras import is_installed


def known_networks() -> list[str]:
    """Return the names of the classification networks; empty where torchvision does not import."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError):  # the latter if it was built for another torch
        return []
    return list(models.list_models(module=models))


def vision_builder(name: str) -> Callable[..., nn.Module]:
    """Return the builder of a torchvision network.

    Raises:
        SpecError: torchvision does not import.
    """
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        if not is_installed("torchvision"):
            reason = "needs torchvision; install downpour-sgd[vision]"
            raise SpecError("model", name, reason) from None
        why = str(error).splitlines()[0]
        raise SpecError("model", name, f"needs torchvision, which does not import: {why}") from None
    builder = models.get_model_builder(name)

    def build(sample_shape: tuple[int, ...], num_classes: int, **options: Any) -> nn.Module:
        network: nn.Module = builder(weights=None, num_classes=num_classes, **options)
        # `expand` copies nothing: the three channels are views of the one.
        if len(sample_shape) == 3 and sample_shape[0] == 1:
            network.register_forward_pre_hook(_thrice)
        return network

    return build


def _thrice(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    images, *others = inputs
    return (images.expand(-1, 3, -1, -1), *others)
