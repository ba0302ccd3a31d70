"""Networks by name: Downpour's, torchvision's, and factories on the allow-list.

A network's initial parameters follow from the spec's seed alone, so every process can build the
same one. `NETWORKS` lists Downpour's own and what `model_options` they take.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from downpour.base.errors import SpecError, did_you_mean
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning.allowlist import check_factory, load_factory
from downpour.learning.models.building import call_builder, check_fit, check_travels, outputs_needed
from downpour.learning.models.networks import (
    ConvLstm,
    digits_cnn,
    known_networks,
    mlp,
    mnist_cnn,
    vision_builder,
    xray_cnn,
)

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "digits-cnn": digits_cnn,
    "mnist-cnn": mnist_cnn,
    "mlp": mlp,
    "xray-cnn": xray_cnn,
    "conv-lstm": ConvLstm,
}


def build(spec: Spec, facts: DatasetFacts) -> nn.Module:
    """Build the spec's network for a dataset, on the CPU, seeded by the spec."""
    check_model(spec)
    if ":" in spec.model:
        builder = load_factory("model", spec.model)
    else:
        builder = NETWORKS.get(spec.model) or vision_builder(spec.model)
    return call_builder(builder, spec, facts)


def check_model(spec: Spec) -> None:
    """Refuse a network that is unknown or not allowed; imports torchvision for other names only."""
    if ":" in spec.model:
        check_factory("model", spec.model)
    elif spec.model not in NETWORKS:
        vision = known_networks()
        if spec.model not in vision:
            own = ", ".join(NETWORKS)
            meant = did_you_mean(spec.model, [*NETWORKS, *vision])
            others = "names in torchvision.models" if vision else "(torchvision does not import)"
            raise SpecError(
                "model", spec.model, f"known are {own}, package.module:factory and {others}{meant}"
            )
