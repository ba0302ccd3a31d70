"""The page as one file with its data inside: for reports, notebooks and mail.

It needs no server and no network. It has the scripts and styles of the served page, and a
Content-Security-Policy allows only these, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from downpour.record.record_lines import AttemptLine, dated
from downpour.show.dashboard.columns import Fields
from downpour.show.dashboard.model import Frame, RecordTables
from downpour.show.dashboard.results import Told, histories
from downpour.show.dashboard.sources import RecordSource
from downpour.show.figures.style import DARK, LIGHT, variables

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
        name = str(about.get("id", folder.name))
        data["experiments"].append({"id": name, "name": about.get("name", name)})
        data["frames"][name] = _frames(model)
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


def _frames(model: RecordTables) -> list[Frame]:
    after = 0
    frames: list[Frame] = []
    while not frames or after < model.line:
        upto = min(model.line, after + _FRAME_LINES)
        clock = model.about().get("start", 0.0) + model.last_at
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
