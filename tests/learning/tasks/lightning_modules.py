"""Modules of Lightning as users write them, and some that cannot be trained as they are."""

from collections.abc import Callable
from typing import Any

import lightning
import torch
import torchmetrics
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

COUNT, TESTED, CLASSES = 54, 21, 3


def examples(count: int, seed: int) -> TensorDataset:
    """Return points of three classes."""
    draws = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=draws)
    return TensorDataset(x, x[:, :CLASSES].argmax(1))


class Points(lightning.LightningDataModule):
    """Data of their own file, in batches of eight; the last one is smaller."""

    def __init__(self, batch_size: int = 8, shuffle: bool = False) -> None:
        super().__init__()
        self.batch_size, self.shuffle = batch_size, shuffle

    def setup(self, stage: str) -> None:
        self.train, self.val = examples(COUNT, 0), examples(TESTED, 1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train, self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.val, 6)


class Net(lightning.LightningModule):
    """A small network; `how` says what `configure_optimizers` returns."""

    def __init__(self, how: str = "adamw", width: int = 5) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body, self.head = nn.Linear(4, width), nn.Linear(width, CLASSES)
        self.right = torchmetrics.classification.MulticlassF1Score(CLASSES, average="macro")
        self.seen: list[tuple[int, int, int]] = []

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen.append((self.current_epoch, self.global_step, batch_idx))
        loss = cross_entropy(self(batch[0]), batch[1])
        self.log_dict({"train_loss": loss, "lr": 0.0}, on_step=True)
        return {"loss": loss, "device": str(self.device)}

    def validation_step(self, batch: Any, *_: Any) -> Any:
        output = self(batch[0])
        self.right(output, batch[1])
        self.log("val_loss", cross_entropy(output, batch[1]), prog_bar=True)
        self.log("f1", self.right)
        self.log("first", output[0, 0], batch_size=1)

    def on_validation_epoch_end(self) -> None:
        self.log("epochs", float(self.trainer.max_epochs or 0))

    def configure_optimizers(self) -> Any:
        groups: list[dict[str, Any]] = [
            {"params": self.body.parameters(), "lr": 0.02},
            {"params": self.head.parameters()},
        ]
        sgd = SGD(groups, lr=0.1, momentum=0.8)
        ways: dict[str, Callable[[], Any]] = {
            "adamw": lambda: AdamW(self.parameters(), 0.01),
            "one cycle": lambda: {"optimizer": sgd, "lr_scheduler": self.by_step(sgd)},
            "lambda": lambda: ([sgd], [{"scheduler": rates(sgd), "interval": "step"}]),
            "epochs": lambda: ([sgd], [schedulers.StepLR(sgd, 1, 0.5)]),
            "every third": lambda: ([sgd], [{**self.by_step(sgd), "frequency": 3}]),
            "plateau": lambda: {
                "optimizer": sgd,
                "lr_scheduler": {"scheduler": schedulers.ReduceLROnPlateau(sgd), "monitor": "f1"},
            },
            "two": lambda: [sgd, AdamW(self.body.parameters())],
            "none": lambda: None,
            "schedulers": lambda: ([sgd], [rates(sgd), schedulers.StepLR(sgd, 1)]),
        }
        return ways[self.hparams["how"]]()

    def by_step(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return a scheduler that changes rates and momentum with every step."""
        steps = int(self.trainer.estimated_stepping_batches)
        cycle: Any = schedulers.OneCycleLR
        return {"scheduler": cycle(optimizer, [0.1, 0.3], total_steps=steps), "interval": "step"}


def rates(optimizer: Optimizer) -> schedulers.LambdaLR:
    """Return a warm-up in three steps for one group, and a decay for the other."""
    return schedulers.LambdaLR(optimizer, [lambda k: min(1.0, (k + 1) / 3), lambda k: 0.9**k])


class Own(Net):
    """A module that brings its own loaders, which drop the last batch."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(examples(COUNT, 0), 8, drop_last=True, collate_fn=padded)

    def val_dataloader(self) -> list[DataLoader[Any]]:
        return [DataLoader(examples(TESTED, 1), 6)]


def padded(batch: list[Any]) -> list[Tensor]:
    """Collate in an own way: twice the numbers."""
    return [2 * torch.stack([x for x, _ in batch]), torch.stack([y for _, y in batch])]


def pair(how: str = "adamw") -> tuple[Net, Points]:
    """Return a module and the data to train it on."""
    return Net(how), Points(batch_size=16, shuffle=True)


def nothing() -> int:
    """Return nothing that can be trained."""
    return 3


class Manual(Net):
    """Optimizes on its own."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False


class Hooked(Net):
    """Does something between backward and the step."""

    def on_after_backward(self) -> None:
        """Do it."""


class Stream(IterableDataset[Any]):
    """Numbers without an index."""

    def __iter__(self) -> Any:
        return iter(range(9))


class Streaming(Own):
    """Trains on a stream."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(Stream(), 8)


class Weighted(Own):
    """Draws some examples more often."""

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(examples(COUNT, 0), 8, sampler=WeightedRandomSampler([1.0] * COUNT, 9))


class Returning(Own):
    """Returns its loss instead of logging it, once as a dictionary."""

    def validation_step(self, batch: Any, *numbers: int) -> Any:
        loss = cross_entropy(self(batch[0]), batch[1])
        return {"loss": loss} if numbers[0] else loss


class Several(Own):
    """Evaluates on two datasets."""

    def val_dataloader(self) -> list[DataLoader[Any]]:
        return [DataLoader(examples(TESTED, 1), 6)] * 2


class Summing(Own):
    """Logs a sum."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("wrong", (self(batch[0]).argmax(1) != batch[1]).sum(), reduce_fx="sum")


class Lossless(Own):
    """Forgets to return the loss."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        cross_entropy(self(batch[0]), batch[1])
