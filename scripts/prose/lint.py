"""`make prose`: flags sentences that are hard to read, in the docs and in the source.

`python scripts/prose/lint.py docs/how-to/slurm.md` flags files or folders, and fails if it flags
any. Without paths it reads everything. With `--counts` it prints a table of rules and folders
instead.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from passages import END, prose_of
from proselint import checks as proselint_checks
from proselint.config import Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile, LintResult
from rules import RULES

EVERYTHING = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs", "idl", "src")
# We read their docstrings and fields instead.
GENERATED = (
    "docs/reference/cli.md",
    "docs/reference/python.md",
    "docs/reference/spec.md",
    "docs/reference/thrift.md",
    "src/downpour/network/rpc/generated",
)
PROSELINT = proselint_checks.__register__
SUFFIXES = {".md", ".py", ".thrift"}

# Typography is for print, while we write ASCII quotes. `restricted` allows a thousand words only.
UNUSED = {"typography", "restricted"}
CHECKS = {check.path_segments[0]: True for check in (*RULES, *PROSELINT)}
CHECKS |= dict.fromkeys(UNUSED, False)
CheckRegistry().register_many((*RULES, *PROSELINT))


@dataclass(frozen=True)
class Flag:
    """One place that a rule objects to; `line` counts from 1."""

    file: str
    line: int
    rule: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.message}"

    @property
    def folder(self) -> str:
        """The folder that it counts for: a wing of the source, a section of the docs."""
        parts = Path(self.file).parent.parts
        return "/".join(parts[: 3 if parts[:1] == ("src",) else 2]) or self.file


def files_in(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that hold prose, without generated ones."""
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            written = not file.as_posix().startswith(GENERATED)
            is_page = file.suffix == ".md" or "docs" not in file.parts  # lessons are scripts, too
            if file.suffix in SUFFIXES and written and is_page:
                yield file


def flags_in(file: Path) -> list[Flag]:
    """Return the flags of one file, in the order of its lines."""
    text = prose_of(file, file.read_text(encoding="utf-8"))
    results = LintFile(file.as_posix(), text).lint(Config(max_errors=10_000, checks=CHECKS))
    return [_flag(file.as_posix(), result) for result in results]


def _flag(file: str, result: LintResult) -> Flag:
    found = result.check_result
    message = " ".join(found.message.replace(END, "").split())
    return Flag(file, result.pos[0], found.check_path.removeprefix("downpour."), message)


def table(flags: list[Flag]) -> Iterator[str]:
    """Yield the lines of a Markdown table: a row for each folder, a column for each rule."""
    ours = list(dict.fromkeys(check.path_segments[1] for check in RULES))
    columns = [*ours, "proselint", "all"]
    yield f"| folder | {' | '.join(columns)} |"
    yield f"|---|{'---:|' * len(columns)}"
    for folder in [*sorted({flag.folder for flag in flags}), ""]:
        rules = [flag.rule for flag in flags if folder in {"", flag.folder}]
        counts = Counter(rule if rule in ours else "proselint" for rule in rules)
        cells = [*(counts[column] for column in columns[:-1]), len(rules)]
        yield f"| {folder or 'all'} | {' | '.join(map(str, cells))} |"


def main() -> int:
    """Read the arguments, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("paths", nargs="*", type=Path, help="files or folders; default: everything")
    parser.add_argument("--counts", action="store_true", help="print a table of rules and folders")
    options = parser.parse_args()
    paths = options.paths or [path for path in map(Path, EVERYTHING) if path.exists()]
    with ProcessPoolExecutor() as pool:
        found = pool.map(flags_in, files_in(paths), chunksize=8)
        flags = [flag for flags in found for flag in flags]
    for line in table(flags) if options.counts else flags:
        print(line)
    return int(bool(flags) and not options.counts)


if __name__ == "__main__":
    sys.exit(main())
