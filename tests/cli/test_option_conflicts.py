"""Options that cannot both be meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import SpecError
from downpour.cli.common import refuse_both

TRACES = Path(__file__).parents[2] / "traces"


def test_one_of_two_is_enough() -> None:
    """Both, and the line says which they are."""
    refuse_both(detach=True, status=False)
    with pytest.raises(
        SpecError, match="'--detach --status': cannot be combined; give one of them"
    ):
        refuse_both(detach=True, status=True)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("simulate --seed 5 --seeds 10", "seeds = 10: changes nothing beside --seed"),
        ("simulate --seed 5 --from-seed 1", "from-seed = 1: changes nothing beside --seed"),
        ("simulate --faults 1,2", "faults = '1,2': needs --seed"),
        ("simulate --rounds 2", "rounds = 2: needs --workers"),
        ("simulate --seed 1 --spread 0.1", "spread = 0.1: needs --workers"),
        ("simulate --workers 2 --seeds 3", "seeds = 3: changes nothing beside --workers"),
        ("simulate --workers 2 --story", "story = True: changes nothing beside --workers"),
    ],
)
def test_what_would_change_nothing_is_refused(
    refused: Callable[..., str], words: str, line: str
) -> None:
    """The line names the option, its value, and what it would need."""
    assert refused(*words.split()).startswith(line)


@pytest.mark.parametrize("command", ["grid", "tune"])
def test_a_manager_elsewhere_has_its_own_data(
    refused: Callable[..., str], tmp_path: Path, command: str
) -> None:
    """Nor can a grid both be detached and only be looked at."""
    file = tmp_path / "any.toml"
    manager = "--manager", "127.0.0.1:1"
    line = refused(command, file, *manager, "--data-dir", tmp_path)
    assert line.startswith(f"data-dir = {str(tmp_path)!r}"[:60])
    assert line.endswith("cannot go with --manager: that manager has its own")
    line = refused(command, file, *manager, "--allow", "lab")
    assert line.startswith("allow = ['lab']: is for runs here; start manager and workers with")
    assert refused(command, file, "--detach", "--status").startswith("options = ")


def test_a_variable_is_no_contradiction(
    downpour: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set once, for many commands."""
    monkeypatch.setenv("DOWNPOUR_SHARED", str(tmp_path))
    said = downpour("grid", tmp_path / "any.toml", "--manager", "127.0.0.1:1").err
    assert "FILE = " in said
