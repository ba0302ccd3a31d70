"""Ray's side: the code in an actor, a cluster's options, and checks that nodes can be reached."""

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Any

from downpour.base.errors import SpecError
from downpour.base.names import checked_calls
from downpour.base.options import option
from downpour.cluster.launchers import checked_place, place
from downpour.host.paths import without_credentials
from downpour.host.process import end_with_parent

_REASON_CHARACTERS = 600


class WorkerProcess:
    """A worker's process, which ends with the actor, however the actor ends.

    The worker is not a thread of the actor, because signals tell a worker to leave. Only the main
    thread gets signals, and that one belongs to Ray.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False

    def run(self, words: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
        """Run a worker by its command line; return its exit status and its last line."""
        if self._stopped:
            return 0, ""
        self._process = subprocess.Popen(  # noqa: S603 - this package's own command
            [sys.executable, "-m", "downpour", *words],
            env={**without_credentials(os.environ), **environment},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it makes one system call
        )
        last = ""
        for line in self._process.stderr or ():
            last = line.strip() or last
        return self._process.wait(), last.removeprefix("downpour: ")[:_REASON_CHARACTERS]

    def node(self) -> str:
        """Return the ID of the Ray node that this runs on."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def stop(self) -> None:
        """Tell the worker to leave."""
        self._stopped = True
        if self._process is not None:
            self._process.terminate()


