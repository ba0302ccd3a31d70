"""A task of which one method does what no method should; which and what are its options."""

import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from downpour import Task


class Custom(Exception):
    """An error of the user's own, of several lines."""


class Odd:
    """A value of no use, which cannot even be shown."""

    def __repr__(self) -> str:
        raise Custom("not even shown")


def _raised(error: BaseException) -> Any:
    raise error


_DEEDS: dict[str, Callable[[], Any]] = {
    "raises": lambda: _raised(Custom("first line\nsecond line")),
    "exits": lambda: _raised(SystemExit(0)),
    "interrupts": lambda: _raised(KeyboardInterrupt()),
    "ends": lambda: os._exit(0),
    "none": lambda: None,
    "nan": lambda: float("nan"),
    "odd": Odd,
    "text": lambda: "text",
    "empty": list,
    "tensor": lambda: torch.full((3,), float("nan")),
}


def _returned(what: str) -> Any:
    """Misbehave as asked: raise, end the process, or return a wrong value."""
    return _DEEDS[what]()


class Hostile(Task):
    """A line is fitted, but for the method that is `hostile`."""

    def __init__(self, hostile: str = "", what: str = "") -> None:
        self.hostile, self.what = hostile, what

    def _is(self, method: str) -> bool:
        return self.hostile == method

    def model(self) -> nn.Module:
        return _returned(self.what) if self._is("model") else nn.Linear(1, 1)

    def examples(self, part: str) -> Any:
        """Return points, two in a row alike."""
        del part
        if self._is("examples"):
            return _returned(self.what)
        return [(torch.full((1,), i / 8), torch.ones(1)) for i in range(8)]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        if self._is("loss"):
            return _returned(self.what)
        return nn.functional.mse_loss(model(batch[0]), batch[1])

    def collate(self, examples: list[Any]) -> Any:
        return _returned(self.what) if self._is("collate") else super().collate(examples)

    def metrics(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        del model, batch
        return _returned(self.what) if self._is("metrics") else {"one": 1.0}

    def predict(self, model: nn.Module, batch: Any) -> Any:
        return _returned(self.what) if self._is("predict") else model(batch[0])

    def labels(self) -> Any:
        return _returned(self.what) if self._is("labels") else [0, 1] * 4

    def groups(self, model: nn.Module) -> Any:
        if self._is("groups"):
            return _returned(self.what)
        return [{"params": list(model.parameters())}]

    def optimizer(self, groups: list[dict[str, Any]]) -> Any:
        if self._is("optimizer"):
            return _returned(self.what)
        return torch.optim.SGD(groups, lr=0.1)

    def rate(self, done: float) -> Any:
        del done
        return _returned(self.what) if self._is("rate") else 1.0


class HostileStep(Hostile):
    """The same with a step of its own."""

    def step(self, model: nn.Module, optimizers: Mapping[str, Optimizer], batch: Any) -> Any:
        if self._is("step"):
            return _returned(self.what)
        for one in optimizers.values():
            one.zero_grad()
        loss = self.loss(model, batch)
        loss.backward()
        for one in optimizers.values():
            one.step()
        return loss
