"""What the benchmarks share: a command line with `--json`, rows shown, folders to measure in.

A row is one line of the table and one object of the JSON; its keys are the columns, and end with
their units. Nothing is measured here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

Row = dict[str, object]


def command_line(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a module's docstring and takes `--json`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def folders() -> dict[str, Path]:
    """Return where to measure: on disk, in memory, and in memory that is mounted with huge pages.

    The last two are measured where there are such file systems; root makes one of huge pages by
    `mount -t tmpfs -o huge=within_size tmpfs FOLDER`.
    """
    found = {"disk": Path(tempfile.gettempdir())}
    memory = Path("/dev/shm")  # noqa: S108 - a file system in memory, not a predictable name
    if memory.is_dir():
        found["memory"] = memory
    for mounted in psutil.disk_partitions(all=True):
        if mounted.fstype == "tmpfs" and "huge=within_size" in mounted.opts:
            found["huge pages"] = Path(mounted.mountpoint)
    return found


def kept_runs(path: Path | None) -> list[dict[str, Any]]:
    """Return the runs that a file keeps, one a line; none without a file."""
    there = path is not None and path.exists()
    return [json.loads(line) for line in path.read_text().splitlines()] if path and there else []


def keep_run(path: Path | None, run: Mapping[str, object]) -> None:
    """Append a run to the file that keeps them, if there is to be one."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(run) + "\n")


def show(rows: Sequence[Row], *, as_json: bool) -> None:
    """Print rows: as one JSON list, or as a table with a column for each key of any row."""
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = [columns, *([_shown(row.get(column, "")) for column in columns] for row in rows)]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _shown(value: object) -> str:
    """Show a number in as many digits as anybody reads."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
