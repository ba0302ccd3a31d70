"""Regression on a table: how a disease goes on in 442 patients, from ten numbers of each."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.nn.functional import l1_loss, mse_loss
from torch.utils.data import TensorDataset

from downpour import Task


class Diabetes(Task):
    def __init__(self, hidden=32):
        x, y = load_diabetes(return_X_y=True)
        self.x = torch.tensor(x / x.std(axis=0), dtype=torch.float32)
        self.y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)
        self.hidden = hidden

    def model(self):
        return nn.Sequential(nn.Linear(10, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 1))

    def examples(self, part):
        rows = slice(0, 353) if part == "train" else slice(353, 442)
        return TensorDataset(self.x[rows], self.y[rows])

    def loss(self, model, batch):
        x, y = batch
        return mse_loss(model(x).squeeze(1), y)

    def metrics(self, model, batch):
        x, y = batch
        return {"absolute_error": l1_loss(model(x).squeeze(1), y)}
