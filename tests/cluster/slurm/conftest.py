"""One Slurm for all tests of this folder; where it cannot be had, they are skipped and say why."""

from collections.abc import Iterator

import pytest

from tests.cluster.slurm.lab import Lab, why_not


@pytest.fixture(scope="session")
def slurm() -> Iterator[Lab]:
    """A cluster of three nodes."""
    if reason := why_not():
        pytest.skip(reason)
    lab = Lab()
    with pytest.MonkeyPatch.context() as patch:
        try:
            lab.up()
            for name, value in lab.environment.items():
                patch.setenv(name, value)
            yield lab
        finally:
            lab.down()
