"""A spec's file: the one place that reads what a user wrote, so that `spec.py` stays pure.

It never decides what a spec may say; it only turns a file that cannot be read into the same kind
of one-line refusal as a field that does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from downpour.errors import SpecError
from downpour.spec import Spec


def read_spec(path: Path, overrides: Mapping[str, Any] | None = None) -> Spec:
    """Read a spec from a TOML file; `overrides` win over what stands there.

    Raises:
        SpecError: where the file cannot be read, is not TOML, or says what is not accepted.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SpecError("FILE", str(path), f"must be a readable TOML file ({reason})") from None
    return Spec.from_toml(text, overrides)
