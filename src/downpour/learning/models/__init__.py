"""Networks by name: Downpour's, torchvision's, and factories on the allow-list.

A network's initial parameters follow from the spec's seed alone, so every process can build the
same one. `NETWORKS` lists Downpour's own and what `model_options` they take.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from downpour.base.errors import DownpourError, OutOfMemory, SpecError, did_you_mean
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning import numerics
from downpour.learning.accelerators import is_plain
from downpour.learning.allowlist import check_factory, load_factory
from downpour.learning.blame import describe_error, is_lack_of_memory, users_errors
from downpour.learning.models import networks

NETWORKS: dict[str, Callable[..., nn.Module]] = {
    "digits-cnn": networks.digits_cnn,
    "mnist-cnn": networks.mnist_cnn,
    "mlp": networks.mlp,
    "xray-cnn": networks.xray_cnn,
    "conv-lstm": networks.ConvLstm,
}


def build(spec: Spec, facts: DatasetFacts) -> nn.Module:
    """Build the spec's network for a dataset, on the CPU, seeded by the spec."""
    check_model(spec)
    if ":" in spec.model:
        builder = load_factory("model", spec.model)
    else:
        builder = NETWORKS.get(spec.model) or networks.vision_builder(spec.model)
    return call_builder(builder, spec, facts)


def check_model(spec: Spec) -> None:
    """Refuse a network that is unknown or not allowed; imports torchvision for other names only."""
    if ":" in spec.model:
        check_factory("model", spec.model)
    elif spec.model not in NETWORKS:
        vision = networks.known_networks()
        if spec.model not in vision:
            own = ", ".join(NETWORKS)
            meant = did_you_mean(spec.model, [*NETWORKS, *vision])
            others = "names in torchvision.models" if vision else "(torchvision does not import)"
            raise SpecError(
                "model", spec.model, f"known are {own}, package.module:factory and {others}{meant}"
            )


# The types that parameter files have. bfloat16 is none of them, because numpy has no such type.
_EXCHANGED = frozenset(
    {torch.float32, torch.float64, torch.float16}
    | {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}
)


def outputs_needed(spec: Spec, facts: DatasetFacts) -> int:
    """Return how many numbers the network must put out for an example.

    One for each class with cross-entropy; with binary cross-entropy one for two classes, and one
    for each target where the labels are zeros and ones.
    """
    if spec.loss == "cross_entropy":
        if not facts.classes:
            raise SpecError("loss", spec.loss, "labels of zeros and ones need binary_cross_entropy")
        return facts.classes
    if facts.classes > 2:
        raise SpecError("loss", spec.loss, f"{facts.classes} classes need cross_entropy")
    return 1 if facts.classes else facts.targets_per_sample


def call_builder(builder: Callable[..., Any], spec: Spec, facts: DatasetFacts) -> nn.Module:
    """Call a builder with the values that it asks for by name, and the spec's `model_options`.

    Offered are `num_classes` (the outputs needed), `sample_shape` and `in_channels`. All global
    generators are seeded for the call, and restored after it. Lazy layers get their sizes.
    """
    offered: dict[str, Any] = {
        "num_classes": outputs_needed(spec, facts),
        "sample_shape": facts.sample_shape,
        "in_channels": facts.sample_shape[0],
    }
    signature = inspect.signature(builder)
    _refuse_unknown_options(signature.parameters, spec, offered)
    given = {name: offered[name] for name in offered if name in signature.parameters}
    arguments = {**given, **spec.model_options}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise SpecError("model_options", spec.model_options, str(error)) from None
    # The lazy layers' sizes are fixed within the seeded block too: they draw their parameters then.
    with numerics.seeded(spec.seed):
        try:
            model = builder(**arguments)
        except (DownpourError, MemoryError):
            raise
        except users_errors() as error:
            if is_lack_of_memory(error):
                raise OutOfMemory(describe_error(error)) from error
            raise _blamed(error, spec) from error
        if not isinstance(model, nn.Module):
            raise SpecError("model", spec.model, "its factory must return a torch.nn.Module")
        if any(map(is_lazy, model.state_dict().values())):
            _tried(model, spec, facts)
    return model


