"""An error in somebody else's code, in one line."""

import json

import pytest
import torch

from downpour.base.errors import FileCorrupt, SpecError
from downpour.learning.blame import describe_error


def test_the_innermost_line_outside_of_libraries_is_named() -> None:
    """Torch's frames and the standard library's lie further in, and say nothing to the user."""
    with pytest.raises(RuntimeError) as torchs:
        torch.nn.Linear(2, 2)(torch.zeros(3))
    assert describe_error(torchs.value).startswith("RuntimeError: ")
    assert "(test_blame.py:" in describe_error(torchs.value)
    assert describe_error(torchs.value).endswith(
        "in test_the_innermost_line_outside_of_libraries_is_named)"
    )
    with pytest.raises(json.JSONDecodeError) as pythons:
        json.loads("{")
    assert "(test_blame.py:" in describe_error(pythons.value)


def test_an_error_of_downpour_stays_unchanged() -> None:
    """It names field and value already."""
    error = SpecError("model", "lab:Net", "is none")
    assert describe_error(error) == str(error)
    assert describe_error(FileCorrupt("a\nb\udcff", "is cut")) == r"a b\udcff: is cut"


def test_a_long_error_is_one_line() -> None:
    """Also where it says nothing, and where it was never raised."""
    line = describe_error(ValueError("first\nsecond  third " + "x" * 10_000))
    assert line.startswith("ValueError: first second third x")
    assert "\n" not in line
    assert len(line) < 500
    assert describe_error(KeyError("x")) == "KeyError: 'x'"
    assert describe_error(AssertionError()) == "AssertionError"
