"""`make lessons`: runs the lessons, and writes their pages with the output of each cell.

A lesson is docs/lessons/N_name.py, in jupytext's percent format. Its page, N_name.md beside it, is
plain Markdown: the lesson's text, its code, and the outputs of one run, with figures as files in
docs/lessons/figures/. Cells have these tags and keys:

- `parameters`: the cell with the one control of the lesson.
- `check`: the cell that fails, and says why, if the lesson's claim does not hold. Pages show what
  it prints, and leave out its code.
- `alt="…"`: what the cell's figure shows, for readers who cannot see it.

With `--text`, nothing runs: the pages get the lessons' present text, and keep their outputs.
"""

from __future__ import annotations

import base64
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
from jupyter_client.kernelspec import NoSuchKernel
from nbclient import NotebookClient

from downpour.host.machine import usable_cores

LESSONS = Path(__file__).parents[1] / "docs" / "lessons"
KERNEL = "python3"
"""What ipykernel calls itself."""
CELL_SECONDS_MAX = 400
"""Ends a cell that hangs. Cells take below a minute on two cores that do nothing else."""

CHECK = "*The lesson's file has the check.*"
"""Takes the place of a check's code in a page."""
OUTPUTS = re.compile(
    r"(?:\n\n(?:```text\n.*?\n```|!\[[^]\n]+\]\(figures/[\w-]+\.png\)|\*In a notebook, [^\n]+\*))*",
    re.DOTALL,
)
"""The outputs of a cell in a page, from the end of the cell on."""
_EMBEDDED = re.compile(r'<img [^>]*src="data:image/png;base64,([^"]+)"')
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson's file, and where its page and its figures lie."""

    source: Path

    @property
    def name(self) -> str:
        """Its name, as in "0_first_run"."""
        return self.source.stem

    @property
    def page(self) -> Path:
        """Its page."""
        return self.source.with_suffix(".md")

    def figure(self, number: int) -> Path:
        """Return where a figure of its page lies; they count from 1."""
        return self.source.parent / "figures" / f"{self.name}-{number}.png"

    def notebook(self, control: str | None = None) -> Any:
        """Return it as a notebook without outputs, with another cell of parameters if one is given.

        Raises:
            LookupError: it has not exactly one cell of parameters.
        """
        book = jupytext.read(self.source)
        if control is not None:
            (cell,) = (one for one in book.cells if "parameters" in tags_of(one))
            cell.source = control
        return book


def all_lessons() -> list[Lesson]:
    """Return the lessons in their order."""
    return [Lesson(path) for path in sorted(LESSONS.glob("[0-9]_*.py"))]


def tags_of(cell: Any) -> list[str]:
    """Return the tags of a cell."""
    return list(cell.metadata.get("tags", ()))


def execute(book: Any, folder: Path) -> None:
    """Run all cells in a folder; their outputs become part of the notebook.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
        SystemExit: there is no kernel.
    """
    place = {"metadata": {"path": str(folder)}}
    client = NotebookClient(
        book,
        timeout=CELL_SECONDS_MAX,
        startup_timeout=CELL_SECONDS_MAX,
        kernel_name=KERNEL,
        resources=place,
        extra_arguments=["--log-level=ERROR"],  # of the kernel, which warns about its own sockets
    )
    try:
        client.execute()
    except NoSuchKernel:
        sys.exit(f"no kernel {KERNEL} for notebooks is here: pip install ipykernel")


def shown_source(cell: Any) -> str:
    """Return how a page shows a cell, without its outputs.

    A check is long, and readers of a page only want to know what it says.
    """
    text = str(cell.source).strip()
    if "check" in tags_of(cell):
        return CHECK
    return text if cell.cell_type == "markdown" else f"```python\n{text}\n```"


@dataclass(frozen=True, slots=True)
class Shown:
    """An output as a page shows it: Markdown, or the PNG of a figure."""

    text: str = ""
    png: bytes = b""


