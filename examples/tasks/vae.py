"""A variational autoencoder of handwritten digits, after pytorch/examples.

MNIST is looked for in the folder DOWNPOUR_DATA, and downloaded into it if it is not there.
"""

import os

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torchvision.datasets import MNIST
from torchvision.transforms.functional import to_tensor

from downpour import Task


class VAE(nn.Module):
    def __init__(self, hidden, codes):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 2 * codes)
        )
        self.decoder = nn.Sequential(nn.Linear(codes, hidden), nn.ReLU(), nn.Linear(hidden, 784))

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(code), mean, log_variance


class Digits(Task):
    def __init__(self, hidden=400, codes=20):
        self.shape = hidden, codes

    def model(self):
        return VAE(*self.shape)

    def examples(self, part):
        folder = os.environ.get("DOWNPOUR_DATA", "data")
        return MNIST(folder, train=part == "train", download=True, transform=to_tensor)

    def loss(self, model, batch):
        x = batch[0].flatten(1)
        logits, mean, log_variance = model(x)
        wrong = binary_cross_entropy_with_logits(logits, x, reduction="sum")
        far = (mean**2 + log_variance.exp() - 1 - log_variance).sum() / 2
        return (wrong + far) / len(x)
