"""A path that a user gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.host.paths import path_of


def test_text_and_paths_are_paths() -> None:
    """`~` is put into full; nothing else changes, and nothing has to be there."""
    assert path_of("shared", "a/b") == Path("a/b")
    assert path_of("shared", Path("nowhere")) == Path("nowhere")
    assert path_of("shared", "~/here") == Path.home() / "here"
    assert path_of("shared", "s3") == Path("s3")  # a folder, though s3:// begins a bucket's URL


@pytest.mark.parametrize("given", ["", 5, None, b"bytes", "nul\0", "~nobody-of-that-name/x"])
def test_a_malformed_path_is_refused(given: object) -> None:
    """The line names the field; an empty path would be the current folder, which nobody meant."""
    with pytest.raises(SpecError, match=r"^shared = .*: must be a path"):
        path_of("shared", given)


@pytest.mark.parametrize("given", ["x" * 256, "y/" * 2100, "é" * 128])
def test_a_path_is_as_long_as_a_system_takes(given: str) -> None:
    """Bytes count, of the whole and of each name in it."""
    with pytest.raises(SpecError, match="at most 4095 bytes, and 255 between two slashes"):
        path_of("shared", given)