def _blamed(error: BaseException, spec: Spec) -> SpecError:
    """Return an error that names the options if it may be due to a value, else the network."""
    if spec.model_options and isinstance(error, TypeError | ValueError | AssertionError):
        return SpecError("model_options", spec.model_options, describe_error(error))
    return SpecError("model", spec.model, f"cannot be built: {describe_error(error)}")


def _refuse_unknown_options(
    wanted: Mapping[str, inspect.Parameter], spec: Spec, offered: dict[str, Any]
) -> None:
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in wanted.values()):
        return
    unknown = spec.model_options.keys() - wanted.keys()
    if unknown:
        taken = ", ".join(name for name in wanted if name not in offered) or "none"
        accepted = f"options of {spec.model} are: {taken}"
        raise SpecError(f"model_options.{min(unknown)}", spec.model_options[min(unknown)], accepted)


def check_travels(model: nn.Module, spec: Spec) -> None:
    """Check that a network has something to train, and nothing that parameter files cannot hold."""
    for name, value in model.state_dict().items():
        _check_kept(name, value, spec)
    if not any(value.requires_grad for value in model.parameters()):
        accepted = "has nothing to train: it needs a parameter that requires a gradient"
        raise SpecError(*spec.trained_code, accepted)


def check_fit(model: nn.Module, spec: Spec, facts: DatasetFacts) -> None:
    """Try the network on two examples of zeros; its parameters and buffers stay as they are."""
    needed = outputs_needed(spec, facts)
    check_travels(model, spec)
    output = _tried(model, spec, facts)
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if shape != (2, needed) and not (needed == 1 and shape == (2,) and facts.classes):
        accepted = f"must output (examples, {needed}) numbers, but outputs {shape} for 2 examples"
        raise SpecError("model", spec.model, accepted)


def _check_kept(name: str, value: object, spec: Spec) -> None:
    if name == "__metadata__":
        accepted = "a parameter or buffer must not be called __metadata__, which files reserve"
    elif not isinstance(value, Tensor):
        accepted = f"keeps {name}, a {type(value).__name__}; Downpour only sends tensors"
    elif is_lazy(value):
        accepted = f"{name} still has no size after the network has seen examples"
    elif value.dtype in _EXCHANGED and is_plain(value):
        return
    else:
        accepted = f"{name} {_reason(value)}"
        if not isinstance(value, nn.Parameter):
            accepted += "; register it with persistent=False if it never changes"
    raise SpecError(*spec.trained_code, accepted)


def _reason(value: Tensor) -> str:
    """Say why parameter files cannot hold a tensor."""
    if value.layout is not torch.strided or value.is_nested:
        kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
        return f"is {kind}; Downpour only sends dense tensors"
    if value.is_meta:
        return "has no numbers, because it is on the meta device"
    if value.dtype not in _EXCHANGED:
        return f"is {value.dtype}, but must be float32"
    if value.is_neg():
        return "has a sign that torch has yet to apply: use its resolve_neg()"
    return f"is a {type(value).__name__}, whose memory cannot be sent"


def _tried(model: nn.Module, spec: Spec, facts: DatasetFacts) -> object:
    first = next((value for value in model.parameters()), torch.zeros(1))
    training = model.training
    model.eval()  # so that batch normalization does not take the zeros into its statistics
    try:
        with torch.no_grad():
            output: object = model(torch.zeros(2, *facts.sample_shape, device=first.device))
    except (DownpourError, MemoryError):
        raise
    except users_errors() as error:
        accepted = (
            f"does not accept examples of shape {facts.sample_shape}: {describe_error(error)}"
        )
        raise SpecError("model", spec.model, accepted) from error
    finally:
        model.train(training)
    return output
