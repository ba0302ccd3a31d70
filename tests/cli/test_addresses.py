"""Every command calls the manager that its user means, beside another at the usual port."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.addresses import matrix, why_not
from tests.files.objects import lab

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "which-cluster.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_reaches_the_cluster_that_is_meant() -> None:
    """Real processes, beside an unrelated cluster; the page shows what they did."""
    if reason := why_not() or lab.why_not():
        pytest.skip(reason)
    made = matrix()
    assert made in PAGE.read_text("utf-8"), f"write it anew: python -m tests.cli.addresses\n{made}"
