"""What a search has tried so far, as a value: trials, what each came to, and which was the best.

Where the trials lie and who chose their values, others know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

TrialState = Literal["finished", "pruned", "failed"]


@dataclass(frozen=True, slots=True)
class Field:
    """A field that is searched: among `choices`, or in a range where these are None.

    A range is drawn in its logarithm where `log`. An option is called `model_options.NAME`.
    """

    name: str
    choices: tuple[Any, ...] | None = None
    log: bool = False

    @property
    def words(self) -> str:
        """Name the field for people: the last part of its name, with spaces."""
        return self.name.rpartition(".")[2].replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One experiment of a search; `number` counts from 1, `values` are those of the fields.

    `accuracy` is a share in 0..1: of the final model, or where the trial was pruned of the last
    one before; `epoch_accuracy` has one an epoch, None where none was measured. `reason` says why
    it was pruned or has failed. `experiment` is what the manager called it. `to_repeat` is true
    where it failed through no fault of its values, so that it is run again.
    """

    number: int
    values: Mapping[str, Any]
    state: TrialState
    reason: str | None
    accuracy: float | None
    epoch_accuracy: tuple[float | None, ...]
    train_seconds: float
    wall_seconds: float
    experiment: str
    to_repeat: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """A search as far as it has come; `asked` is how many trials it is to have."""

    name: str
    fields: tuple[Field, ...]
    asked: int
    trials: tuple[Trial, ...]

    @property
    def left(self) -> int:
        """How many trials are to be run yet, or once more."""
        return self.asked - sum(t.number <= self.asked and not t.to_repeat for t in self.trials)

    @property
    def best(self) -> Trial | None:
        """The finished trial with the highest accuracy, of equals the first; None before one."""
        return best_of(self.trials)

    @property
    def best_so_far(self) -> list[tuple[int, float]]:
        """Return the best accuracy by the end of each trial, with its number, once there is one."""
        found = ((t.number, best_of(self.trials[:n])) for n, t in enumerate(self.trials, 1))
        return [
            (number, best.accuracy) for number, best in found if best and best.accuracy is not None
        ]

    def to_dict(self) -> dict[str, Any]:
        """Turn it into values that JSON can hold."""
        best = self.best
        return {
            "name": self.name,
            "asked": self.asked,
            "best": best and best.number,
            "trials": [asdict(trial) for trial in self.trials],
        }

    def __str__(self) -> str:
        repeated = [trial for trial in self.trials if trial.to_repeat]
        counts = Counter(trial.state for trial in self.trials if not trial.to_repeat)
        left_out = [f"{counts[state]} {state}" for state in ("pruned", "failed") if counts[state]]
        told = [f"{self.name}: {counts.total()} of {self.asked} trials", *left_out]
        if repeated:
            first = f"trial {repeated[0].number}: {repeated[0].reason}"
            told.append(f"{len(repeated)} to be run again ({first})")
        if (best := self.best) and best.accuracy is not None:
            told.append(f"the best is trial {best.number} with {best.accuracy:.2%}")
        return ", ".join(told)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the finished trial with the highest accuracy, of equals the first."""
    finished = [trial for trial in trials if trial.state == "finished"]
    return max(finished, key=lambda trial: trial.accuracy or 0.0, default=None)
