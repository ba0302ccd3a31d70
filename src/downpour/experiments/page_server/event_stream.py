"""Server-sent events: compressed once for all viewers, never more than a viewer can take.

If a viewer does not take a chunk in time, we end its connection. The browser then reconnects, and
says which line it knows.
"""

from __future__ import annotations

import asyncio
import math
import re
import struct
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from downpour.base.errors import SpecError
from downpour.files.log_places import LEVELS, level_of
from downpour.record.stored_experiments import LogFilter, span_until, submission_seconds

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


SEND_SECONDS = 30.0
"""A viewer that takes nothing for this long is gone."""
_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_LEVEL = 6


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream."""

    plain: bytes

    @cached_property
    def deflated(self) -> bytes:
        """The piece as deflate blocks that refer to nothing before them."""
        compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        return compressor.compress(self.plain) + compressor.flush(zlib.Z_SYNC_FLUSH)


PING = Chunk(b": ping\n\n")


def event(name: str, data: str, number: int | None = None) -> Chunk:
    """Return an event; `data` has no line breaks, and a browser sends back `number`."""
    known = f"id: {number}\n" if number is not None else ""
    return Chunk(f"{known}event: {name}\ndata: {data}\n\n".encode())


class Gzip:
    """Puts chunks into one gzip stream."""

    def __init__(self) -> None:
        self._checksum = 0
        self._size = 0
        self._head = _HEAD

    def add(self, chunk: Chunk) -> bytes:
        """Return the bytes of the next chunk."""
        self._checksum = zlib.crc32(chunk.plain, self._checksum)
        self._size += len(chunk.plain)
        head, self._head = self._head, b""
        return head + chunk.deflated

    def end(self) -> bytes:
        """Return the bytes with which the stream ends."""
        return b"\x03\x00" + struct.pack("<II", self._checksum, self._size & 0xFFFFFFFF)


class EventStream:
    """A response of chunks, until they end, or the viewer leaves or is too slow."""

    def __init__(self, chunks: AsyncGenerator[Chunk], *, is_zipped: bool) -> None:
        self._chunks = chunks
        self._gzip = Gzip() if is_zipped else None

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the chunks."""
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
                with suppress(asyncio.CancelledError, TimeoutError, OSError):
                    await task

    async def _send_all(self, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        if self._gzip:
            headers.append((b"content-encoding", b"gzip"))
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async with aclosing(self._chunks) as chunks:
            async for chunk in chunks:
                body = self._gzip.add(chunk) if self._gzip else chunk.plain
                sent = send({"type": "http.response.body", "body": body, "more_body": True})
                await asyncio.wait_for(sent, SEND_SECONDS)
        end = self._gzip.end() if self._gzip else b""
        await send({"type": "http.response.body", "body": end, "more_body": False})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


_CURSOR = re.compile(r"[0-9a-f]{8}\.[0-9]{1,12}", re.ASCII)
_SECONDS = re.compile(r"-?[0-9]{1,12}(\.[0-9]{1,6})?", re.ASCII)
_AROUND_SECONDS = 2.0
"""Margin: we know a submission to the second, and each host has its own clock."""


def log_query(
    asked: Mapping[str, str], about: Mapping[str, Any], exported: float
) -> tuple[str, LogFilter, LogFilter]:
    """Return the arguments of `LogFeed.page` that a URL asks for.

    Args:
        asked: the URL's parameters: `after`, `worker`, `level`, and `from` and `to` in seconds
            since the submission. All may be absent.
        about: the experiment, as its page knows it.
        exported: when the manager wrote its record, in seconds since 1970; 0 if it has not.
    """
    after = asked.get("after", "")
    if after and not _CURSOR.fullmatch(after):
        raise SpecError("after", after, "must be the value of next in the last answer")
    experiment, ended = str(about.get("id", "")), about.get("ended_at")
    begin, end = span_until(experiment, math.inf if ended is None else ended)
    span = LogFilter(begin=begin, end=max(end, exported))
    start = submission_seconds(experiment) or float(about.get("start", 0.0))
    wanted = replace(
        span,
        begin=max(begin, start + _seconds(asked, "from", -math.inf) - _AROUND_SECONDS),
        end=min(span.end, start + _seconds(asked, "to", math.inf) + _AROUND_SECONDS),
        level=level_of(asked.get("level", LEVELS[0])),
        of=asked.get("worker", ""),
    )
    return after, span, wanted


def _seconds(asked: Mapping[str, str], name: str, otherwise: float) -> float:
    given = asked.get(name, "")
    if not given:
        return otherwise
    if not _SECONDS.fullmatch(given):
        raise SpecError(name, given, "must be seconds since the submission, such as 12.5")
    return float(given)
