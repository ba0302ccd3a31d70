"""Networks by name: Downpour's, torchvision's, and factories on the allow-list.

A network's initial parameters follow from the spec's seed alone, so every process can build the
same one. `NETWORKS` lists Downpour's own and what `model_options` they take.

`xray_cnn` and `ConvLstm` are ConvLSTM-D-Accel's. Of the paper's CNN (its Table 2) we know three
things:

- An image leaves 512 numbers after three poolings of 2 x 2. Only images of 50 x 50 do.
- It has dropout.
- It penalizes weights (L2: the spec's `weight_decay`).

Of its CNN with an LSTM we know the order of the parts: convolution, flattening to a sequence, LSTM,
dense layer. All else here, sizes of kernels and numbers of channels and units, is our reading.

If ReLU and max-pooling follow a convolution, the pooling comes first. The two commute, values and
gradients alike, and ReLU then has a quarter of the work.
"""

from __future__ import annotations

import inspect
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from downpour.base.errors import DownpourError, OutOfMemory, SpecError, did_you_mean
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.learning import accelerators, allowlist, blame, numerics


def known_networks() -> list[str]:
    """Return the names of the classification networks; empty where torchvision does not import."""
    try:
        from torchvision import models
    except (ImportError, RuntimeError):  # the latter if it was built for another torch
        return []
    return list(models.list_models(module=models))


def vision_builder(name: str) -> Callable[..., nn.Module]:
    """Return the builder of a torchvision network that is known.

    They take three channels; an example with one is shown to them three times, which leaves their
    parameters as torchvision names and shapes them.
    """
    from torchvision import models

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


_LANES = 4
_LEVELS = 1 << 16


class Dropout(nn.Dropout):
    """`torch.nn.Dropout` with its probability rounded to a multiple of 1/65536.

    On a CPU torch draws one word of the Mersenne Twister for every element. Here each 64-bit word
    decides four. That makes dropout three times and a whole step of a small network about a tenth
    faster. The generator is torch's own, so a saved generator state still repeats the same masks.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in torch.nn.Dropout
        """Drop elements with probability `p` and scale the others by 1/(1 - p), in training."""
        if not self.training or self.p == 0:
            return input
        if input.device.type != "cpu" or self.p == 1:
            return super().forward(input)
        # Four 16-bit numbers of one random word are compared with a threshold. The numbers have a
        # sign, so we move the threshold by half of the range. Scaling by the rounded share keeps
        # the mean.
        dropped_levels = round(self.p * _LEVELS)
        words = torch.empty(-(-input.numel() // _LANES), dtype=torch.int64)
        lanes = words.random_(-(1 << 63), None).view(torch.int16)[: input.numel()]
        kept = (lanes >= dropped_levels - _LEVELS // 2).view(input.shape)
        return input * kept.to(input.dtype).mul_(_LEVELS / (_LEVELS - dropped_levels))


def digits_cnn(sample_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two small convolutions and the output, for small images; 9,930 parameters on digits.

    Learns digits in a few rounds over four shards with SGD, learning rate 0.1, momentum 0.9 and
    batches of 16; a hidden dense layer made it slower to learn.
    """
    channels, height, width = image("digits-cnn", sample_shape, smallest=4)
    # Names are given, because they become the names of tensors in model files.
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 16, 3, padding=1),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(16, 32, 3, padding=1),
            pool=nn.MaxPool2d(2),
            relu2=nn.ReLU(inplace=True),
            flatten=nn.Flatten(),
            dense=nn.Linear(32 * (height // 2) * (width // 2), num_classes),
        )
    )


def mnist_cnn(
    sample_shape: tuple[int, ...], num_classes: int, *, dropout: float = 0.25, dropout2: float = 0.5
) -> nn.Module:
    """The network of the ECE751 report's Table I: 1,199,882 parameters on MNIST.

    Convolutions `3 x 3` with 32 and 64 channels, max-pooling by 2, and `dropout`. Then a dense
    layer of 128, `dropout2`, and the output.
    """
    channels, height, width = image("mnist-cnn", sample_shape, smallest=6)
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 3),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(32, 64, 3),
            pool=nn.MaxPool2d(2),
            relu2=nn.ReLU(inplace=True),
            dropout1=Dropout(probability("dropout", dropout)),
            flatten=nn.Flatten(),
            dense1=nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            relu3=nn.ReLU(inplace=True),
            dropout2=Dropout(probability("dropout2", dropout2)),
            dense2=nn.Linear(128, num_classes),
        )
    )


def mlp(
    sample_shape: tuple[int, ...], num_classes: int, *, hidden: Sequence[int] = (64, 64)
) -> nn.Module:
    """Dense layers with ReLU between them, of the widths in `hidden`; for examples of any shape."""
    size = math.prod(sample_shape)
    layers: list[nn.Module] = [nn.Flatten()]
    for units in widths("hidden", hidden):
        layers += [nn.Linear(size, units), nn.ReLU(inplace=True)]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, num_classes))


_KERNEL = 5
_CHANNELS = 32, 64, 128
_SMALLEST = 36


