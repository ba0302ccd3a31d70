"""Tasks whose examples cannot be read, or cannot be sent to another process."""

import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from tests.learning.tasks.own_tasks import Plane, Shaken

FAILING: set[int] = set()


class Points:
    """The points of a plane, some of which fail."""

    def __init__(self, points: list[Any]) -> None:
        self.points = points

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> Any:
        if index in FAILING:
            raise OSError("the disk is gone")
        return self.points[index]


class Raises(Plane):
    """Some examples cannot be read."""

    def examples(self, part: str) -> Any:
        return Points(super().examples(part))


class Unsendable(Plane):
    """A batch holds a generator, which no process can send."""

    def collate(self, examples: Any) -> Any:
        x, y = super().collate(examples)
        return (one for one in (x, y)), x, y

    def loss(self, model: nn.Module, batch: tuple[Iterator[Tensor], Tensor, Tensor]) -> Tensor:
        return super().loss(model, batch[1:])


class Slow(Plane):
    """A batch takes longer than a test's patience with a loader that is silent."""

    def collate(self, examples: Any) -> Any:
        time.sleep(0.3)
        return super().collate(examples)


class Digested(Plane):
    """Examples that note a digest of each row, in loaders only."""

    def examples(self, part: str) -> Any:
        return Noted(super().examples(part))


class Noted(Shaken):
    """Notes what is read."""

    def __init__(self, points: list[Any]) -> None:
        super().__init__(points)
        self.digests: dict[str, str] = {}

    def __getitem__(self, index: int) -> Any:
        if multiprocessing.parent_process() is not None:
            self.digests[f"row {index}"] = "its digest"
        return self.points[index]
