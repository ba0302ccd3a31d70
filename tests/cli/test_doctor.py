"""`downpour doctor` on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Downpour = Callable[..., Any]


def test_a_folder_that_is_well_ends_with_status_0(downpour: Downpour, served: Any) -> None:
    """A row a check, within 80 columns, and nothing on standard error."""
    outcome = downpour("doctor", "--shared", served.shared, "--manager", served.address)
    assert (outcome.status, outcome.err) == (0, "")
    rows = [line.split() for line in outcome.out.splitlines() if " ok " in line]
    assert len(rows) == 10
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_what_must_be_mended_ends_with_status_2(
    downpour: Downpour, served: Any, tmp_path: Path
) -> None:
    """The row says what to change; for programs it is JSON."""
    words = ("doctor", "--shared", tmp_path, "--manager", served.address)
    shown = downpour(*words)
    assert shown.status == 2
    assert "mount the manager's folder here" in shown.out
    told = downpour(*words, "--json")
    found = json.loads(told.out)
    assert (told.status, found["healthy"]) == (2, False)
    checks = {check["check"]: check for check in found["checks"]}
    assert checks["same folder"]["verdict"] == "failed"
    assert checks["speed"]["figures"]["publish_ms"] > 0


def test_an_address_that_is_none_is_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    """As with every command."""
    line = refused("doctor", "--shared", tmp_path, "--manager", "a:b:c")
    assert line.startswith("manager = 'a:b:c': an address is")
