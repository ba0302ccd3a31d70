"""The networks that Downpour knows by name.

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

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from downpour.base.errors import SpecError


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
    channels, height, width = image(sample_shape, smallest=4)
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
    channels, height, width = image(sample_shape, smallest=6)
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
    channels, height, side = image(sample_shape, smallest=_SMALLEST)
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
        before, _, side = image(sample_shape, smallest=2 ** len(counts))
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


def image(sample_shape: tuple[int, ...], *, smallest: int) -> tuple[int, int, int]:
    """Return channels, height and width of images of at least `smallest` pixels a side."""
    if len(sample_shape) != 3 or min(sample_shape[1:]) < smallest:
        accepted = f"this network needs images of at least {smallest} x {smallest} pixels"
        raise SpecError("model", f"examples of shape {sample_shape}", accepted)
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
