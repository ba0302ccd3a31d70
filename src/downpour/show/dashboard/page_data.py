"""The data of the page: a record, followed line by line or put into one file with the page.

A `RecordSource` follows one experiment in its file or its journal. The file for reports, notebooks
and mail needs no server and no network. It has the scripts and styles of the served page, and a
Content-Security-Policy allows only these, by their hashes.
"""

import base64
import hashlib
import html
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from operator import methodcaller
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError
from downpour.files.store.directory import open_regular
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.publish import reading
from downpour.record.journal import segments
from downpour.record.record import RecordReader, is_exported
from downpour.record.record_lines import AttemptLine
from downpour.record.view import dated, to_fields
from downpour.show.dashboard.columns import Fields
from downpour.show.dashboard.model import Frame, RecordTables
from downpour.show.dashboard.results import Told, histories
from downpour.show.figures.style import DARK, LIGHT, variables

_TOGETHER = 1000
"""As many lines of a file are parsed at once."""
_END_BYTES = 1 << 16
"""The bytes at the end of a file that hold its last line, unless that is longer."""
_UNUSUAL = re.compile(rb"[0-9]{20}|[eE][+]?[0-9]{3}|NaN|Infinity")
"""Numbers that a record never has, and some rare texts; lines with any are parsed one by one."""
NOT_A_LINE: Fields = {}
"""Stands for a line that is not valid JSON, so that the other lines keep their numbers."""


class RecordSource:
    """Yields the lines that a record has gained; for one thread.

    It follows a growing journal with the segments of later terms. When a run replaces its journal
    with `record.jsonl`, which never grows, it reads the rest from that file.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._given = 0
        self._reader: RecordReader | None = None
        self._gained: Iterator[Fields] = iter(())
        self._is_whole = False
        self._broken: FileCorrupt | None = None

    def read(self, count: int) -> list[Fields]:
        """Return the next lines, `count` at most; an empty list means that none are ready."""
        if self._broken is not None:
            raise self._broken
        try:
            lines = self._read(count)
        except FileCorrupt as error:
            self._broken = error
            raise
        except SharedDirectoryError:
            # The reader may have passed lines that we did not return.
            self._reader, self._gained, self._is_whole = None, iter(()), False
            # A run removes its journal once the record exists, perhaps while we read it.
            if not is_exported(self._folder / RECORD_NAME):
                raise
            lines = self._read(count)
        self._given += len(lines)
        return lines

    def clock(self) -> tuple[str, float]:
        """Return where the record's clock begins, in seconds of unix time.

        The manager wrote the last line soon after the event in it. We return the name of the line's
        file as well, because the next manager may count from another moment.
        """
        names = [] if self._is_whole else [path.name for path in segments(self._folder)]
        name = names[-1] if names else RECORD_NAME
        with reading(self._folder, name), open(open_regular(self._folder / name), "rb") as file:
            known = os.fstat(file.fileno())
            file.seek(max(0, known.st_size - _END_BYTES))
            last = file.read(_END_BYTES).rpartition(b"\n")[0].rpartition(b"\n")[2]
        # Each line of a journal begins with its checksum.
        at = parsed_line(last[last.find(b"{") :]).get("at")
        return name, known.st_mtime - at if isinstance(at, int | float) else math.inf

    def _read(self, count: int) -> list[Fields]:
        lines = list(islice(self._gained, count))
        if not lines and not self._is_whole:
            self._gained = self._after_given()
            lines = list(islice(self._gained, count))
        return lines

    def _after_given(self) -> Iterator[Fields]:
        path, is_journaled = self._folder / RECORD_NAME, bool(segments(self._folder))
        if not (self._reader and is_journaled) and is_exported(path):
            self._is_whole = True
            return _exported_lines(path, self._given)
        if not is_journaled:
            raise FileMissing(RECORD_NAME)
        skipped = 0 if self._reader else self._given
        self._reader = self._reader or RecordReader(self._folder)
        lines = ({"at": at, **to_fields(line)} for at, line in self._reader.take())
        return islice(lines, skipped, None)


def _exported_lines(path: Path, skipped: int) -> Iterator[Fields]:
    """Yield the lines of a record's file without the first ones, and without a torn last one."""
    with reading(path.parent, path.name), open(open_regular(path), "rb") as record:
        lines = islice(filter(methodcaller("endswith", b"\n"), record), skipped, None)
        while texts := list(islice(lines, _TOGETHER)):
            yield from _parsed(texts)


def _parsed(texts: list[bytes]) -> list[Fields]:
    """Parse lines: all at once in a third of the time, or one by one if any is damaged."""
    joined = b"[%b]" % b",".join(texts)
    try:
        found: Any = [] if _UNUSUAL.search(joined) else from_json(joined)
    except ValueError:
        found = []
    # Two damaged lines may together form one value.
    whole = found if len(found) == len(texts) else map(parsed_line, texts)
    return [fields if isinstance(fields, dict) else NOT_A_LINE for fields in whole]


def parsed_line(text: bytes) -> Fields:
    """Parse one line; `NOT_A_LINE` if it is not JSON, or has numbers that JSON cannot tell on."""
    try:
        fields: Any = from_json(text, allow_inf_nan=False)
    except ValueError:
        return NOT_A_LINE
    return fields if isinstance(fields, dict) and _is_tellable(fields) else NOT_A_LINE


