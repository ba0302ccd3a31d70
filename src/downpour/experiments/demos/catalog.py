"""The demos by name."""

from __future__ import annotations

from downpour.experiments.demos import asynchrony, crash, splits, stragglers
from downpour.experiments.demos.demo import Demo

DEMOS: dict[str, Demo] = {
    "stragglers": stragglers.DEMO,
    "splits": splits.DEMO,
    "crash": crash.DEMO,
    "asynchrony": asynchrony.DEMO,
}
