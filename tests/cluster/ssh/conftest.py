"""Three hosts for all tests of this folder; skipped with the reason where they cannot be had."""

from collections.abc import Iterator

import pytest

from tests.cluster.ssh.lab import Lab, why_not


@pytest.fixture(scope="session")
def ssh() -> Iterator[Lab]:
    """Three hosts with daemons of their own."""
    if reason := why_not():
        pytest.skip(reason)
    lab = Lab()
    try:
        lab.up()
        yield lab
    finally:
        lab.down()
