"""The Prometheus endpoint by itself: what it binds, whom it answers, how it takes trouble."""

from __future__ import annotations

import gc
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from downpour.base import VERSION
from downpour.base.errors import Refused
from downpour.cluster.certificates import issue
from downpour.host.paths import Credentials
from downpour.network import metrics
from downpour.network.metrics import MetricsEndpoint, Source, Timing, counter, gauge, summary
from downpour.network.rpc import Trust, listen
from downpour.network.rpc.trust import OPEN

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

PATIENCE_SECONDS = 10


def some() -> Iterator[Metric]:
    """Give a metric of each kind."""
    took = Timing()
    took.add(1.0)
    took.add(2.5)
    yield gauge("downpour_level", "How high it stands.", 0.5)
    yield counter("downpour_ends_total", "Ends, by kind.", {"good": 2, "bad": 0}, "kind")
    yield summary("downpour_wait_seconds", "Waiting.", took)


def endpoint_at(source: Source, host: str, port: int, trust: Trust) -> MetricsEndpoint:
    """Return an endpoint at a port, as a manager makes it."""
    return MetricsEndpoint(source, listen(host, port, trust, "metrics_port"), trust)


@contextmanager
def serving(
    source: Callable[[], Iterator[Metric]] = some, host: str = "127.0.0.1", trust: Trust = OPEN
) -> Iterator[str]:
    """Serve a source at a free port; gives the URL."""
    endpoint = endpoint_at(source, host, 0, trust).start()
    yield endpoint.url
    endpoint.close()


