"""Tasks whose optimizers, gradients or losses are unusual."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset, default_collate

from downpour import Task
from tests.learning.tasks.own_tasks import Plane


class Returning(torch.optim.SGD):
    """Lookahead, which counts in its groups."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Every third step returns to the slow weights."""
        super().step(closure)
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for value in group["params"]:
                slow = self.state[value].setdefault("slow", value.clone())
                if group["count"] % 3 == 0:
                    slow.lerp_(value, 0.5)
                    value.copy_(slow)


class Lookahead(Plane):
    """An optimizer that counts beside its state."""

    def optimizer(self, groups: list[dict[str, Any]]) -> Optimizer:
        return Returning(groups, lr=0.1)


class Words(nn.Module):
    """An embedding with sparse gradients, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        height: Tensor = self.last(self.words((x.abs() * 3).long().clamp(max=9)).sum(1))
        return height


class SparseWords(Plane):
    """Sparse gradients, with an optimizer that takes them or not."""

    def __init__(self, kind: str | None = None) -> None:
        super().__init__()
        self.kind = kind

    def model(self) -> nn.Module:
        return Words()

    def optimizer(self, groups: list[dict[str, Any]]) -> Mapping[str, Optimizer] | None:
        """Return one for sparse gradients, and one for the others; or leave it to the spec."""
        if self.kind is None:
            return None
        first, *rest = groups[0]["params"]
        sparse = getattr(torch.optim, self.kind)([first], lr=0.1)
        return {"sparse": sparse, "dense": torch.optim.Adam(rest, lr=0.1)}


class Tokens(Task):
    """Sentences with padding: the loss is a mean over tokens, of which examples have one or all."""

    def __init__(self, returns: str = "pair", dropout: float = 0.0) -> None:
        self.returns, self.dropout = returns, dropout

    def model(self) -> nn.Module:
        """Return a network that can be cut into layers."""
        return nn.Sequential(
            nn.Embedding(20, 8),
            nn.Linear(8, 16),
            nn.BatchNorm1d(12) if self.returns == "normed" else nn.Tanh(),
            nn.Dropout(self.dropout),
            nn.Linear(16, 20),
        )

    def examples(self, part: str) -> Any:
        """Return sentences, and the same as targets, of which many are left out."""
        x = torch.randint(0, 20, (96, 12), generator=torch.Generator().manual_seed(len(part)))
        y = x.clone()
        y[::2, 1:] = -100
        return TensorDataset(x, y)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        """Return a mean, or a sum and a count."""
        x, y = batch
        total = cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="sum")
        count = (y >= 0).sum()
        if self.returns == "odd":
            return total, "many"
        if self.returns == "contrast":
            return total.square(), 1
        return total / count if self.returns == "mean" else (total, count)


class Odd:
    """Makes batches, and is no function."""

    def __call__(self, examples: list[Any]) -> Any:
        return default_collate(examples)


class Idioms(Plane):
    """Methods as other libraries have them: static, of the class, callable objects."""

    def __init__(self, how: str = "static") -> None:
        super().__init__()
        if how == "made":
            vars(self)["collate"] = Odd()
        if how == "wrong":
            vars(self)["collate"] = self.labels

    @staticmethod
    def collate(examples: list[Any]) -> Any:
        return default_collate(examples)

    @classmethod
    def loss(cls, model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        return mse_loss(model(x), y)

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        del model, batch
        return {
            "float": np.float32(0.5),
            "int": np.int64(3),
            "array": np.array(0.25, np.float16),
            "pair": (np.float64(1), np.array(4)),
        }


class Loading(Plane):
    """A loader instead of its dataset."""

    def examples(self, part: str) -> Any:
        return DataLoader(super().examples(part), batch_size=4)  # type: ignore[arg-type]


class Grouping(Plane):
    """A set, which has a length and no order."""

    def examples(self, part: str) -> Any:
        return set(range(len(super().examples(part))))
