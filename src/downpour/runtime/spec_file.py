"""A file that says what to run: the one place that reads it, so that `spec.py` stays pure.

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
    return Spec.from_toml(read_toml_text(path), overrides)


def read_toml_text(path: Path) -> str:
    """Return the text of a TOML file that a user names.

    Raises:
        SpecError: where the file cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SpecError("FILE", str(path), f"must be a readable TOML file ({reason})") from None
