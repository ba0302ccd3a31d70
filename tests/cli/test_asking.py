"""Every command calls the manager that its user means, and `downpour ping` says who answers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.base import VERSION
from downpour.network.rpc import serve_worker
from downpour.network.rpc.messages import WorkerInfo
from tests.cli.addresses import matrix, why_not
from tests.cli.conftest import Served
from tests.files.objects import lab

Refused = Callable[..., str]


class Idler:
    """A worker that says who it is."""

    def ping(self) -> WorkerInfo:
        """Say so."""
        return WorkerInfo(protocol=1, version="9.9", name="anna")

    def __getattr__(self, name: str) -> Any:
        """Offer the rest of the service, which no test here calls."""
        return None


def test_a_manager_answers(downpour: Callable[..., Any], served: Served) -> None:
    """With its version."""
    outcome = downpour("ping", served.address)
    assert (outcome.status, outcome.out) == (
        0,
        f"manager at {served.address}, downpour {VERSION}\n",
    )


def test_a_worker_answers(downpour: Callable[..., Any]) -> None:
    """With its name."""
    with serve_worker(Idler(), "127.0.0.1", 0) as server:
        outcome = downpour("ping", "--worker", server.address)
    assert (outcome.status, outcome.out) == (0, f"worker anna at {server.address}, downpour 9.9\n")


def test_a_worker_is_no_manager(downpour: Callable[..., Any], served: Served) -> None:
    """What answers is not what was asked for; one line says so."""
    outcome = downpour("ping", "--worker", served.address)
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert "does not understand ping" in outcome.err


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "which-cluster.md"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_command_reaches_the_cluster_that_is_meant() -> None:
    """Real processes, beside an unrelated cluster; the page shows what they did."""
    if reason := why_not() or lab.why_not():
        pytest.skip(reason)
    made = matrix()
    assert made in PAGE.read_text("utf-8"), f"write it anew: python -m tests.cli.addresses\n{made}"
