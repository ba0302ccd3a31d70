"""A task that Downpour does not have, in a project of two files."""

MODULE = "foreign_lab"
PROJECT = {
    "foreign_lab.py": b'''"""A line through points."""

import torch
from foreign_parts import WIDTH, Points
from torch import nn
from torch.nn.functional import mse_loss

from downpour import Task


class Line(Task):
    def model(self):
        return nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def examples(self, part):
        return Points(64 if part == "train" else 16)

    def loss(self, model, batch):
        import foreign_parts  # finds what the first import found

        assert foreign_parts.Points is Points
        x, y = batch
        return mse_loss(model(x), y)
''',
    "foreign_parts.py": b'''"""Points, the same on every machine."""

import torch

WIDTH = 4


class Points(torch.utils.data.Dataset):
    def __init__(self, count):
        self.x = torch.linspace(-1, 1, 2 * count).reshape(count, 2)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.x[i].sum().reshape(1)
''',
}
CHANGED = {**PROJECT, "foreign_parts.py": PROJECT["foreign_parts.py"].replace(b"= 4", b"= 5")}
FLAGS = ["--task", "foreign_lab:Line", "--shards", "2", "--epochs", "3", "--batch-size", "8"]
FLAGS += ["--name", "foreign"]
