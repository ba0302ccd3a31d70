"""A server that plays made frames to the page, with the routes and headers of the real one."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import downpour
from downpour.show.figures.style import DARK, LIGHT, variables

PAGE = Path(downpour.__file__).parent / "show" / "dashboard" / "page"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html; charset=utf-8"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_THEME = (
    f":root {{ {variables(LIGHT)} }} "
    f"@media (prefers-color-scheme: dark) {{ :root {{ {variables(DARK)} }} }}"
)
Frames = list[dict[str, Any]]


@dataclass(slots=True)
class Playbook:
    """What the server answers, beyond its death; `asked` are the `after` of streams opened."""

    frames: dict[str, Frames] = field(default_factory=dict)
    tasks: dict[str, list[list[Any]]] = field(default_factory=dict)
    splits: dict[str, Any] = field(default_factory=dict)
    studies: dict[str, dict[str, Any]] = field(default_factory=dict)
    asked: list[int] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def append(self, experiment: str, frame: dict[str, Any]) -> None:
        """Add a frame to an experiment; every stream gets it."""
        with self.changed:
            self.frames[experiment].append(frame)
            self.changed.notify_all()

    def listed(self) -> list[dict[str, Any]]:
        """Describe the experiments as the list does."""
        found = []
        for name, frames in self.frames.items():
            told = frames[0]["experiment"]
            running = told["state"] == "running"
            rows = [row for frame in frames for row in frame.get("rounds", [])]
            done = len({row[0] for row in rows if row[2] is not None})
            found.append({
                "id": name, "name": told["name"], "state": told["state"], "rounds_done": done,
                "rounds": told["rounds"],
                "measure": {"words": "test accuracy", "text": "93.1 %"}, "running": running,
                "changed_at": frames[-1]["clock"],
            })  # fmt: skip
        return found


class PlayedServer:
    """Serves the page and a playbook on loopback until it is closed."""

    def __init__(self, playbook: Playbook, port: int = 0) -> None:
        self._open = True
        self._server = _Server(playbook, port, lambda: self._open)
        self.port: int = self._server.server_address[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        """End the server and every stream, as a kill does."""
        self._open = False
        with self._server.playbook.changed:
            self._server.playbook.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True

    def __init__(self, playbook: Playbook, port: int, is_open: Any) -> None:
        self.playbook = playbook
        self.is_open = is_open
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of browsers that hang up."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Keep the tests' output clean."""

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        names = [unquote(name) for name in parts.path.split("/")[1:]]
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if names[0] == "api":
            self._api(names[1:], query)
        elif parts.path == "/theme.css":
            self._send(_THEME.encode(), "text/css")
        else:
            self._file(PAGE / ("index.html" if parts.path == "/" else "/".join(names[1:])))

    def _file(self, path: Path) -> None:
        if path.is_file():
            self._send(path.read_bytes(), _TYPES[path.suffix])
        else:
            self.send_error(404)

    def _api(self, names: list[str], query: dict[str, str]) -> None:
        book = self.server.playbook
        match names:
            case ["experiments"]:
                listed, studies = book.listed(), list(book.studies)
                self._json({"experiments": listed, "studies": studies, "next": None})
            case ["studies", name] if name in book.studies:
                self._json(book.studies[name])
            case ["experiments", name, "events"] if name in book.frames:
                self._stream(book, name, int(query.get("after", 0)))
            case ["experiments", name, "frame"] if name in book.frames:
                after = int(query.get("after", 0))
                later = [frame for frame in book.frames[name] if frame["seq"] > after]
                self._json(later[0] if later else {"seq": after})
            case ["experiments", _, "tasks", number, shard] if f"{number}/{shard}" in book.tasks:
                self._json({"lines": book.tasks[f"{number}/{shard}"]})
            case ["experiments", name, "splits"] if name in book.splits:
                self._json(book.splits[name])
            case _:
                self.send_error(404)

    def _stream(self, book: Playbook, name: str, after: int) -> None:
        book.asked.append(after)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        while self.server.is_open():
            with book.changed:
                later = [frame for frame in book.frames[name] if frame["seq"] > after]
                if not later:
                    book.changed.wait(0.5)
                    continue
            for frame in later:
                text = f"event: frame\nid: {frame['seq']}\ndata: {json.dumps(frame)}\n\n"
                self.wfile.write(text.encode())
                after = frame["seq"]
            self.wfile.flush()

    def _json(self, value: Any) -> None:
        self._send(json.dumps(value).encode(), "application/json")

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(content)