def _is_tellable(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_is_tellable, value.values() if isinstance(value, dict) else value))
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return not isinstance(value, float) or math.isfinite(value)


PAGE = Path(__file__).parent / "page"


def theme_css() -> str:
    """Return the style sheet; `data-theme` on the root, or else the system, chooses a theme."""
    light, dark = variables(LIGHT), variables(DARK)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}\n"
        f":root[data-theme=dark] {{ color-scheme: dark; {dark} }}\n"
        ":root[data-theme=light] { color-scheme: light; }\n"
    )


HISTORY_LINES_MAX = 20_000
"""Records with more lines come without their tasks' histories, to save a few megabytes."""
_FRAME_LINES = 6000
_BATCH_LINES = 5000
_SCRIPT = re.compile(r'<script\b[^>]*\bsrc="/?assets/([^"]+)"[^>]*></script>\n?')
_STYLE = re.compile(r'<link\b[^>]*\bhref="/?(theme\.css|assets/[^"]+\.css)"[^>]*>\n?')
_TITLE = re.compile(r"<title>.*?</title>", re.DOTALL)


def static_page(folders: Iterable[Path], title: str) -> str:
    """Return a page of experiments, from their folders, as one HTML file."""
    data: dict[str, Any] = {"experiments": [], "frames": {}, "tasks": {}, "splits": {}}
    for folder in folders:
        lines, clock = _lines_of(folder)
        model = RecordTables()
        for fields in lines:
            with suppress(ValueError):  # leave it out, as the served page does
                model.take(fields)
        if math.isfinite(clock):
            model.set_clock(clock)
        about = model.about()
        name, ended = str(about.get("id", folder.name)), about.get("start", 0.0) + model.last_at
        data["experiments"].append(model.summary(name, ended) | {"running": False})
        data["frames"][name] = _frames(model, ended)
        if len(lines) <= HISTORY_LINES_MAX:
            data["tasks"][name] = _tasks(lines, model.start)
        else:
            many = f"a record of more than {HISTORY_LINES_MAX:,} lines"
            data["left_out"] = f"{many}: histories of tasks are left out"
        splits = model.splits()
        if splits is not None:
            data["splits"][name] = splits
    return _inlined((PAGE / "index.html").read_text("utf-8"), data, title)


def _lines_of(folder: Path) -> tuple[list[Fields], float]:
    """Return the lines of a record, and its clock's beginning in unix time, if known."""
    found: list[Fields] = []
    reader = RecordSource(folder)
    while gained := reader.read(_BATCH_LINES):
        found += gained
    return found, reader.clock()[1] if found else math.inf


def _frames(model: RecordTables, clock: float) -> list[Frame]:
    after = 0
    frames: list[Frame] = []
    while not frames or after < model.line:
        upto = min(model.line, after + _FRAME_LINES)
        frames.append(model.since(after, upto) | {"clock": clock})
        after = upto
    return frames


def _tasks(lines: Iterable[Fields], start: float) -> dict[str, list[Told]]:
    """Return the history of each task by its round, from 1, and its shard."""
    tasks: dict[str, list[Told]] = {}
    for fields in lines:
        with suppress(ValueError):  # leave it out, as the served page does
            at, line = dated(fields)
            if isinstance(line, AttemptLine):
                key = f"{line.round + 1}/{line.shard}"
                tasks.setdefault(key, []).extend(histories([(at, line)], start))
    return tasks


def _inlined(page: str, data: Mapping[str, Any], title: str) -> str:
    """Put styles, scripts and data into the page; scripts come last, because they can't wait."""
    styles = [_style(found[1]) for found in _STYLE.finditer(page)]
    scripts = [
        _asset(found[1]).replace("</script", "<\\/script").replace("<!--", "<\\!--")
        for found in _SCRIPT.finditer(page)
    ]
    page = _STYLE.sub("", _SCRIPT.sub("", page))
    page = _TITLE.sub(lambda _: f"<title>{html.escape(title)}</title>", page, count=1)
    # A `<` in the data could end the script or begin a comment.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    head = [_policy(styles, scripts), *(f"<style>{style}</style>" for style in styles)]
    tail = [
        f'<script type="application/json" id="downpour-data">{text}</script>',
        *(f"<script>{script}</script>" for script in scripts),
    ]
    page = page.replace("<head>", "<head>\n" + "\n".join(head), 1)
    before, _, after = page.rpartition("</body>")
    return before + "\n".join(tail) + "\n</body>" + after


def _style(name: str) -> str:
    text = theme_css() if name == "theme.css" else _asset(name.removeprefix("assets/"))
    return text.replace("</style", "<\\/style")


def _asset(name: str) -> str:
    return (PAGE / name).read_text("utf-8")


def _policy(styles: Iterable[str], scripts: Iterable[str]) -> str:
    allowed = (
        f"default-src 'none'; script-src {_hashes(scripts)}; style-src {_hashes(styles)}; "
        "img-src data:; form-action 'none'; base-uri 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'


def _hashes(texts: Iterable[str]) -> str:
    digests = (hashlib.sha256(text.encode()).digest() for text in texts)
    return " ".join(f"'sha256-{base64.b64encode(one).decode()}'" for one in digests) or "'none'"
