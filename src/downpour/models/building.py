"""Building a spec's network, with initial parameters that follow from its seed alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn

from downpour.errors import SpecError
from downpour.spec import Spec
from downpour.values import DatasetFacts

_EXCHANGED = frozenset({torch.float32, torch.float64, torch.float16, torch.int64, torch.int32})

# Torch's generators are the process's, and preparations may run beside each other.
_SEEDING = Lock()


def outputs_needed(spec: Spec, facts: DatasetFacts) -> int:
    """Return how many numbers the network must put out for an example.

    One for each class with cross-entropy; with binary cross-entropy one for two classes, and one
    for each target where the labels are zeros and ones.

    Raises:
        SpecError: the loss does not fit the labels.
    """
    if spec.loss == "cross_entropy":
        if not facts.classes:
            raise SpecError("loss", spec.loss, "labels of zeros and ones need binary_cross_entropy")
        return facts.classes
    if facts.classes > 2:
        raise SpecError("loss", spec.loss, f"{facts.classes} classes need cross_entropy")
    return 1 if facts.classes else facts.targets_per_sample


def call_builder(builder: Callable[..., Any], spec: Spec, facts: DatasetFacts) -> nn.Module:
    """Call a builder with what it asks for by name, and the spec's `model_options`.

    Offered are `num_classes` (the outputs needed), `sample_shape` and `in_channels`. Torch's
    generators are as before afterwards.

    Raises:
        SpecError: the options or the data do not fit the builder, or it makes no network.
    """
    offered: dict[str, Any] = {
        "num_classes": outputs_needed(spec, facts),
        "sample_shape": facts.sample_shape,
        "in_channels": facts.sample_shape[0],
    }
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        try:
            wanted = inspect.signature(builder).parameters
            _refuse_unknown_options(wanted, spec, offered)
            given = {name: offered[name] for name in offered if name in wanted}
            model = builder(**{**given, **spec.model_options})
        except (TypeError, ValueError, RuntimeError, AssertionError) as error:
            raise SpecError("model_options", spec.model_options, _first_line(error)) from None
    if not isinstance(model, nn.Module):
        raise SpecError("model", spec.model, "its factory must return a torch.nn.Module")
    return model


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


def check_fit(model: nn.Module, spec: Spec, facts: DatasetFacts) -> None:
    """Try the network on two examples of zeros; its parameters and buffers stay as they are.

    Raises:
        SpecError: it does not take the examples, or its output does not fit the labels.
    """
    needed = outputs_needed(spec, facts)
    for name, value in model.state_dict().items():
        if value.dtype not in _EXCHANGED:
            raise SpecError("model", spec.model, f"{name} is {value.dtype}; float32 is needed")
    output = _tried(model, spec, facts)
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if shape != (2, needed) and not (needed == 1 and shape == (2,) and facts.classes):
        accepted = f"must put out (examples, {needed}) numbers, and puts out {shape} for 2 examples"
        raise SpecError("model", spec.model, accepted)


def _tried(model: nn.Module, spec: Spec, facts: DatasetFacts) -> object:
    first = next((value for value in model.parameters()), torch.zeros(1))
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output: object = model(torch.zeros(2, *facts.sample_shape, device=first.device))
    except (RuntimeError, ValueError, TypeError, AssertionError, IndexError) as error:
        accepted = f"does not take examples of shape {facts.sample_shape}: {_first_line(error)}"
        raise SpecError("model", spec.model, accepted) from None
    finally:
        model.train(training)
    return output


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
