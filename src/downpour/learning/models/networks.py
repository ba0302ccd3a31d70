"""Downpour's own networks; they adapt to the size, channels and classes of the data.

If ReLU and max-pooling follow a convolution, the pooling comes first. The two commute, values and
gradients alike, and ReLU then has a quarter of the work.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from downpour.learning.models.dropout import Dropout
from downpour.learning.models.options import image, probability, widths


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
    sample_shape: tuple[int, ...],
    num_classes: int,
    *,
    dropout: float = 0.25,
    dropout2: float = 0.5,
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
    size = 1
    for length in sample_shape:
        size *= length
    layers: list[nn.Module] = [nn.Flatten()]
    for width in widths("hidden", hidden):
        layers += [nn.Linear(size, width), nn.ReLU(inplace=True)]
        size = width
    return nn.Sequential(*layers, nn.Linear(size, num_classes))
