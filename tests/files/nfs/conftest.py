"""One lab for all tests of this folder; where it cannot be had, they are skipped and say why."""

from collections.abc import Iterator

import pytest

from tests.files.nfs.lab import Guest, Lab, stop_quietly, why_not

GUESTS = 4


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """A server and four machines; the last one may be lost."""
    if reason := why_not():
        pytest.skip(reason)
    lab = Lab(GUESTS)
    try:
        lab.up()
        yield lab
    finally:
        stop_quietly(lab)


@pytest.fixture(scope="session")
def anna(lab: Lab) -> Guest:
    """The first machine."""
    return lab.guests[0]


@pytest.fixture(scope="session")
def bert(lab: Lab) -> Guest:
    """The second one."""
    return lab.guests[1]


@pytest.fixture(scope="session")
def carl(lab: Lab) -> Guest:
    """The third one."""
    return lab.guests[2]