def scraped(url: str, context: ssl.SSLContext | None = None) -> dict[tuple[str, ...], float]:
    """Fetch and parse; returns each sample by its name and the values of its labels."""
    with urlopen(url, timeout=PATIENCE_SECONDS, context=context) as answer:  # noqa: S310
        text = answer.read().decode()
    samples = (s for family in text_string_to_metric_families(text) for s in family.samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_every_kind_of_metric_arrives() -> None:
    """And beside the source's, the version and how long the process has served."""
    with serving() as url:
        assert url.startswith("http://127.0.0.1:")
        assert url.endswith("/metrics")
        told = scraped(url)
    assert told["downpour_level",] == 0.5
    assert told["downpour_ends_total", "good"] == 2
    assert told["downpour_ends_total", "bad"] == 0
    assert (told["downpour_wait_seconds_count",], told["downpour_wait_seconds_sum",]) == (2, 3.5)
    assert told["downpour_build_info", VERSION] == 1
    assert told["downpour_uptime_seconds",] >= 0


def test_ipv6_is_served_too() -> None:
    """Wherever the service listens."""
    with serving(host="::1") as url:
        assert url.startswith("http://[::1]:")
        assert scraped(url)["downpour_level",] == 0.5


def test_a_source_that_fails_costs_the_scrape_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """As when the manager is stopping; nothing is printed, and the next scrape is answered."""
    troubles = [Refused("manager", "is stopping", busy=True)]

    def failing() -> Iterator[Metric]:
        if troubles:
            raise troubles.pop()
        yield from some()

    with serving(failing) as url:
        with pytest.raises((URLError, ConnectionError)):
            scraped(url)
        assert scraped(url)["downpour_level",] == 0.5
    assert capsys.readouterr() == ("", "")


def test_a_silent_client_delays_no_other() -> None:
    """Neither the next scrape nor the end."""
    with serving() as url:
        host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")
        with socket.create_connection((host, int(port))) as silent:
            assert scraped(url)["downpour_level",] == 0.5
            silent.shutdown(socket.SHUT_RDWR)


def test_a_request_has_a_few_kilobytes_and_not_more() -> None:
    """Longer headers than anybody needs are not read: the connection ends without an answer."""
    with serving() as url, connected(url) as stranger:
        with suppress(ConnectionError):
            stranger.sendall(b"GET /metrics HTTP/1.1\r\n")
            for number in range(60):
                stranger.sendall(b"X-%d: %s\r\n" % (number, b"x" * 300))
            stranger.sendall(b"\r\n")
        assert b"downpour_level" not in rest_of(stranger)
        assert scraped(url)


def test_a_request_that_comes_a_byte_at_a_time_ends_at_its_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each byte would be in time, and all of them together are not."""
    monkeypatch.setattr(metrics, "_PATIENCE_SECONDS", 0.3)
    with serving() as url, connected(url) as stranger, suppress(ConnectionError):
        while True:
            stranger.sendall(b"G")
            stranger.settimeout(0.05)
            with suppress(TimeoutError):
                assert stranger.recv(1) == b""
                break


def test_only_a_few_are_served_at_a_time() -> None:
    """Who comes when all places are taken is hung up on; a place that is left is free again."""
    with serving() as url:
        strangers = [connected(url) for _ in range(metrics._CONNECTIONS_MAX)]
        with connected(url) as one_more:
            assert not rest_of(one_more)
        for stranger in strangers:
            stranger.close()
        while True:
            with suppress(OSError):
                assert scraped(url)
                break


def connected(url: str) -> socket.socket:
    """Connect to an endpoint, and say nothing yet."""
    host, _, port = url.removeprefix("http://").removesuffix("/metrics").rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def rest_of(stranger: socket.socket) -> bytes:
    """Return what the other side still says before it hangs up."""
    said = b""
    with suppress(ConnectionError):
        while part := stranger.recv(65536):
            said += part
    return said


def test_an_endpoint_that_never_started_leaves_nothing_open() -> None:
    """As when the service beside it could not begin."""
    endpoint = endpoint_at(some, "127.0.0.1", 0, OPEN)
    port = int(endpoint.url.removesuffix("/metrics").rpartition(":")[2])
    endpoint.close()
    del endpoint
    gc.collect()  # would warn of a socket left open
    endpoint_at(some, "127.0.0.1", port, OPEN).close()


def test_the_endpoint_demands_the_certificates_of_its_service(tmp_path: Path) -> None:
    """A member's is accepted; without one nothing can be read, and who is silent waits alone."""
    issue(["127.0.0.1"], tmp_path, days=2)
    cert, key, ca = (tmp_path / name for name in ("127.0.0.1.pem", "127.0.0.1-key.pem", "ca.pem"))
    trust = Trust.load(Credentials(tls_cert=str(cert), tls_key=str(key), tls_ca=str(ca)))
    stranger = ssl.create_default_context(cafile=str(ca))
    with serving(trust=trust) as url:
        port = int(url.removesuffix("/metrics").rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)):
            assert url.startswith("https://")
            assert scraped(url, trust.calling)["downpour_level",] == 0.5
            with pytest.raises((URLError, OSError)):
                scraped(url, stranger)


def test_head_other_paths_and_names_are_answered_as_prometheus_expects() -> None:
    """HEAD has no body, other paths are not found, and `name[]` restricts what is collected."""
    with serving() as url:
        host, port = url.removeprefix("http://").removesuffix("/metrics").split(":")

        def asked(method: str, path: str) -> tuple[int, bytes]:
            connection = HTTPConnection(host, int(port), timeout=PATIENCE_SECONDS)
            connection.request(method, path)
            answer = connection.getresponse()
            found = answer.status, answer.read()
            connection.close()
            return found

        assert asked("HEAD", "/metrics") == (200, b"")
        assert [asked(method, "/")[0] for method in ("GET", "HEAD")] == [404, 404]
        status, body = asked("GET", "/metrics?name[]=downpour_level&name[]=downpour_uptime_seconds")
        kept = {line.split(b" ")[0] for line in body.splitlines() if line[:1] != b"#"}
        assert (status, kept) == (200, {b"downpour_level", b"downpour_uptime_seconds"})
