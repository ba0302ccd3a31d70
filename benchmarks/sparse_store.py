"""An S3 server of files that exist nowhere: any range of any of them is made when it is asked for.

It answers what a reader asks: lists, sizes and ranges. The bytes are random, the same ones whenever
they are asked for, and differ between files. Each range that was sent whole becomes a line of the
log: the client's address, the file, its first byte and the one after its last.

    python benchmarks/sparse_store.py PORT LOG FILES GIGABYTES
"""

from __future__ import annotations

import sys
import time
from functools import partial
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import numpy as np

BUCKET = "sparse"
_TEST_BYTES = 1 << 20
_POOL_BYTES = (1 << 26) + 12_345
_STEP_BYTES = 7_654_321
_DATE = "2026-01-01T00:00:00.000Z"
_DATE_HEADER = "Thu, 01 Jan 2026 00:00:00 GMT"


class Files:
    """What the server has: `tokens/train-NNNNN.bin` of a size each, and a small `test.bin`."""

    def __init__(self, count: int, size_bytes: int) -> None:
        self.sizes = {f"tokens/train-{number:05d}.bin": size_bytes for number in range(count)}
        self.sizes["tokens/test.bin"] = _TEST_BYTES
        pool = np.random.default_rng(0).bytes(_POOL_BYTES)
        self._pool = memoryview(pool + pool)
        self._offsets = {name: n * _STEP_BYTES for n, name in enumerate(self.sizes)}

    def parts(self, name: str, begin: int, end: int) -> list[memoryview]:
        """Return the bytes of a range, in pieces."""
        found = []
        while begin < end:
            place = (begin + self._offsets[name]) % _POOL_BYTES
            count = min(end - begin, _POOL_BYTES)
            found.append(self._pool[place : place + count])
            begin += count
        return found


class Answers(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def __init__(self, files: Files, log: Path, *rest: object) -> None:
        self._files, self._log = files, log
        super().__init__(*rest)  # type: ignore[arg-type]

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        """Say how large a file is."""
        self.do_GET(sends=False)

    def do_GET(self, *, sends: bool = True) -> None:
        """List the files, or send a range of one."""
        asked = urlsplit(self.path)
        name = asked.path.removeprefix(f"/{BUCKET}").strip("/")
        if not name:
            self._list(parse_qs(asked.query).get("prefix", [""])[0])
        elif name in self._files.sizes:
            self._send(name, sends=sends)
        else:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

    def _list(self, prefix: str) -> None:
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>{_DATE}</LastModified>"
            f'<ETag>"{_tag(name)}"</ETag><Size>{size}</Size></Contents>'
            for name, size in sorted(self._files.sizes.items())
            if name.startswith(prefix)
        )
        text = f"<IsTruncated>false</IsTruncated><Name>{BUCKET}</Name>{rows}"
        self._answer(200, f"<ListBucketResult>{text}</ListBucketResult>".encode())

    def _send(self, name: str, *, sends: bool) -> None:
        size = self._files.sizes[name]
        begin, end, status = 0, size, 200
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            begin, end, status = int(first), min(size, int(last) + 1 if last else size), 206
        self.send_response(status)
        if status == 206:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.send_header("ETag", f'"{_tag(name)}"')
        self.send_header("Last-Modified", _DATE_HEADER)
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if sends:
            for part in self._files.parts(name, begin, end):
                self.wfile.write(part)
            with self._log.open("a") as log:
                log.write(f"{time.time():.3f} {self.client_address[0]} {name} {begin} {end}\n")

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _tag(name: str) -> str:
    return sha256(name.encode()).hexdigest()[:32]


def main() -> None:
    """Serve until it is killed."""
    port, log, count, gigabytes = sys.argv[1:]
    files = Files(int(count), int(float(gigabytes) * 1e9 / int(count)) // 2 * 2)
    answers = partial(Answers, files, Path(log))
    ThreadingHTTPServer.daemon_threads = True
    ThreadingHTTPServer.request_queue_size = 128
    ThreadingHTTPServer(("0.0.0.0", int(port)), answers).serve_forever()  # noqa: S104


if __name__ == "__main__":
    main()