def shown_outputs(outputs: list[Mapping[str, Any]]) -> Iterator[Shown]:
    """Return what a page shows of a cell's outputs; printed text comes in one piece."""
    printed = ""
    for output in outputs:
        if output["output_type"] == "stream":
            printed += output["text"]
            continue
        if printed.strip():
            yield Shown(_as_text(printed))
        printed = ""
        yield from _shown_data(output.get("data", {}))
    if printed.strip():
        yield Shown(_as_text(printed))


def _shown_data(data: Mapping[str, str]) -> Iterator[Shown]:
    html, plain = data.get("text/html", ""), data.get("text/plain", "")
    embedded = _EMBEDDED.match(html)
    png = data.get("image/png") or (embedded and embedded[1])
    if png:
        yield Shown(png=base64.b64decode(png))
    elif html.startswith("<iframe"):
        yield Shown("*In a notebook, this cell shows the live page of the run.*")
    elif plain.strip():  # progress leaves an empty display behind
        yield Shown(_as_text(plain))


def _as_text(text: str) -> str:
    lines = _ANSI.sub("", text).rstrip().splitlines()
    return "```text\n{}\n```".format("\n".join(line.rstrip() for line in lines).lstrip("\n"))


def page_of(lesson: Lesson, book: Any, seconds: float) -> tuple[str, list[bytes]]:
    """Return the page of a lesson that was run, and its figures.

    Raises:
        SystemExit: a cell that draws a figure has no `alt`.
    """
    parts: list[str] = []
    figures: list[bytes] = []
    for cell in book.cells:
        parts.append(shown_source(cell))
        for shown in shown_outputs(cell.get("outputs", [])):
            if not shown.png:
                parts.append(shown.text)
                continue
            figures.append(shown.png)
            if "alt" not in cell.metadata:
                sys.exit(f'{lesson.name}: a cell that draws needs # %% alt="…": {cell.source!r}')
            file = lesson.figure(len(figures)).relative_to(lesson.source.parent)
            parts.append(f"![{cell.metadata['alt']}]({file.as_posix()})")
    parts.append(
        f"---\n\n*[{lesson.source.name}]({lesson.source.name}) made this page in {seconds:.0f} s "
        f"on {usable_cores()} cores: `make lessons`.*\n"
    )
    return "\n\n".join(parts), figures


def publish(lesson: Lesson) -> None:
    """Run a lesson, and write its page and its figures."""
    book = lesson.notebook()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="downpour-lesson-") as folder:
        execute(book, Path(folder))
    seconds = time.monotonic() - began
    text, figures = page_of(lesson, book, seconds)
    lesson.page.write_text(text, encoding="utf-8")
    for old in lesson.source.parent.glob(f"figures/{lesson.name}-*.png"):
        old.unlink()
    for number, png in enumerate(figures, 1):
        lesson.figure(number).parent.mkdir(exist_ok=True)
        lesson.figure(number).write_bytes(png)
    print(f"{seconds:6.1f} s  {lesson.page.relative_to(LESSONS.parents[1])}", flush=True)


def reword(lesson: Lesson) -> None:
    """Give a page the present text of its lesson, and keep the outputs.

    Raises:
        SystemExit: the lesson's code is not that of the page, so it has to run.
    """
    page = lesson.page.read_text(encoding="utf-8")
    parts, at = [], 0
    for cell in lesson.notebook().cells:
        shown = shown_source(cell)
        parts.append(shown)
        if cell.cell_type != "markdown":
            at = page.find(shown, at) + len(shown)
            if at < len(shown):
                sys.exit(f"{lesson.name} has other code than its page: run it without --text")
            outputs = OUTPUTS.match(page, at)
            parts[-1] += outputs[0] if outputs else ""
    text = "\n\n".join([*parts, page[page.rindex("---\n\n*[") :]])
    lesson.page.write_text(text, encoding="utf-8")


def main(words: list[str]) -> None:
    """Publish the lessons whose names begin with one of these words; without any, all of them."""
    names = tuple(word for word in words if word != "--text")
    for lesson in all_lessons():
        if not names or lesson.name.startswith(names):
            (reword if "--text" in words else publish)(lesson)


if __name__ == "__main__":
    main(sys.argv[1:])
