"""Labs for the tests of this folder; skipped with the reason where there can be none."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.lab.lab import Lab, Shared, why_not

MakeLab = Callable[..., Lab]
"""Is given a profile and how many hosts; also what they share, which is nothing by default."""


@pytest.fixture
def make_lab() -> Iterator[MakeLab]:
    """Start labs, which end with the test."""
    with ExitStack() as ending:

        def make(profile: str, hosts: int, shared: Shared = "nothing") -> Lab:
            if reason := why_not(shared):
                pytest.skip(reason)
            return ending.enter_context(Lab(profile, hosts=hosts, shared=shared))

        yield make
