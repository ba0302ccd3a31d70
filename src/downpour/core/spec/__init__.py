"""The spec of an experiment: a `Spec`, or a `ResolvedSpec` once the number of shards is known."""

from downpour.core.spec.refusals import not_default
from downpour.core.spec.spec import (
    REQUIRED,
    TABLES,
    Meetings,
    ResolvedSpec,
    Spec,
    parse_split,
    stored_fields,
    toml_fields,
)
from downpour.core.spec.spec_fields import Inside, Option, Outer
