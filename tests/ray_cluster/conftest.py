"""A Ray cluster of two nodes on this machine, of the tests' own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed")

from ray.cluster_utils import Cluster as RayNodes

_MEMORY_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class Nodes:
    """A head with two processors, and a second node with one."""

    cluster: RayNodes
    second: Any

    @property
    def address(self) -> str:
        """Where drivers connect."""
        return str(self.cluster.address)

    def kill_second(self) -> None:
        """Kill the second node with all that runs on it."""
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Start two nodes; stop them at the end."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # its token would be a file of the user's
    head = {"num_cpus": 2, "object_store_memory": _MEMORY_BYTES}
    cluster = RayNodes(initialize_head=True, head_node_args=head)
    try:
        yield Nodes(cluster, cluster.add_node(num_cpus=1, object_store_memory=_MEMORY_BYTES))
    finally:
        cluster.shutdown()  # type: ignore[no-untyped-call]
