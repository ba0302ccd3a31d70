"""Others use the directory, and files change while no manager is there: the models are the same.

What happens, and when, follows from a seed, which the test's name tells.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.chaos.company import Company, Expected, expected_in
from tests.chaos.stage import happen_until_done

if TYPE_CHECKING:
    from pathlib import Path

SEEDS = range(1)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Expected:
    """What comes of the specs where nothing happens, and what another cluster has left."""
    return expected_in(tmp_path_factory.mktemp("expected"))


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", SEEDS)
def test_in_whatever_company_every_model_is_the_same(
    seed: int, tmp_path: Path, expected: Expected
) -> None:
    """No retry is burned, nobody's experiment is taken, and what was copied in stays as it is."""
    with closing(Company(tmp_path / "shared", seed, expected)) as stage:
        client = stage.begin()
        said = happen_until_done(stage, client, times=4)
        assert client.returncode == 0, (stage.story, said)
        assert stage.wrong() == "", stage.story
