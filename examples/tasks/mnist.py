"""The first script of pytorch/examples: a convolutional network, Adadelta, and StepLR in the spec.

MNIST is looked for in the folder DOWNPOUR_DATA, and downloaded into it if it is not there.
"""

import os

from torch import nn
from torch.nn.functional import nll_loss
from torch.optim import Adadelta
from torchvision.datasets import MNIST
from torchvision.transforms.functional import normalize, to_tensor

from downpour import Task


class Digits(Task):
    def __init__(self, dropout=0.25):
        self.dropout = dropout

    def model(self):
        return nn.Sequential(
            *(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU()),
            *(nn.MaxPool2d(2), nn.Dropout(self.dropout), nn.Flatten()),
            *(nn.Linear(9216, 128), nn.ReLU(), nn.Dropout(2 * self.dropout)),
            *(nn.Linear(128, 10), nn.LogSoftmax(dim=1)),
        )

    def examples(self, part):
        folder = os.environ.get("DOWNPOUR_DATA", "data")
        return MNIST(folder, train=part == "train", download=True, transform=ready)

    def loss(self, model, batch):
        return nll_loss(model(batch[0]), batch[1])

    def metrics(self, model, batch):
        output = model(batch[0])
        right = (output.argmax(dim=1) == batch[1]).float().mean()
        return {"loss": nll_loss(output, batch[1]), "accuracy": right}

    def optimizer(self, groups):
        return Adadelta(groups, lr=1.0)


def ready(image):
    return normalize(to_tensor(image), [0.1307], [0.3081])
