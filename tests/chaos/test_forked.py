"""A fork of a process that has imported torch is what the command itself would be."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos import forked

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "words", [["--version"], ["status", "--manager", "a:b:c"], ["list", "--shared", "nowhere"]]
)
def test_it_says_and_ends_with_the_same(words: list[str], tmp_path: Path) -> None:
    """Whether that is well or a mistake."""
    command = [sys.executable, "-m", "downpour", *words]
    begun = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    made = forked.run(words, os.environ, tmp_path)
    assert (made.returncode, made.stdout, made.stderr) == (
        begun.returncode,
        begun.stdout,
        begun.stderr,
    )
