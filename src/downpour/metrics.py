"""The Prometheus endpoint of a process: whoever reaches it may read what its source tells.

The source is asked at each scrape, in a thread of that connection, and reads what the process knows
anyway: nothing is counted for the endpoint's sake on the way of a shard. What it raises costs the
scrape, and nobody else anything. The endpoint listens like the service beside it; where that one
asks for TLS, so does the endpoint. A token cannot be asked for, because Prometheus knows none of
our proofs: `docs/security.md` says what that means.
"""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from socketserver import TCPServer, ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from downpour.rpc import Address, Trust, listen
from downpour.version import VERSION

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric

log = logging.getLogger(__name__)

_PATIENCE_SECONDS = 10.0
"""How long a peer may take over its request."""

Source = Callable[[], "Iterable[Metric]"]


@dataclass(slots=True)
class Timing:
    """How often something was done, and how long that took: all together, and the last time."""

    count: int = 0
    total_seconds: float = 0.0
    last_seconds: float = 0.0

    def add(self, seconds: float) -> None:
        """Take one more into account."""
        self.count += 1
        self.total_seconds += seconds
        self.last_seconds = seconds


def gauge(name: str, told: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    """Make a gauge; where it has a label, a number for each value of that."""
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(name, told, labels=_labels(label)), value)


def counter(name: str, told: str, value: float | Mapping[str, float], label: str = "") -> Metric:
    """Make a counter, as `gauge`; its name ends in `_total`."""
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(name, told, labels=_labels(label)), value)


def summary(name: str, told: str, timing: Timing) -> Metric:
    """Make a summary without quantiles: `_count` and `_sum`, whose rates give the mean."""
    from prometheus_client.core import SummaryMetricFamily

    return SummaryMetricFamily(name, told, timing.count, timing.total_seconds)


def _labels(label: str) -> list[str]:
    return [label] if label else []


def _filled(
    family: GaugeMetricFamily | CounterMetricFamily, value: float | Mapping[str, float]
) -> Metric:
    for labelled, number in (value if isinstance(value, Mapping) else {"": value}).items():
        family.add_metric([labelled] if labelled else [], number)
    return family


class MetricsEndpoint:
    """Serves metrics over HTTP; bound when made, serving once started.

    Beside those of the source it tells the version, the seconds since it was made, and what the
    system knows of the process (on Linux).

    Args:
        source: gives the metrics, as they are now; called by one thread a connection.
        host: the address on which the service listens.
        port: 0 picks a free one.
        trust: what the service asks of its peers; of this the endpoint asks for certificates.

    Raises:
        SpecError: the port is in use or not allowed.
    """

    def __init__(self, source: Source, host: str, port: int, trust: Trust) -> None:
        from prometheus_client import CollectorRegistry, MetricsHandler, ProcessCollector

        registry = CollectorRegistry()
        registry.register(_Collector(source))
        ProcessCollector(registry=registry)
        handler = MetricsHandler.factory(registry)
        handler.timeout = _PATIENCE_SECONDS  # type: ignore[attr-defined]
        listener = listen(host, port, trust, field="metrics_port")
        address = Address(*listener.getsockname()[:2])
        self.url = f"{'https' if trust.serving else 'http'}://{address}/metrics"
        if trust.serving:
            # The first words are exchanged in the connection's thread, where they hold up nobody.
            listener = trust.serving.wrap_socket(
                listener, server_side=True, do_handshake_on_connect=False
            )
        self._server = _Server(listener, handler)
        self._thread = Thread(target=self._server.serve_forever, name="metrics", daemon=True)

    def start(self) -> Self:
        """Serve in a thread, and return at once."""
        self._thread.start()
        return self

    def close(self) -> None:
        """Answer no more; what is being answered may end."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Collector:
    """What a registry asks at each scrape."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._began_at = time.monotonic()

    def collect(self) -> Iterator[Metric]:
        seconds = time.monotonic() - self._began_at
        yield gauge("downpour_build_info", "The version, as a label.", {VERSION: 1}, "version")
        yield gauge("downpour_uptime_seconds", "Since this process began to serve.", seconds)
        yield from self._source()


class _Server(ThreadingMixIn, TCPServer):
    """Answers each connection in a thread of its own, over a socket that listens already."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, handler: Any) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say in one line what came of a connection that led to nothing."""
        del request
        log.info("metrics for %s: %s", client_address[0], sys.exception())
