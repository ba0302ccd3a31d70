"""What a node's death looks like to a watcher that is connected to its raylet."""

from collections.abc import Iterator
from socket import create_server, socket
from threading import Event
from typing import Any

import pytest

from downpour.cluster.launchers.ray_nodes import NodeWatch


@pytest.fixture
def raylet() -> Iterator[socket]:
    """What listens where a raylet would."""
    with create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def watch() -> Iterator[NodeWatch]:
    """A watch, closed at the end."""
    made = NodeWatch()
    yield made
    made.close()


def node(name: str, server: socket) -> dict[str, Any]:
    """Describe a node as Ray does."""
    host, port = server.getsockname()
    return {"NodeID": name, "NodeManagerAddress": host, "NodeManagerPort": port}


def test_a_raylet_that_ends_is_a_node_that_is_gone(raylet: socket, watch: NodeWatch) -> None:
    """It is told once as news, and remembered."""
    watch.watch([node("a", raylet)])
    line, _ = raylet.accept()
    line.sendall(b"what a raylet says to greet")
    assert watch.look() == set()
    raylet.close()
    line.close()
    while not (gone := watch.look()):
        Event().wait(0.01)
    assert gone == watch.gone == watch.watched == {"a"}
    assert watch.look() == set()


def test_a_raylet_that_ends_a_connection_only_is_still_there(
    raylet: socket, watch: NodeWatch
) -> None:
    """It may do so to whoever says nothing, and is connected to again."""
    watch.watch([node("a", raylet)])
    raylet.accept()[0].close()
    raylet.settimeout(0.01)
    again = None
    while again is None:
        assert watch.look() == set()
        try:
            again, _ = raylet.accept()
        except TimeoutError:
            continue
    again.close()
    assert not watch.gone


def test_a_node_that_cannot_be_reached_is_left_to_ray(raylet: socket, watch: NodeWatch) -> None:
    """What was never seen there cannot be missed: a firewall may be in between."""
    unreachable = node("a", raylet)
    raylet.close()
    watch.watch([unreachable])
    assert watch.look() == set()
    assert not watch.gone
