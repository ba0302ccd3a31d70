"""The routes of the page: its files, the experiments and studies of a place, frames and logs."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from socket import socket
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from downpour.base.errors import SpecError, StoreError
from downpour.base.values import is_bare_name, small_number
from downpour.experiments.page_server import viewers
from downpour.experiments.page_server.feeds import Feeds, LogFeeds, RecordFeed
from downpour.experiments.page_server.place import (
    FoundExperiment,
    ResultsPlace,
    ends_of,
    opened,
    study_table,
)
from downpour.files.log_places import LogPlace, logs_of
from downpour.files.store.shared_directory import seen_location
from downpour.network.rpc.trust import Trust
from downpour.record.stored_experiments import exported_seconds
from downpour.show.dashboard.page_data import PAGE, theme_css

STREAMS_MAX = 64
PING_SECONDS = 15.0
LIST_ROWS = 100
_LIST_SECONDS = 0.5
"""Time for reading journals for one list; the next list reads the remaining journals."""
_SUMMARIES_MAX = 2000


class Dashboard:
    """Serves one place.

    Args:
        logs: where the place's processes keep their logs.
        refresh: called in a thread, with an experiment's ID before the server reads it, and with ""
            before a list; fetches new parts from a bucket.
    """

    def __init__(
        self,
        place: ResultsPlace,
        logs: LogPlace,
        door: viewers.Door,
        refresh: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._place = place
        self._log_feeds = LogFeeds(logs)
        self._door = door
        self._refresh = refresh
        self._feeds = Feeds(self._feed_of)
        self._summaries: dict[tuple[str, int], dict[str, Any]] = {}
        self._streams = 0
        self._is_closing = False

    def app(self) -> ASGIApp:
        """Return the application for a server to run."""
        of_one = "/api/experiments/{experiment}"
        routes = [
            Route("/", self._index),
            Route("/theme.css", self._theme),
            Mount("/assets", StaticFiles(directory=PAGE)),
            Route("/login", self._door.log_in, methods=["GET", "POST"]),
            Route("/logout", self._door.log_out, methods=["POST"]),
            Route("/api/experiments", self._experiments),
            Route("/api/studies/{study}", self._study),
            Route(f"{of_one}/events", self._events),
            Route(f"{of_one}/frame", self._frame),
            Route(f"{of_one}/tasks/{{round}}/{{shard}}", self._task),
            Route(f"{of_one}/splits", self._splits),
            Route(f"{of_one}/logs", self._logs),
        ]
        handlers: Any = {HTTPException: _refused, StoreError: _unreadable, SpecError: _unreadable}
        routed = Starlette(routes=routes, exception_handlers=handlers)
        return viewers.Guard(GZipMiddleware(routed, compresslevel=5), self._door)

    async def close(self) -> None:
        """Send viewers everything, and tell them that nothing more will come."""
        self._is_closing = True
        await self._feeds.end()

    def _feed_of(self, experiment: str) -> RecordFeed | None:
        folder = self._place.folder_of(experiment)
        if folder is None:
            return None
        return RecordFeed(folder, lambda: self._refresh(experiment), self._log_feeds.are_kept)

    async def _found(self, request: Request) -> RecordFeed:
        experiment = request.path_params["experiment"]
        await asyncio.to_thread(self._refresh, experiment)
        feed = self._feeds.of(experiment)
        if feed is None:
            raise HTTPException(404, "This folder has no such experiment.")
        return feed

    async def _index(self, _: Request) -> Response:
        return FileResponse(PAGE / "index.html", headers={"cache-control": "no-cache"})

    async def _theme(self, _: Request) -> Response:
        return PlainTextResponse(theme_css(), media_type="text/css")

    async def _experiments(self, request: Request) -> Response:
        before = request.query_params.get("before")
        await asyncio.to_thread(self._refresh, "")
        found, studies = await asyncio.to_thread(
            lambda: (self._place.experiments(), self._place.studies())
        )
        rest = [one for one in found if before is None or _cursor(one) < before]
        page = rest[:LIST_ROWS]
        deadline = time.monotonic() + _LIST_SECONDS
        rows = [row for one in page if (row := await self._summary(one, deadline)) is not None]
        is_more = len(rest) > len(page)
        has_login = self._door.token is not None
        answer = {"experiments": rows, "studies": studies, "login": has_login}
        return JSONResponse(answer | {"next": _cursor(page[-1]) if is_more else None})

    async def _summary(self, found: FoundExperiment, deadline: float) -> dict[str, Any] | None:
        """Sum up an experiment; None if it cannot be read."""
        key = found.experiment, found.changed_ns
        known = self._summaries.get(key)
        if known is not None:
            return known
        try:
            model = await asyncio.to_thread(ends_of, found.folder)
        except StoreError:
            return None
        is_all = True
        if model is None:
            feed = self._feeds.of(found.experiment)
            if feed is None:
                return None
            await feed.catch_up(deadline - time.monotonic())
            model, is_all = feed.model, feed.is_caught_up and not feed.trouble
        summary = model.summary(found.experiment, found.changed_ns / 1e9)
        if is_all:
            if len(self._summaries) >= _SUMMARIES_MAX:
                self._summaries.clear()
            self._summaries[key] = summary
        return summary

    async def _study(self, request: Request) -> Response:
        table = await asyncio.to_thread(study_table, self._place, request.path_params["study"])
        if table is None:
            raise HTTPException(404, "This folder has no such study.")
        return JSONResponse(table)

    async def _events(self, request: Request) -> ASGIApp:
        feed = await self._found(request)
        if self._streams >= STREAMS_MAX:
            said = f"{STREAMS_MAX} pages are already open; close one."
            raise HTTPException(503, said, headers={"retry-after": "10"})
        given = request.query_params.get("after") or "0"
        after = _line(request.headers.get("last-event-id") or given)
        is_zipped = "gzip" in request.headers.get("accept-encoding", "")
        return viewers.EventStream(self._chunks(feed, after), is_zipped=is_zipped)

    async def _chunks(self, feed: RecordFeed, after: int) -> AsyncGenerator[viewers.Chunk]:
        told = ""
        self._streams += 1
        try:
            with feed.viewing():
                while True:
                    changed = feed.changed
                    if feed.trouble != told:
                        told = feed.trouble
                        yield (
                            viewers.event("trouble", json.dumps({"text": told})) if told else _FINE
                        )
                    if feed.is_caught_up and after > feed.model.line:
                        after = 0  # the viewer knows another record
                    if feed.model.line > after:
                        chunk, after = feed.frame(after)
                        yield chunk
                    elif self._is_closing:
                        yield _OVER
                        return
                    elif not await _happens(changed):
                        yield viewers.PING
        finally:
            self._streams -= 1

    async def _frame(self, request: Request) -> Response:
        feed = await self._found(request)
        after = _line(request.query_params.get("after") or "0")
        await feed.catch_up(60.0)
        if not feed.model.line and feed.trouble:
            return JSONResponse({"text": feed.trouble}, status_code=503)
        after = after if after <= feed.model.line else 0
        text = feed.frame_text(after, feed.model.line)
        return Response(text, media_type="application/json")

    async def _task(self, request: Request) -> Response:
        feed = await self._found(request)
        number, shard = (small_number(request.path_params[name]) for name in ("round", "shard"))
        if number is None or shard is None:
            raise HTTPException(404, "A task has the number of a round and of a shard.")
        lines = await feed.history((number - 1, shard))
        return JSONResponse({"lines": lines})

    async def _splits(self, request: Request) -> Response:
        feed = await self._found(request)
        await feed.catch_up(_LIST_SECONDS)
        splits = feed.model.splits()
        if splits is None:
            raise HTTPException(404, "The record does not list the shards' classes.")
        return JSONResponse(splits)

    async def _logs(self, request: Request) -> Response:
        feed = await self._found(request)
        await feed.catch_up(60.0)
        query = viewers.log_query(
            request.query_params, feed.model.about(), exported_seconds(feed.folder)
        )
        page = self._log_feeds.of(request.path_params["experiment"]).page
        return JSONResponse(await asyncio.to_thread(page, *query))


_FINE = viewers.event("fine", "{}")
_OVER = viewers.event(
    "over", json.dumps({"text": "The server has stopped; the page no longer changes."})
)


async def _happens(changed: asyncio.Event) -> bool:
    """Wait for a change; return false if none came before a ping is due."""
    try:
        await asyncio.wait_for(changed.wait(), PING_SECONDS)
    except TimeoutError:
        return False
    return True


def _line(text: str) -> int:
    number = small_number(text)
    if number is None:
        raise HTTPException(400, "after must be the number of a line.")
    return number


def _cursor(found: FoundExperiment) -> str:
    return f"{found.changed_ns:020}-{found.experiment}"


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for nothing else
    return JSONResponse(
        {"text": error.detail}, status_code=error.status_code, headers=error.headers
    )


async def _unreadable(_: Request, error: Exception) -> Response:
    status = 400 if isinstance(error, SpecError) else 503
    return JSONResponse({"text": str(error)}, status_code=status)


_CLOSE_SECONDS = 5


class PageServer(uvicorn.Server):
    """A server that tells its viewers before it ends; its caller handles signals."""

    def __init__(
        self, config: uvicorn.Config, dashboard: Dashboard, ready: Callable[[PageServer], None]
    ) -> None:
        super().__init__(config)
        self._dashboard = dashboard
        self._ready = ready

    def leave(self) -> None:
        """End in order; may be called by a signal's handler and by any thread."""
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone, because uvicorn would raise them again after its end."""
        yield

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        self._ready(self)

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        """Give viewers the last lines, then close."""
        await self._dashboard.close()
        await super().shutdown(sockets)


def serve(
    location: str, listener: socket, trust: Trust, host: str, ready: Callable[[PageServer], None]
) -> None:
    """Serve a location until someone calls `leave` on the server that `ready` gets.

    The `trust` has the token and the certificates to ask for, if any. `host` is the user's name
    for the address. `ready` gets the server once it serves.
    """
    with opened(location) as (place, refresh):
        door = viewers.Door(
            token=trust.token,
            port=listener.getsockname()[1],
            is_secure=trust.serving is not None,
            names=viewers.names_here() | ({host.lower()} if is_bare_name(host) else frozenset()),
        )
        dashboard = Dashboard(place, logs_of(seen_location(location)), door, refresh)
        context = trust.serving
        if context is not None and trust.token is not None:  # then a browser needs no certificate
            context.verify_mode = ssl.CERT_NONE
        config = uvicorn.Config(
            dashboard.app(),
            http=viewers.PageConnection,
            backlog=viewers.BACKLOG,
            log_config=None,
            log_level="critical",  # a viewer that leaves in the middle of an answer is no news
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_CLOSE_SECONDS,
            ssl_context_factory=None if context is None else lambda *_: context,
        )
        server = PageServer(config, dashboard, ready)
        with asyncio.Runner(loop_factory=viewers.PageLoop) as runner:
            runner.run(server.serve(sockets=[listener]))
