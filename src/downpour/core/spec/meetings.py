"""How rounds and epochs belong together: an epoch has one round for each meeting of its shards.

An experiment counts its own rounds, from 0. Epochs are those of the whole training, from 0, and
include the epochs of experiments that this one continues. So rounds before it have negative numbers
here. It may begin in the middle of an epoch, which is then its first epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Meetings:
    """An experiment's `epochs`, the rounds in `each` epoch, and the rounds `before` it."""

    epochs: int
    each: int = 1
    before: int = 0

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Return the meetings of a record's spec; earlier versions had one round per epoch."""
        numbers = (fields.get("epochs", 0), fields.get("meet", 1), fields.get("rounds_before", 0))
        return cls(*map(int, numbers))

    @property
    def rounds(self) -> int:
        """How many rounds the experiment has."""
        return self.epochs * self.each - self.before % self.each

    @property
    def epochs_in_all(self) -> int:
        """How many epochs the whole training has, including earlier ones."""
        return self.epochs_before + self.epochs

    @property
    def epochs_before(self) -> int:
        """How many epochs had ended before this experiment."""
        return self.before // self.each

    def named(self, number: int) -> str:
        """Name a round in words: its epoch, and the round itself if the epoch has several."""
        which = f"epoch {self.epoch_of(number) + 1}"
        return which if self.each == 1 else f"{which}, round {number + 1}"

    def epoch_of(self, number: int) -> int:
        """Return the epoch of a round, of the whole training; both count from 0."""
        return (self.before + number) // self.each

    def ends_epoch(self, number: int) -> bool:
        """Whether an epoch ends with this round."""
        return (self.before + number + 1) % self.each == 0

    def last_of(self, epochs: int) -> int:
        """Return the round with which the training's first `epochs` epochs end."""
        return epochs * self.each - 1 - self.before
