"""The comparison with other systems: what is made of what they print."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("compared")
    for name in ("compared", "common"):
        sys.modules.pop(name, None)


def ran(compared: Any, *events: tuple[str, float], status: int = 0, ended: float = 20.0) -> Any:
    """A run that began at 10 and has said these events."""
    said = [{"event": event, "at": at, "accuracy": 0.5} for event, at in events]
    return compared.Ran(
        events=said, status=status, began=10.0, ended=ended, memory_mb=100.0, load=1.0
    )


def test_events_are_found_among_whatever_a_system_prints(compared: Any) -> None:
    """Its log stands before a line, or between them, and a line may be torn."""
    lines = [
        "starting\n",
        '(Worker pid=3) {"event": "first", "at": 1.5}\n',
        "{torn\n",
        '{"x": 1}\n',
    ]
    assert list(compared.said(lines)) == [{"event": "first", "at": 1.5}]


def test_a_row_is_the_median_of_the_repetitions(compared: Any) -> None:
    """An epoch counts from the first step on; what no run has said stays empty."""
    runs = [ran(compared, ("first", 10 + at), ("epoch", 14 + at)) for at in (1.0, 2.0, 9.0)]
    row = compared.row(compared.PEERS[0], runs, [], None)
    assert (row["first_batch_seconds"], row["epoch_seconds"]) == (2.0, 4.0)
    assert (row["accuracy_percent"], row["round_ms"]) == (50.0, None)
    assert row["lines"] > 5


@pytest.mark.parametrize(
    ("events", "status", "ended", "said"),
    [
        ([("epoch", 11.0), ("killed", 11.0), ("epoch", 14.5)], 0, 20.0, "next epoch after 3.5 s"),
        ([("epoch", 11.0), ("killed", 11.0)], 1, 12.0, "ends after 1.0 s, all is lost"),
        ([("epoch", 11.0), ("killed", 11.0)], -9, 900.0, "hangs"),
        ([("epoch", 11.0)], 0, 12.0, "has no other worker"),
    ],
)
def test_what_a_death_leads_to_is_told(
    compared: Any, events: list[tuple[str, float]], status: int, ended: float, said: str
) -> None:
    """By what is printed after it, and by how the run ends."""
    assert compared.after_kill(ran(compared, *events, status=status, ended=ended)).endswith(said)


def test_a_peer_that_cannot_be_installed_is_a_line_with_the_reason(
    compared: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others are measured all the same."""
    monkeypatch.setattr(compared, "ENVIRONMENTS", tmp_path)
    peer = compared.Peer(name="none", script="plain.py", requirements=("./no-such-package",))
    [row] = compared.measure([peer], 1, 64)
    assert row["after_kill"].startswith("skipped: ./no-such-package: ")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_peer_and_downpour_are_measured(
    compared: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both print every event that the figures are made of."""
    if "DOWNPOUR_DATA" not in os.environ:
        pytest.skip("DOWNPOUR_DATA names no folder with MNIST")
    monkeypatch.setattr(compared, "ENVIRONMENTS", tmp_path)
    peers = [peer for peer in compared.PEERS if peer.name in {"plain", "downpour"}]
    for row in compared.measure(peers, 1, 2000):
        assert None not in row.values(), row
        assert row["peer"] == "plain" or row["after_kill"].startswith("goes on by itself")