def xray_cnn(
    sample_shape: tuple[int, ...], num_classes: int, *, hidden: int = 512, dropout: float = 0.5
) -> nn.Module:
    """Three convolutions with pooling, a dense layer and the output; 520,706 parameters at 50 x 50.

    The kernels of 5 x 5 without padding and the channels (`32, 64, 128`) are those of a widely
    taught network. It has the 512 numbers: convolutions and poolings shrink sides as
    `50, 46, 23, 19, 9, 5, 2`, and `2 * 2 * 128 = 512`. The dense layer of `hidden` units and
    `dropout` after it are our reading.
    """
    channels, height, side = image("xray-cnn", sample_shape, smallest=_SMALLEST)
    for _ in _CHANNELS:
        height, side = ((length - _KERNEL + 1) // 2 for length in (height, side))
    units = width("hidden", hidden)
    return nn.Sequential(
        OrderedDict(
            **_convolutions(channels, _CHANNELS, _KERNEL),
            flatten=nn.Flatten(),
            dense1=nn.Linear(_CHANNELS[-1] * height * side, units),
            relu=nn.ReLU(inplace=True),
            dropout=Dropout(probability("dropout", dropout)),
            dense2=nn.Linear(units, num_classes),
        )
    )


def _convolutions(
    before: int, channels: Sequence[int], kernel: int, padding: int = 0
) -> OrderedDict[str, nn.Module]:
    """Return convolutions with a pooling by 2 after each; the first gets `before` channels."""
    layers = OrderedDict[str, nn.Module]()
    for number, count in enumerate(channels, start=1):
        layers[f"conv{number}"] = nn.Conv2d(before, count, kernel, padding=padding)
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        layers[f"relu{number}"] = nn.ReLU(inplace=True)
        before = count
    return layers


class ConvLstm(nn.Module):
    """Convolutions with pooling, whose maps an LSTM reads row by row; our reading in every number.

    Convolutions of 3 x 3, padded, with `channels`, each pooled by 2; an LSTM of `hidden` units;
    `dropout`, and the output. 478,850 parameters at 50 x 50.

    The maps [b, c, h, w] become a sequence of h steps of c * w numbers. The LSTM reads it from the
    top of the image down; the dense layer sees what it knows at the end.
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        num_classes: int,
        *,
        channels: Sequence[int] = (32, 64),
        hidden: int = 128,
        dropout: float = 0.5,
    ) -> None:
        super().__init__()
        counts, units = widths("channels", channels), width("hidden", hidden)
        share = probability("dropout", dropout)
        before, _, side = image("conv-lstm", sample_shape, smallest=2 ** len(counts))
        self.maps = nn.Sequential(_convolutions(before, counts, kernel=3, padding=1))
        last = [before, *counts][-1]
        self.lstm = nn.LSTM(last * (side >> len(counts)), units, batch_first=True)
        self.dropout = Dropout(share)
        self.dense = nn.Linear(units, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs [b, num_classes] for images [b, c, h, w]."""
        rows = self.maps(images).transpose(1, 2).flatten(2)
        known, _ = self.lstm(rows)
        output: Tensor = self.dense(self.dropout(known[:, -1]))
        return output


def image(model: str, sample_shape: tuple[int, ...], *, smallest: int) -> tuple[int, int, int]:
    """Return channels, height and width of images of at least `smallest` pixels a side."""
    if len(sample_shape) != 3 or min(sample_shape[1:]) < smallest:
        accepted = f"needs images of at least {smallest} x {smallest} pixels"
        raise SpecError("model", model, f"{accepted}, and the examples' shape is {sample_shape}")
    return sample_shape


def probability(name: str, value: float) -> float:
    """Return an option that is the share of elements to drop."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise SpecError(f"model_options.{name}", value, "a number of at least 0 and below 1")
    return float(value)


def width(name: str, value: int) -> int:
    """Return an option that is a number of units."""
    if not _counts(value):
        raise SpecError(f"model_options.{name}", value, "a whole number of at least 1")
    return value


def widths(name: str, value: Sequence[int] | int) -> list[int]:
    """Return an option that is a list of numbers of units; a single number is a list of one."""
    listed = [value] if isinstance(value, int) else list(value)
    if not all(map(_counts, listed)):
        raise SpecError(f"model_options.{name}", value, "a list of widths, each at least 1")
    return listed


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


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
        builder = allowlist.load_factory("model", spec.model)
    else:
        builder = NETWORKS.get(spec.model) or vision_builder(spec.model)
    return call_builder(builder, spec, facts)


def check_model(spec: Spec) -> None:
    """Refuse a network that is unknown or not allowed; imports torchvision for other names only."""
    if ":" in spec.model:
        allowlist.check_factory("model", spec.model)
    elif spec.model not in NETWORKS:
        vision = known_networks()
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
        except blame.users_errors() as error:
            if blame.is_lack_of_memory(error):
                raise OutOfMemory(blame.describe_error(error)) from error
            raise _blamed(error, spec) from error
        if not isinstance(model, nn.Module):
            raise SpecError("model", spec.model, "its factory must return a torch.nn.Module")
        if any(map(is_lazy, model.state_dict().values())):
            _tried(model, spec, facts)
    return model


def _blamed(error: BaseException, spec: Spec) -> SpecError:
    """Return an error that names the options if it may be due to a value, else the network."""
    if spec.model_options and isinstance(error, TypeError | ValueError | AssertionError):
        return SpecError("model_options", spec.model_options, blame.describe_error(error))
    return SpecError("model", spec.model, f"cannot be built: {blame.describe_error(error)}")


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
        if spec.task is not None:
            accepted = f"{name} has no size: call the network once in model(), as with zeros"
    elif value.dtype in _EXCHANGED and accelerators.is_plain(value):
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
    except blame.users_errors() as error:
        accepted = (
            f"does not accept examples of shape {facts.sample_shape}: {blame.describe_error(error)}"
        )
        raise SpecError("model", spec.model, accepted) from error
    finally:
        model.train(training)
    return output
