"""The options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from downpour.base.values import DEFAULT_MANAGER, DEFAULT_PORT
from downpour.cli.parameters import whole_number
from downpour.network.rpc import parse_address


def test_the_default_manager_is_at_the_default_port() -> None:
    """A manager and a worker on one machine find each other without options."""
    assert str(parse_address("localhost")) == DEFAULT_MANAGER
    assert parse_address(DEFAULT_MANAGER).port == DEFAULT_PORT


def test_whole_numbers_are_whole() -> None:
    """Everything else is refused with what was typed."""
    assert whole_number("-3") == -3
    for text in ("two", "1.5", ""):
        with pytest.raises(typer.BadParameter, match=f"'{text}' is not a whole number"):
            whole_number(text)


@pytest.mark.parametrize("command", ["run", "manager"])
def test_the_data_folder_must_be_there(
    refused: Callable[..., str], tmp_path: Path, command: str
) -> None:
    """Before anything starts, by option or variable; the shared directory is not even made."""
    shared = tmp_path / "shared"
    line = refused(command, "--data-dir", tmp_path / "nowhere", "--shared", shared)
    assert "'--data-dir'" in line
    assert "nowhere' does not exist" in line
    assert not shared.exists()
