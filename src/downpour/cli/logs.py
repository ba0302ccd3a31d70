"""`downpour logs`: merges the logs and the output of all processes of a cluster."""

from __future__ import annotations

import re
import sys
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from downpour.base import options as base
from downpour.base.errors import SpecError, did_you_mean
from downpour.base.options import argument, flag, option
from downpour.cli import common
from downpour.cli.asking import find
from downpour.cli.common import SHARED, command
from downpour.cli.printing import note, out
from downpour.host.paths import Credentials
from downpour.host.text import one_line

if TYPE_CHECKING:
    from downpour.files.log_places import LogLine, LogPlace
    from downpour.record.stored_experiments import LogCursor, LogFilter, LogPage

_LAST = 200
_NAMES_SHOWN = 20
_STREAMS = {"stdout", "stderr"}
_STYLES = {"debug": "dim", "info": "", "warning": "yellow", "error": "bold red"}
_AGE = re.compile(r"(\d{1,6})([smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsOptions:
    """The options of `downpour logs`."""

    experiment: str = argument(
        "An experiment: from its submission to its end. All times if absent.", "ID", ""
    )
    worker: str = option(
        "",
        "Only lines of this worker; `manager`, `launcher` and a host's name work, too.",
        "NAME",
        default="all processes",
    )
    level: str = option(
        "debug", "Only lines of this level or above: debug, info, warning or error.", "LEVEL"
    )
    since: str = option(
        "", "Only lines no older than this: 30s, 10m, 2h or 3d.", "AGE", default=False
    )
    last: int | None = option(
        None,
        "Only the last N lines; 0: all.",
        "N",
        default=f"all with an ID or --since, else {_LAST}",
    )
    shared: Path | str | None = common.shared_if_seen()
    manager: str = base.manager()
    follow: bool = flag("Keep printing new lines until you press Ctrl-C.", flag="--follow -f")


@command
def logs(options: LogsOptions, credentials: Credentials) -> None:
    """Print the logs of all processes of a cluster.

    Manager, workers and launcher keep their logs in the shared directory, along with your code's
    output and full tracebacks. This command merges them by time; each line names its host and
    process. No manager needs to run.
    """
    from downpour.files.log_places import level_of, logs_of
    from downpour.files.store.shared_directory import seen_location
    from downpour.record.stored_experiments import LogFilter, exported_seconds, span_of

    last = options.last
    wanted = LogFilter(
        begin=_begin(options.since), level=level_of(options.level), of=options.worker
    )
    if last is not None and last < 0:
        raise SpecError("last", last, "must be a number, 0 or above; 0 prints all")
    if options.experiment:
        found = find(options.experiment, options.shared, options.manager, credentials)
        begin, end = span_of(found.experiment, found.record)
        end = max(end, exported_seconds(found.folder))
        wanted = replace(wanted, begin=max(begin, wanted.begin), end=end)
    most = last if last is not None else 0 if options.experiment or options.since else _LAST
    where = options.shared or SHARED
    printer = _Printer(logs_of(seen_location(where)), wanted, str(where))
    printer.run(most, follow=options.follow)


class _Printer:
    """Prints lines of the log, and remembers how far it has read."""

    def __init__(self, place: LogPlace, wanted: LogFilter, where: str) -> None:
        self._place = place
        self._wanted = wanted
        self._where = where
        self._cursor: LogCursor | None = None
        self._width = 0

    def run(self, most: int, *, follow: bool) -> None:
        """Print all lines so far, or the last `most` of them, and then new ones."""
        lines = self._read()
        for line in lines[-most:] if most else lines:
            self._print(line)
        while follow:
            sys.stdout.flush()
            time.sleep(self._place.interval_seconds)
            for line in self._read():
                self._print(line)

    def _read(self) -> list[LogLine]:
        """Return the new lines that the user wants to see."""
        from downpour.record.stored_experiments import read_logs

        begin = self._wanted.begin if self._cursor is None else 0.0
        page = read_logs(self._place, self._cursor, changed_after=begin)
        wanted = [line for line in page.lines if self._wanted.takes(line)]
        if self._cursor is None:
            self._check(page, is_empty=not wanted)
        self._cursor = page.cursor
        self._width = max([self._width, *(len(_who(line)) for line in wanted)])
        return wanted

    def _check(self, page: LogPage, *, is_empty: bool) -> None:
        """Say why the output may be shorter than the user expects."""
        if page.skipped_bytes:
            note(f"{page.skipped_bytes // 2**20} MiB of older lines are not shown; see --since")
        names = {line.name for line in page.lines} | {line.host for line in page.lines}
        if names and self._wanted.of not in {"", *names}:
            accepted = f"must be one of {', '.join(sorted(names)[:_NAMES_SHOWN])}"
            raise SpecError(
                "worker", self._wanted.of, accepted + did_you_mean(self._wanted.of, names)
            )
        # We don't read pieces that end before the beginning, so older logs may exist.
        if is_empty and (page.lines or self._wanted.begin):
            note(f"no line in the logs of {self._where} fits these options")
        elif not page.cursor:
            note(f"no process has kept a log in {self._where}")

    def _print(self, line: LogLine) -> None:
        label = line.source if line.source in _STREAMS else line.level
        stamp = datetime.fromtimestamp(line.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        head = f"{stamp} {_who(line):{self._width}} {label:7} "
        text = "\n    ".join(map(one_line, [line.text, *line.trace.splitlines()]))
        if out().is_terminal:
            from rich.text import Text

            shown = Text.assemble((head, "cyan"), (text, _STYLES[line.level]))
            out().print(shown, soft_wrap=True)
        else:
            print(f"{head}{text}")  # noqa: T201 - rich would take a millisecond per line


def _who(line: LogLine) -> str:
    return one_line(f"{line.host} {line.name}")


def _begin(since: str) -> float:
    """Return the time of an age, in seconds since 1970; 0, before all lines, for an empty age."""
    if not since:
        return 0.0
    match = _AGE.fullmatch(since)
    if match is None:
        raise SpecError(
            "since", since, "must be a number and s, m, h or d, as in 30s, 10m, 2h or 3d"
        )
    return time.time() - int(match[1]) * _UNIT_SECONDS[match[2]]
