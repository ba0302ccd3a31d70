"""What holds for every row of these tables, and the command line that most of them go through."""

from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.cli.printing import LINE_CHARACTERS_MAX
from tests.cli.conftest import Downpour, downpour, own_signals

__all__ = ["downpour", "own_signals"]

Refused = Callable[..., None]


def is_one_line(said: str, *named: str) -> None:
    """See that a mistake was told in one line of a bounded length that names all of this."""
    assert "Traceback" not in said
    assert said.startswith("downpour: "), said
    assert said.count("\n") == 1, said
    assert said.endswith("\n")
    assert len(said) <= LINE_CHARACTERS_MAX + len("downpour: \n")
    for name in named:
        assert name in said, said


@pytest.fixture
def bad(downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """Run words that must be refused with status 2, in a folder of their own."""
    monkeypatch.chdir(tmp_path)

    def run(words: list[str], *named: str, status: int = 2) -> None:
        outcome = downpour(*words)
        assert outcome.status == status, outcome
        assert outcome.out == ""
        is_one_line(outcome.err, *named)

    return run
