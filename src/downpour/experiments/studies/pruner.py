"""The rule by which a search ends runs early, as a value: its name and its numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Self

from downpour.base.errors import SpecError
from downpour.experiments.studies.fields import Value, whole_number

_COUNT_MAX = 1_000_000
_SETTINGS = {
    "median": {"min_epochs", "startup_trials"},
    "halving": {"min_epochs", "factor"},
    "none": set[str](),
}
_FIELD = "search.pruner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruner:
    """A rule by which a run ends before its last epoch, but never before `min_epochs`.

    `median` (Golovin et al. 2017, section 3.2.2): after `startup_trials` have finished, a run
    ends if its best accuracy so far is below their median at the same epoch. `halving`
    (Li et al. 2020, "A System for Massively Parallel Hyperparameter Tuning"): after min_epochs,
    min_epochs · factor, min_epochs · factor², … epochs, only the best 1/`factor` of the runs so far
    continue. `none`: all runs continue.
    """

    name: str = "median"
    min_epochs: int = 1
    startup_trials: int = 5
    factor: int = 3

    @classmethod
    def of(cls, field_value: Value) -> Self:
        """Read the rule from a file: a name, or a table with a name and settings.

        Raises:
            SpecError: a setting is invalid; the message names it and the accepted values.
        """
        given = dict(field_value) if isinstance(field_value, dict) else {"name": field_value}
        name = given.pop("name", cls().name)
        if not isinstance(name, str) or name not in _SETTINGS:
            raise SpecError(_FIELD, name, "must be median, halving or none, or a table with a name")
        for setting, value in given.items():
            field = f"{_FIELD}.{setting}"
            if setting not in _SETTINGS[name]:
                known = " and ".join(sorted(_SETTINGS[name])) or "nothing"
                raise SpecError(field, value, f"no such setting; {name} takes {known}")
            whole_number(field, value, _COUNT_MAX, least=2 if setting == "factor" else 1)
        return cls(name=name, **given)

    def to_toml(self) -> dict[str, Value]:
        """Write the rule with all its settings."""
        fields = asdict(self)
        return {"name": self.name, **{key: fields[key] for key in sorted(_SETTINGS[self.name])}}
