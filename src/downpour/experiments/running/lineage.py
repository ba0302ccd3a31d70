"""The experiments that a spec resumes: the one before, the one before that, and so on."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError
from downpour.base.values import is_bare_name
from downpour.core.spec import Spec
from downpour.files.spec_file import read_toml
from downpour.files.store import SPEC_NAME, SharedDirectory


def resumed_by(spec: Spec, shared: Path) -> tuple[str, ...]:
    """Return the identifiers of the experiments that a spec resumes, the last one first.

    The list ends before an experiment whose spec is gone.
    """
    folder = SharedDirectory(shared).experiments
    found: list[str] = []
    fields: Mapping[str, Any] = {"init_from": spec.init_from, "rounds_before": spec.rounds_before}
    while fields.get("rounds_before"):
        name = str(fields.get("init_from")).partition("/")[0]
        if not is_bare_name(name) or name in found:
            break
        found.append(name)
        try:
            fields = read_toml(folder / name / SPEC_NAME)
        except SpecError:
            break
    return tuple(found)
