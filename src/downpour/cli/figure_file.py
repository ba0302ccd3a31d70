"""The file of a figure that a command draws: refused before the command computes anything."""

from __future__ import annotations

from pathlib import Path

from downpour.base.errors import SpecError

_FORMS = (".png", ".svg")


def check_figure(field: str, path: Path | None) -> None:
    """Check where a figure is to be written.

    Raises:
        SpecError: the name has another ending, is not a file's, or its folder does not exist.
    """
    if path is None:
        return
    other = path.exists() and not path.is_file()
    if path.suffix not in _FORMS or not path.parent.is_dir() or other:
        accepted = f"must end with {' or '.join(_FORMS)}, in a folder that exists"
        raise SpecError(field, str(path), accepted)
