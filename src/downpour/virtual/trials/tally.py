"""The combined results of many runs: the comparisons made, and the events that never occurred."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from downpour.virtual.checks.happenings import Happening, catalogue
from downpour.virtual.checks.promises import Promise
from downpour.virtual.trials.repeating import different, is_repeated
from downpour.virtual.trials.simulation import Outcome


class RunsTally:
    """Adds outcomes up; `to_repeat` are the outcomes whose seeds run a second time."""

    def __init__(self) -> None:
        self.runs = self.steps = 0
        self.virtual_seconds = 0.0
        self.compared: Counter[Promise] = Counter()
        self.happened: Counter[Happening] = Counter()
        self.to_repeat: list[Outcome] = []

    def take(self, outcome: Outcome) -> None:
        """Add a run."""
        self.runs += 1
        self.steps += outcome.steps
        self.virtual_seconds += outcome.seconds
        self.compared.update(outcome.compared)
        self.happened.update(outcome.happened)
        if is_repeated(outcome.plan.seed):
            self.to_repeat.append(outcome)

    def changed(self) -> list[int]:
        """Run some seeds a second time; return those whose runs differ."""
        return different(self.to_repeat)

    def never(self, messages: Iterable[str], refusals: Iterable[str]) -> dict[str, list[str]]:
        """Return, by group, what happened in no run."""
        missing: dict[str, list[str]] = {}
        for group, name in catalogue(messages, refusals):
            if not self.happened[group, name]:
                missing.setdefault(group, []).append(name)
        return missing
