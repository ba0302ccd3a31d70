"""What to run: a `Spec`, and a `ResolvedSpec` once the number of shards is known."""

from __future__ import annotations

from downpour.spec.inside import Inside
from downpour.spec.meetings import Meetings
from downpour.spec.outer import Outer
from downpour.spec.spec import TABLES, Option, ResolvedSpec, Spec, parse_split, toml_fields

__all__ = [
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
