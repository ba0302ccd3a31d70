"""The worker as a process: what it looks at before it starts, and where it can be called."""

from __future__ import annotations

import pytest

from downpour.base.errors import SpecError
from downpour.cluster.worker.process import advertised, listening_host
from downpour.network.rpc import parse_address


@pytest.mark.parametrize(
    ("manager", "host"),
    [
        ("localhost:1", {"127.0.0.1"}),
        ("[::1]:1", {"::1"}),
        ("10.0.0.5:1", {"::", "0.0.0.0"}),
        ("[fd00::5]:1", {"::"}),
    ],
)
def test_a_worker_listens_where_its_manager_can_call(manager: str, host: set[str]) -> None:
    """On loopback where the manager is there, so that nobody else reaches it; else everywhere."""
    assert listening_host(parse_address(manager)) in host


@pytest.mark.parametrize(
    ("asked", "listening", "told"),
    [
        ("", "::", ("", 7)),
        ("", "0.0.0.0", ("", 7)),
        ("", "127.0.0.1", ("127.0.0.1", 7)),
        ("here", "::", ("here", 7)),
        ("here:8", "::", ("here", 8)),
        ("[fd00::5]", "::", ("fd00::5", 7)),
        ("[fd00::5]:8", "::", ("fd00::5", 8)),
    ],
)
def test_the_advertised_address(asked: str, listening: str, told: tuple[str, int]) -> None:
    """What it was told to, else where it listens, else (an empty host) what the manager sees."""
    assert advertised(asked, listening, 7) == told


def test_a_malformed_address_is_refused() -> None:
    """The line names the option."""
    with pytest.raises(SpecError, match="advertise = 'a:b:c': an address is HOST"):
        advertised("a:b:c", "::", 7)
