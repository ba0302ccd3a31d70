"""An S3 server on loopback, in a process of its own: `moto`, which keeps objects in memory.

It honours the conditions of writes. `ForgetfulS3` is another one that does not, as some do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Self
from urllib.error import URLError

if TYPE_CHECKING:
    from obstore.store import S3Store

_START_SECONDS = 60.0


def why_not() -> str:
    """Say in one line why there can be no such server here; empty if there can."""
    missing = [name for name in ("obstore", "moto", "flask") if find_spec(name) is None]
    return f"needs {', '.join(missing)}: pip install downpour-sgd[dev]" if missing else ""


class S3Server:
    """A server with no bucket, from `with` to its end."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.endpoint = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        began = time.monotonic()
        while not self._answers():
            waited = time.monotonic() - began
            assert self._process.poll() is None, self._log.read_text()
            assert waited < _START_SECONDS, self._log.read_text()
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.endpoint)

    @property
    def process_environment(self) -> dict[str, str]:
        """The environment of a process that finds it."""
        return {**os.environ, **self.environment}

    def make_bucket(self, name: str) -> None:
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")  # noqa: S310
        urllib.request.urlopen(request).close()  # noqa: S310 - loopback

    def objects(self, bucket: str, prefix: str) -> S3Store:
        """Return another program's view of a place in a bucket."""
        from obstore.store import S3Store

        return S3Store(
            bucket,
            prefix=prefix,
            endpoint=self.endpoint,
            access_key_id="tests",
            secret_access_key="tests",
            region="us-east-1",
            client_options={"allow_http": True},
        )

    def _answers(self) -> bool:
        """Whether it serves; the port is the one that it says it has."""
        said = self._log.read_text().partition("Running on ")[2].split()
        if not said:
            return False
        self.endpoint = said[0]
        try:
            urllib.request.urlopen(self.endpoint).close()  # noqa: S310 - loopback
        except URLError:
            return False
        return True


def environment(endpoint: str) -> dict[str, str]:
    """Return the variables by which S3 clients find a server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "tests",
        "AWS_REGION": "us-east-1",
    }


class Answering(BaseHTTPRequestHandler):
    """Answers as an object store does, and says nothing of it."""

    protocol_version = "HTTP/1.1"

    def answer(self, status: int, content: bytes = b"", about: Mapping[str, str] = {}) -> None:
        """Answer with an object's content, and what is told of it."""
        self.send_response(status)
        told = {"ETag": '"e"', "Last-Modified": "Sun, 22 Nov 2026 12:00:00 GMT", **about}
        for name, value in {"Content-Length": str(len(content)), **told}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class ServedHere:
    """A server in a thread of this process, from `with` to its end."""

    def __init__(self, handler: type[Answering]) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class ForgetfulS3(ServedHere):
    """A server that takes every object, whatever the conditions, or answers with one status."""

    def __init__(self, status: int = 200, code: str = "") -> None:
        held: dict[str, bytes] = {}

        class Handler(Answering):
            def do_PUT(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                if status == 200:
                    held[self.path] = content
                self._answer(status)

            def do_GET(self) -> None:
                found = held.get(self.path)
                self._answer(status if found is not None or status != 200 else 404, found or b"")

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self._answer(status, b"<DeleteResult></DeleteResult>")

            def _answer(self, status: int, content: bytes = b"") -> None:
                if status >= 400:
                    content = f"<Error><Code>{code or 'NoSuchKey'}</Code></Error>".encode()
                self.answer(status, content)

        super().__init__(Handler)


class MoodyS3(ServedHere):
    """A server that honours conditions, but refuses or forgets to answer some of its requests.

    Args:
        refusals: how many creations are refused although no such object exists.
        status: what these are refused with: 412, or 409, which S3 documents.
        losses: how many creations are carried out and never answered.
        seconds: how long a creation takes.
    """

    def __init__(
        self, *, refusals: int = 0, status: int = 412, losses: int = 0, seconds: float = 0.0
    ) -> None:
        held: dict[str, tuple[bytes, dict[str, str]]] = {}
        left = {"refusals": refusals, "losses": losses}

        def still(what: str) -> bool:
            left[what] -= 1
            return left[what] >= 0

        class Handler(Answering):
            def do_PUT(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(seconds)
                if self.path in held:
                    self.answer(412)
                elif still("refusals"):
                    self.answer(status)
                else:
                    about = {n: v for n, v in self.headers.items() if n.startswith("x-amz-meta-")}
                    held[self.path] = content, about
                    if still("losses"):
                        self.close_connection = True
                    else:
                        self.answer(200)

            def do_GET(self) -> None:
                content, about = held.get(self.path, (b"", {}))
                self.answer(200 if self.path in held else 404, content, about)

        super().__init__(Handler)