@checked_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The Ray cluster, and the resources that it reserves for a worker.

    `ray_address` is HOST:PORT, `auto` (the one that runs here, or that RAY_ADDRESS names) or
    `local` (one that ends with the call). Ray has `ray_wait_seconds` to find places for the
    workers, so it has time to add machines if it scales automatically. Workers run only on nodes
    with the labels that `place` names, KEY=VALUE each.

    Raises:
        SpecError: a number is negative, or a place is invalid.
    """

    ray_address: str = option(
        "auto",
        "The Ray cluster; auto: the one that runs here, or the one that RAY_ADDRESS "
        "names; local: start one for this command.",
        "HOST:PORT|auto|local",
    )
    cpus_per_worker: float = option(1.0, "Processors that Ray reserves for a worker.", "X")
    gpus_per_worker: float = option(0.0, "Accelerators that Ray reserves for a worker.", "X")
    ray_wait_seconds: float = option(
        5.0, "How long to wait until Ray has room for the workers.", "X"
    )

    place: tuple[str, ...] = place()

    def __post_init__(self) -> None:
        """Refuse invalid options before the first request to Ray."""
        for name in ("cpus_per_worker", "gpus_per_worker", "ray_wait_seconds"):
            if not 0 <= getattr(self, name) < inf:
                raise SpecError(name, getattr(self, name), "must be a number, at least 0")
        checked_place(self.place)
        if self.place and not (self.cpus_per_worker or self.gpus_per_worker):
            # Without a reservation, Ray does not report an actor that fits on no node.
            accepted = "needs cpus_per_worker or gpus_per_worker above 0, or Ray reserves nothing"
            raise SpecError("place", self.place[0], accepted)


_CONNECT_SECONDS = 1.0
_KEEPALIVE = (
    {socket.TCP_KEEPIDLE: 1, socket.TCP_KEEPINTVL: 1, socket.TCP_KEEPCNT: 10}
    if sys.platform == "linux"
    else {}
)
"""A machine counts as gone when its kernel has not answered for 10 s; shorter cuts do no harm."""
_READ_BYTES = 65536


class NodeWatch:
    """Holds a connection to each node that the caller wants to watch.

    Ray counts missed heartbeats, and needs 15 s or more. A connection to a node's raylet ends at
    once if the raylet dies, because the kernel says so, and within seconds if the machine dies.
    """

    def __init__(self) -> None:
        self._raylets: dict[str, tuple[str, int]] = {}
        self._connections: dict[str, socket.socket] = {}
        self.gone: set[str] = set()

    @property
    def watched(self) -> set[str]:
        """The IDs of the nodes that it watches, or watched until they were gone."""
        return set(self._raylets)

    def watch(self, nodes: Iterable[dict[str, Any]]) -> None:
        """Watch further nodes, as `ray.nodes()` describes them; skips unreachable ones."""
        for node in nodes:
            name = str(node["NodeID"])
            self._raylets[name] = str(node["NodeManagerAddress"]), int(node["NodeManagerPort"])
            self._connect(name)

    def look(self) -> set[str]:
        """Return the IDs of the nodes that are gone since the last look."""
        ended = {name for name, line in self._connections.items() if _has_ended(line)}
        for name in ended:
            self._connections.pop(name).close()
            self._connect(name)  # a raylet may also end an idle connection
        gone = ended - self._connections.keys()
        self.gone |= gone
        return gone

    def close(self) -> None:
        """End all connections."""
        for line in self._connections.values():
            line.close()
        self._connections.clear()

    def _connect(self, name: str) -> None:
        with suppress(OSError):
            line = socket.create_connection(self._raylets[name], _CONNECT_SECONDS)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, number in _KEEPALIVE.items():
                line.setsockopt(socket.IPPROTO_TCP, option, number)
            line.settimeout(0.0)
            self._connections[name] = line


def _has_ended(line: socket.socket) -> bool:
    """Whether the other side has ended a connection; discards all data from it."""
    try:
        while line.recv(_READ_BYTES):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


_RAY_PORT = 6379
_FIRST_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_SOME_CLUSTER = "01" * 28
"""Ray checks the token before it sees that no cluster has this ID."""
_REFUSED = "RPC error: InvalidAuthToken: "
_FORGOTTEN = "WrongClusterID"
_PLACES = "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"


def reach(address: str) -> None:
    """Raise an error if this process cannot use the Ray cluster at an address, or at `auto`.

    If a cluster refuses the token, Ray's own `init` retries for 20 s, with a warning each second,
    and then says that it could not connect. One call of Ray's client tells us at once. That client
    is not public; with a Ray that lacks it, we wait for the answer of `init`.
    """
    if address != "auto":
        _show_token(_connect(address), found_here=False)
    elif "://" not in os.environ.get("RAY_ADDRESS", ""):  # with that, Ray asks a proxy
        found = _find()
        try:
            place = _connect(found)
        except OSError:
            reason = f"no Ray answers at {found}; `ray start --head` starts one here"
            raise ConnectionError(reason) from None
        _show_token(place, found_here=not os.environ.get("RAY_ADDRESS"))


def refuse_forgotten() -> None:
    """Raise ConnectionError if Ray's head has restarted since this process connected.

    Such a head knows none of our actors. Ray's other calls then hang, or abort the process.
    """
    import ray
    from ray.experimental.internal_kv import _internal_kv_exists

    try:
        _internal_kv_exists(b"downpour")
    except ray.exceptions.RayError as error:
        if _FORGOTTEN in str(error):
            reason = "Ray's head has restarted and lost the workers; run the command again"
            raise ConnectionError(reason) from None


def _find() -> str:
    """Return the address of the Ray that RAY_ADDRESS names, or of the only one that runs here."""
    from ray._private.services import canonicalize_bootstrap_address_or_die, find_gcs_addresses

    # Ray itself would take the cluster that started last, which may be another user's.
    found = sorted(find_gcs_addresses())  # type: ignore[no-untyped-call]
    if not os.environ.get("RAY_ADDRESS") and len(found) > 1:
        several = f"several Ray clusters run here, at {' and '.join(found)}"
        raise ConnectionError(f"{several}; name one with --ray-address")
    try:
        return str(canonicalize_bootstrap_address_or_die("auto"))
    except ConnectionError:
        raise ConnectionError("no Ray runs here; `ray start --head` starts one") from None


def _connect(address: str) -> str:
    """Return HOST:PORT of an address at which something listens."""
    from downpour.network.rpc import parse_address  # the command's help must not wait for it

    place = parse_address(address, field="ray_address", default_port=_RAY_PORT)
    socket.create_connection((place.host, place.port), _FIRST_CONNECT_SECONDS).close()
    return str(place)


def _show_token(place: str, *, found_here: bool) -> None:
    """Raise PermissionError if a cluster refuses the token that Ray would show it.

    Like Ray, show a token unasked only to a cluster that we found on this machine.
    """
    import ray

    try:
        from ray._private.authentication import authentication_token_setup as setup
        from ray._raylet import InnerGcsClient  # type: ignore[attr-defined]
    except ImportError:
        return
    try:
        if found_here:
            setup.logger.setLevel(logging.ERROR)  # its notice would appear in our output
            setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
    except ray.exceptions.RayError as error:
        raise PermissionError(_advice(error)) from None
    try:
        client = InnerGcsClient.standalone(place, _SOME_CLUSTER, round(1000 * _ANSWER_SECONDS))
        client.check_alive([], timeout=_ANSWER_SECONDS)
    except ray.exceptions.RayError as error:
        if _REFUSED in str(error):
            raise PermissionError(_advice(error)) from None


def _advice(error: Exception) -> str:
    """Return Ray's reason without its long help, and the remedy."""
    reason = str(getattr(error, "message", error)).removeprefix(_REFUSED)
    mode = os.environ.get("RAY_AUTH_MODE", "")
    set_mode = "" if mode.lower() == "token" else "set RAY_AUTH_MODE=token and "
    return f"Ray says: {reason}; {set_mode}put the cluster's token into {_PLACES}"
