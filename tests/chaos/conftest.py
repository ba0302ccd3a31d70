"""A stage for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.stage import Stage


@pytest.fixture
def stage(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A stage whose seed is the test's parameter."""
    made = Stage(tmp_path, request.param)
    yield made
    made.close()
