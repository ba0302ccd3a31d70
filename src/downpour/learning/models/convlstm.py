"""The two networks of ConvLSTM-D-Accel, as far as the paper describes them, for chest X-rays.

Of the paper's CNN (its Table 2) we know three things:

- An image leaves 512 numbers after three poolings of 2 x 2. Only images of 50 x 50 do.
- It has dropout.
- It penalizes weights (L2: the spec's `weight_decay`).

Of its CNN with an LSTM we know the order of the parts: convolution, flattening to a sequence, LSTM,
dense layer. All else here, sizes of kernels and numbers of channels and units, is our reading. As
in `networks.py`, pooling comes before ReLU.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import Tensor, nn

from downpour.learning.models.dropout import Dropout
from downpour.learning.models.options import image, probability, width, widths

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
    layers: list[tuple[str, nn.Module]] = []
    for number, count in enumerate(_CHANNELS, start=1):
        layers += [
            (f"conv{number}", nn.Conv2d(channels, count, _KERNEL)),
            (f"pool{number}", nn.MaxPool2d(2)),
            (f"relu{number}", nn.ReLU(inplace=True)),
        ]
        channels, height, side = count, _pooled(height), _pooled(side)
    units = width("hidden", hidden)
    layers += [
        ("flatten", nn.Flatten()),
        ("dense1", nn.Linear(channels * height * side, units)),
        ("relu", nn.ReLU(inplace=True)),
        ("dropout", Dropout(probability("dropout", dropout))),
        ("dense2", nn.Linear(units, num_classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


def conv_lstm(
    sample_shape: tuple[int, ...],
    num_classes: int,
    *,
    channels: Sequence[int] = (32, 64),
    hidden: int = 128,
    dropout: float = 0.5,
) -> nn.Module:
    """Convolutions with pooling, whose maps an LSTM reads row by row; our reading in every number.

    Convolutions of 3 x 3, padded, with `channels`, each pooled by 2; an LSTM of `hidden` units;
    `dropout`, and the output. 478,850 parameters at 50 x 50.
    """
    return ConvLstm(
        sample_shape,
        num_classes,
        widths("channels", channels),
        width("hidden", hidden),
        probability("dropout", dropout),
    )


class ConvLstm(nn.Module):
    """Convolutions, whose maps [b, c, h, w] become a sequence of h steps of c * w numbers.

    The LSTM reads it from the top of the image down; the dense layer sees what it knows at the end.

    Raises:
        SpecError: the examples are no images, or too small to be pooled so often.
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        num_classes: int,
        channels: Sequence[int],
        hidden: int,
        dropout: float,
    ) -> None:
        super().__init__()
        before, _, side = image(sample_shape, smallest=2 ** len(channels))
        layers: list[tuple[str, nn.Module]] = []
        for number, count in enumerate(channels, start=1):
            layers += [
                (f"conv{number}", nn.Conv2d(before, count, 3, padding=1)),
                (f"pool{number}", nn.MaxPool2d(2)),
                (f"relu{number}", nn.ReLU(inplace=True)),
            ]
            before, side = count, side // 2
        self.maps = nn.Sequential(OrderedDict(layers))
        self.lstm = nn.LSTM(before * side, hidden, batch_first=True)
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(hidden, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs [b, num_classes] for images [b, c, h, w]."""
        rows = self.maps(images).transpose(1, 2).flatten(2)
        known, _ = self.lstm(rows)
        output: Tensor = self.dense(self.dropout(known[:, -1]))
        return output


def _pooled(side: int) -> int:
    """Return the length of a side after a convolution and pooling by 2."""
    return (side - _KERNEL + 1) // 2
