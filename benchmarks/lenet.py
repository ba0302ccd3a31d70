"""LeNet-5 with ReLU and max-pooling: 44,426 parameters, a fortieth of the work of `mnist-cnn`."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def build(num_classes: int) -> nn.Module:
    """Return the network, for images of 1 x 28 x 28."""
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(1, 6, 5),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(6, 16, 5),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(inplace=True),
            flatten=nn.Flatten(),
            dense1=nn.Linear(256, 120),
            relu3=nn.ReLU(inplace=True),
            dense2=nn.Linear(120, 84),
            relu4=nn.ReLU(inplace=True),
            dense3=nn.Linear(84, num_classes),
        )
    )
