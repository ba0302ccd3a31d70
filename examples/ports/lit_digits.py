"""Digits in Lightning; Downpour trains this file as it is.

downpour run --task lit_digits:LitDigits --epochs 5 --allow lit_digits
"""

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset, random_split


class LitDigits(lightning.LightningModule):
    def __init__(self, hidden=64, learning_rate=0.01):
        super().__init__()
        self.save_hyperparameters()
        self.network = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        output = self(x)
        self.log("val_loss", cross_entropy(output, y))
        self.log("val_accuracy", (output.argmax(1) == y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.learning_rate)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Digits(lightning.LightningDataModule):
    def __init__(self, batch_size=32):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage):
        x, y = load_digits(return_X_y=True)
        data = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
        split = torch.Generator().manual_seed(0)
        self.train, self.val = random_split(data, [1500, 297], split)

    def train_dataloader(self):
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, self.batch_size)


if __name__ == "__main__":
    lightning.Trainer(max_epochs=5).fit(LitDigits(), Digits())
