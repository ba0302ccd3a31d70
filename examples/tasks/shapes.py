"""Segmentation: a small U-Net finds boxes and stars in noise. Its examples are a plain list."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu

from downpour import Task


def picture(number, size):
    seeded = torch.Generator().manual_seed(number)
    places = torch.arange(size) / size
    classes = torch.zeros(size, size, dtype=torch.int64)
    for kind, power in (1, 16), (2, 0.7):  # |x|^p + |y|^p < r^p
        x, y = 0.2 + 0.6 * torch.rand(2, generator=seeded)
        far = (places - x).abs() ** power + (places[:, None] - y).abs() ** power
        classes[far < 0.2**power] = kind
    noise = torch.randn(size, size, generator=seeded)
    return ((classes > 0) + noise / 3)[None], classes


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fine = nn.Conv2d(1, width, 3, padding=1)
        self.coarse = nn.Sequential(
            *(nn.Conv2d(width, 2 * width, 8, stride=4, padding=2), nn.ReLU()),
            *(nn.ConvTranspose2d(2 * width, width, 8, stride=4, padding=2), nn.ReLU()),
        )
        self.last = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x):
        fine = relu(self.fine(x))
        return self.last(torch.cat([fine, self.coarse(fine)], dim=1))


class Segmentation(Task):
    def __init__(self, count=1000, size=32, width=8):
        self.count, self.size, self.width = count, size, width

    def model(self):
        return UNet(self.width)

    def examples(self, part):
        numbers = range(self.count) if part == "train" else range(self.count, self.count + 200)
        return [picture(number, self.size) for number in numbers]

    def loss(self, model, batch):
        return cross_entropy(model(batch[0]), batch[1])

    def metrics(self, model, batch):
        found, there = model(batch[0]).argmax(dim=1), batch[1]
        hit = ((found == there) & (there > 0)).sum()
        return {"overlap": (hit, ((found > 0) | (there > 0)).sum())}  # intersection over union
