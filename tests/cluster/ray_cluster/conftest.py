"""A Ray cluster of two nodes on this machine, of the tests' own."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

_MEMORY_BYTES = 100_000_000
NEVER = {"health_check_failure_threshold": 1_000_000}
SOON = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 1000}
"""When Ray learns that a node is dead."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """A head with two processors and rack=first, and a node with three, which is chosen first."""

    cluster: Any
    second: Any

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def restart_head(self) -> None:
        """Kill the head with all that runs on it, and start one at its address."""
        port = int(self.address.rpartition(":")[2])
        self.cluster.remove_node(self.cluster.head_node, allow_graceful=False)
        self.cluster.add_node(num_cpus=2, object_store_memory=_MEMORY_BYTES, gcs_server_port=port)

    def kill_second(self) -> None:
        """Kill the second node with all that runs on it."""
        self.cluster.remove_node(self.second, allow_graceful=False)

    @property
    def workers(self) -> list[psutil.Process]:
        """The workers' processes on the head, which are children of its raylet's."""
        raylet = psutil.Process(self.cluster.head_node.all_processes["raylet"][0].process.pid)
        return [one for one in raylet.children(recursive=True) if "worker" in _words(one)]

    @property
    def alive(self) -> int:
        """How many nodes are alive as far as Ray knows; takes a driver that is connected."""
        import ray

        nodes = ray.nodes()  # type: ignore[no-untyped-call]
        return sum(node["Alive"] for node in nodes)


def _words(process: psutil.Process) -> list[str]:
    """Return what a process was told after the name of our program; none if it is another's."""
    with suppress(psutil.NoSuchProcess):
        words = process.cmdline()
        return words[3:] if words[1:3] == ["-m", "downpour"] else []
    return []


@contextmanager
def started(settings: Mapping[str, int]) -> Iterator[Nodes]:
    """Start two nodes, with some of Ray's own settings; stop them at the end."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    head: dict[str, Any] = {"num_cpus": 2, "object_store_memory": _MEMORY_BYTES}
    head["_system_config"] = dict(settings)
    head["labels"] = {"rack": "first"}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_AUTH_MODE", "disabled")  # its token would be a file of the user's
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield Nodes(cluster, cluster.add_node(num_cpus=3, object_store_memory=_MEMORY_BYTES))
        finally:
            cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Nodes]:
    """Nodes of a test that may kill them, with Ray's own settings as the parameter."""
    with started(getattr(request, "param", {})) as made:
        yield made


@pytest.fixture(scope="module")
def lasting_nodes() -> Iterator[Nodes]:
    """Nodes of all tests of a file that leave them as they are: Ray starts a dozen processes."""
    with started({}) as made:
        yield made
