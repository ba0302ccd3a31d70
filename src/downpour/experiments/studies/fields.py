"""The common part of grid and search files: fields of the spec, and their checks."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from downpour.base.errors import SpecError
from downpour.core.spec import Spec

WORKERS_MAX = 100_000
OPTIONS = (
    "task_options",
    "dataset_options",
    "model_options",
    "policy_options",
    "outer",
    "inside",
    "shard_needs",
)
"""The fields whose values are tables."""

Value = Any
"""The value of a field in a file: anything that TOML can express."""


def check_name(field: str, value: Value, own: Sequence[str]) -> None:
    """Refuse a name that is neither a spec's field nor in `own`; suggest the nearest one.

    Raises:
        SpecError: the field does not exist.
    """
    if field in own or field in Spec.model_fields:
        return
    meant = difflib.get_close_matches(field, [*own, *Spec.model_fields], n=1)
    if meant and meant[0] in own:
        raise SpecError(field, value, f"no such field; did you mean {meant[0]}?")
    Spec.make({field: value})  # refuses it with the spec's own suggestion


def whole_number(field: str, value: Value, most: int, *, least: int = 1) -> int:
    """Return a value that is a whole number within limits.

    Raises:
        SpecError: the value is anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise SpecError(field, value, f"must be a whole number from {least} to {most}")
    return value


def resolved_defaults() -> dict[str, Value]:
    """Return the spec's defaults as a file has them, without the name and empty values.

    A study's own file holds them, so that a new version's defaults don't change a study in
    progress.
    """
    fields = Spec().model_dump(mode="json", exclude={"name"})
    return {field: value for field, value in fields.items() if value not in (None, {}, [])}
