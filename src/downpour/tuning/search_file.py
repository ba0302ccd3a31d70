"""The file of a search, as a user wrote it; so that `search.py` touches no file."""

from __future__ import annotations

from pathlib import Path

from downpour.runtime.spec_file import read_toml
from downpour.tuning.search import Search


def read_search(path: Path) -> Search:
    """Read a search from a TOML file.

    Raises:
        SpecError: where the file cannot be read, is not TOML, or says what is not accepted.
    """
    return Search.make(read_toml(path))
