"""The Prometheus endpoint of a process: any client that can reach it can read the metrics.

Each scrape calls the source in its connection's thread; if that raises an exception, only the
scrape fails. The endpoint listens on the interface of the process's service, and under TLS if the
service does. It cannot ask for a token, because Prometheus knows none of our proofs
(`docs/how-to/security.md`). So it serves a few connections at a time, each for one request of a few
kilobytes, and drops a connection at its deadline, however slowly its bytes come.
"""

from __future__ import annotations

import io
import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from socketserver import TCPServer, ThreadingMixIn
from threading import BoundedSemaphore, Thread
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from downpour.base import VERSION
from downpour.host.process import lacks_descriptors
from downpour.network.rpc import Address, Trust

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 10.0
"""How long a connection may take in total."""

_CONNECTIONS_MAX = 8
"""Prometheus needs one; we close further connections."""

_FULL_PAUSE_SECONDS = 0.1

_REQUEST_BYTES_MAX = 8192
"""The limit for a request line and its headers; Prometheus sends a few hundred bytes."""

Metrics = Iterator["Metric"]
Source = Callable[[], "Iterable[Metric]"]
Numbers = Mapping[str, float] | Mapping[tuple[str, str], float]
"""Numbers by their labels' values; a single label needs no tuple."""


@dataclass(slots=True)
class Timing:
    """How often something happened, and how many seconds it took in total and the last time."""

    count: int = 0
    total_seconds: float = 0.0
    last_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self.count += 1
        self.total_seconds += seconds
        self.last_seconds = seconds


def gauge(name: str, help_text: str, value: float | Numbers, *labels: str) -> Metric:
    """Make a gauge; with labels, it has a number for each of their values."""
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, help_text, labels=labels), value)


def counter(name: str, help_text: str, value: float | Numbers, *labels: str) -> Metric:
    """Make a counter, as `gauge` makes a gauge; its name ends in `_total`."""
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, help_text, labels=labels), value)


def summary(name: str, help_text: str, timing: Timing) -> Metric:
    """Make a summary without quantiles: `_count` and `_sum`, whose rates give the mean."""
    from prometheus_client.core import SummaryMetricFamily

    return SummaryMetricFamily(name, help_text, timing.count, timing.total_seconds)


def _filled(family: GaugeMetricFamily | CounterMetricFamily, value: float | Numbers) -> Metric:
    for labelled, number in (value if isinstance(value, Mapping) else {(): value}).items():
        family.add_metric([labelled] if isinstance(labelled, str) else list(labelled), number)
    return family


class MetricsEndpoint:
    """Serves metrics over HTTP, once you start it.

    Besides the source's metrics it serves the version, the uptime in seconds, and (on Linux) the
    system's data on the process. The `listener` listens on the address of the service
    (`rpc.listen`). The endpoint uses the certificates of the service's `trust`.
    """

    def __init__(self, source: Source, listener: socket.socket, trust: Trust) -> None:
        from prometheus_client import MetricsHandler, ProcessCollector

        registry = _registry(source)
        ProcessCollector(registry=registry)
        handler = MetricsHandler.factory(registry)
        address = Address(*listener.getsockname()[:2])
        self.url = f"{'https' if trust.serving else 'http'}://{address}/metrics"
        if trust.serving:
            # The connection's thread does the handshake, so that a slow client delays no other.
            listener = trust.serving.wrap_socket(
                listener, server_side=True, do_handshake_on_connect=False
            )
        self._server = _Server(listener, _frugal(handler))
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> Self:
        """Serve in a thread, and return at once."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Accept no more connections, but finish the answers in progress."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


def _registry(source: Source) -> CollectorRegistry:
    """Return a registry that asks the source at each scrape, also for some names (`?name[]=`)."""
    from prometheus_client import CollectorRegistry

    began_at = time.monotonic()

    class Registry(CollectorRegistry):
        def collect(self) -> Iterator[Metric]:
            yield from super().collect()
            yield gauge("downpour_build_info", "The version, as a label.", {VERSION: 1}, "version")
            help_text = "Seconds since this process began to serve."
            yield gauge("downpour_uptime_seconds", help_text, time.monotonic() - began_at)
            yield from source()

        def restricted_registry(self, names: Iterable[str]) -> Any:
            return SimpleNamespace(collect=partial(_named, self, frozenset(names)))

    return Registry()


def _named(registry: CollectorRegistry, names: frozenset[str]) -> Iterator[Metric]:
    """Yield the samples of some names, or of families with these names."""
    for metric in registry.collect():
        named = copy(metric)
        if metric.name not in names:
            named.samples = [sample for sample in metric.samples if sample.name in names]
        if named.samples:
            yield named


class _Sparing(io.RawIOBase):
    """Reads one request of limited size from a connection, until a deadline."""

    def __init__(self, connection: socket.socket, ends_at: float) -> None:
        self._connection = connection
        self._ends_at = ends_at
        self._left = _REQUEST_BYTES_MAX

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left_seconds = self._ends_at - time.monotonic()
        if left_seconds <= 0:
            raise TimeoutError("sent its request too slowly")
        self._connection.settimeout(left_seconds)
        count = self._connection.recv_into(buffer, min(len(buffer), self._left))
        self._left -= count
        return count  # at the limit it is 0, which means the end of the request


def _frugal(handler: Any) -> Any:
    """Return a handler that takes one small request for each connection, with a deadline."""
    from prometheus_client import CONTENT_TYPE_LATEST

    class Frugal(handler):  # type: ignore[misc]
        timeout = _PATIENCE_SECONDS
        wbufsize = -1

        def setup(self) -> None:
            super().setup()
            ends_at = time.monotonic() + _PATIENCE_SECONDS
            self.rfile = io.BufferedReader(_Sparing(self.connection, ends_at), 1024)

        def handle(self) -> None:
            self.handle_one_request()

        def do_GET(self) -> None:  # noqa: N802 - of the library
            if urlsplit(self.path).path == "/metrics":
                super().do_GET()
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:  # noqa: N802 - of the library
            """Answer as to GET, without the body."""
            if urlsplit(self.path).path == "/metrics":
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE_LATEST)
                self.end_headers()
            else:
                self.send_error(404)

    return Frugal


class _Server(ThreadingMixIn, TCPServer):
    """Answers a few connections at a time, each in a thread, over a socket that listens already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, handler: Any) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._free = BoundedSemaphore(_CONNECTIONS_MAX)

    def get_request(self) -> Any:
        """Accept a connection; if no descriptor is left, pause, because this fails at once."""
        try:
            return super().get_request()
        except OSError as error:
            if lacks_descriptors(error):
                time.sleep(_FULL_PAUSE_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, unless too many are open."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, then allow another one."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log the failure of a connection in one line."""
        del request
        log.info("metrics for %s: %s", client_address[0], sys.exception())
