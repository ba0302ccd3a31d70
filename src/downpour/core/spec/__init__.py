"""The spec of an experiment: a `Spec`, or a `ResolvedSpec` once the number of shards is known."""

from __future__ import annotations

from downpour.core.spec.inside import Inside
from downpour.core.spec.meetings import Meetings
from downpour.core.spec.outer import Outer
from downpour.core.spec.spec import FORMERLY, TABLES, ResolvedSpec, Spec, parse_split, toml_fields
from downpour.core.spec.spec_fields import Option

__all__ = [
    "FORMERLY",
    "TABLES",
    "Inside",
    "Meetings",
    "Option",
    "Outer",
    "ResolvedSpec",
    "Spec",
    "parse_split",
    "toml_fields",
]
