"""One run of digits for all: two rounds of four, as a run that ended early leaves them."""

from __future__ import annotations

from pathlib import Path

import pytest

import downpour

SPEC = downpour.Spec(name="early", shards=2, epochs=2, train_limit=400, test_limit=100)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One shared directory for all, as a user would keep one."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="session")
def result(shared: Path) -> downpour.Result:
    """A run of two epochs."""
    return downpour.run(SPEC, workers=1, shared=shared, progress=False)
