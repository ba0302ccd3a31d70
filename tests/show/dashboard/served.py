"""A page that is really served, on a free port, and what a browser or a program asks of it."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from downpour.experiments.page_server.server import PageServer, serve
from downpour.network.rpc.server import listen
from downpour.network.rpc.trust import OPEN, Trust

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Page:
    """A page that is served."""

    port: int
    server: PageServer
    tls: ssl.SSLContext | None = None

    def connect(self) -> http.client.HTTPConnection:
        """Connect, as a browser does."""
        if self.tls is not None:
            return http.client.HTTPSConnection(HERE, self.port, context=self.tls, timeout=100)
        return http.client.HTTPConnection(HERE, self.port, timeout=100)

    def ask(
        self, path: str, headers: Mapping[str, str] | None = None, *, form: str | None = None
    ) -> Answer:
        """Get a path, or send a form to it."""
        connection = self.connect()
        sent = {**(headers or {}), **({"content-type": _FORM} if form is not None else {})}
        connection.request("GET" if form is None else "POST", path, form, sent)
        response = connection.getresponse()
        answer = Answer(response.status, response.headers, response.read())
        connection.close()
        return answer

    @contextmanager
    def events(
        self, experiment: str, after: int = 0, headers: Mapping[str, str] | None = None
    ) -> Iterator[Iterator[tuple[str, Any]]]:
        """Yield the events of an experiment, as (name, data), while the block reads them."""
        connection = self.connect()
        path = f"/api/experiments/{experiment}/events?after={after}"
        connection.request("GET", path, headers=dict(headers or {}))
        response = connection.getresponse()
        assert response.status == 200, response.read()
        try:
            yield _events(response)
        finally:
            response.close()
            connection.close()


_FORM = "application/x-www-form-urlencoded"


@contextmanager
def served(
    location: Path | str, trust: Trust = OPEN, tls: ssl.SSLContext | None = None
) -> Iterator[Page]:
    """Serve a folder while the block runs."""
    ready = SimpleQueue[PageServer]()
    listener = listen(HERE, 0, trust)
    thread = Thread(target=serve, args=(str(location), listener, trust, HERE, ready.put))
    thread.start()
    server = ready.get(timeout=100)
    try:
        yield Page(listener.getsockname()[1], server, tls)
    finally:
        server.leave()
        thread.join(timeout=100)
        listener.close()
        assert not thread.is_alive()


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    fields: dict[str, str] = {}
    while line := response.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif "event" in fields:
            data = json.loads(fields["data"])
            assert fields.get("id") == (str(data["seq"]) if fields["event"] == "frame" else None)
            yield fields["event"], data
            fields = {}
