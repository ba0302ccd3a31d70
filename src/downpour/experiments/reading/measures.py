"""The measures of a model, as people read them: the loss on the test examples, and metrics.

A task names its metrics. We show shares of right answers in percent, such as `accuracy` and
`top5_accuracy`. All other metrics, and the loss, are plain numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from downpour.base.evaluations import LOSS
from downpour.base.values import Part
from downpour.host.text import one_line

_SHARES = {"acc", "accuracy"}
_LARGE = 1000


@dataclass(frozen=True, slots=True)
class Measure:
    """A metric by its name, or the loss, whose name is `LOSS`, on a part of the examples."""

    name: str
    part: Part = "test"

    @property
    def is_share(self) -> bool:
        """Whether its values are shares in 0..1 that people read in percent."""
        return not _SHARES.isdisjoint(re.split(r"[^a-z]+", self.name.lower()))

    @property
    def words(self) -> str:
        """Its name for people, in one line."""
        return one_line(self.name).replace("_", " ")

    @property
    def header(self) -> str:
        """Its header above a column of values, with the unit."""
        return f"{self.words} %" if self.is_share else self._on_part

    @property
    def axis(self) -> str:
        """Its label beside an axis, with the unit."""
        return f"{self.part} {self.words}, %" if self.is_share else self._on_part

    @property
    def key(self) -> str:
        """The key of a column of its values, for programs; the values are as people read them."""
        return f"{self.name}_percent" if self.is_share else self._on_part.replace(" ", "_")

    @property
    def file_stem(self) -> str:
        """Its name as a part of a file's name."""
        return re.sub(r"[^A-Za-z0-9._-]+", "-", self.name)

    @property
    def decimals(self) -> int:
        """How many of its decimals are worth reading."""
        return 2 if self.is_share else 4

    @property
    def _on_part(self) -> str:
        # Only the loss is also measured on the training examples.
        return f"{self.part} {LOSS}" if self.name == LOSS else self.words

    def shown(self, value: float | None) -> float | None:
        """Return a value in the unit that people read."""
        return 100 * value if self.is_share and value is not None else value

    def text(self, value: float) -> str:
        """Write a value with its unit: "91.82%", "0.2813"."""
        return f"{value:.2%}" if self.is_share else number(value)


def number(value: float) -> str:
    """Write a number with four decimals, or a large one with four digits."""
    return f"{value:.4f}" if abs(value) < _LARGE else f"{value:.4g}"


def first_of(
    metrics: Mapping[str, float | None], loss: float | None
) -> tuple[Measure, float] | None:
    """Return the measure that stands for a model if there is room for only one: its first metric.

    Without metrics, return the loss; if nothing was measured, return None.
    """
    for name, value in ({**metrics} or {LOSS: loss}).items():
        if value is not None:
            return Measure(name), value
    return None


def in_words(metrics: Mapping[str, float | None], loss: float | None, part: Part = "test") -> str:
    """Say how good a model is in two words: "accuracy 91.82%"; empty if nothing was measured."""
    best = first_of(metrics, loss)
    on = "" if part == "test" else f"{part} "
    return f"{on}{best[0].words} {best[0].text(best[1])}" if best else ""


def names_of(measured: Iterable[Mapping[str, float | None]]) -> list[str]:
    """Return the names of all metrics in the order in which they first occur."""
    return list(dict.fromkeys(name for metrics in measured for name in metrics))
