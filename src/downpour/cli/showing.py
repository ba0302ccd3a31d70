"""The commands that show stored experiments: report, trace, splits, and logs of all processes."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downpour.base import errors
from downpour.base import options as base
from downpour.base.options import argument, flag, option
from downpour.cli import common
from downpour.cli.asking import find
from downpour.cli.common import RESULTS, SHARED, allow_code, allow_own_code, command, since_age
from downpour.cli.printing import note, out, print_json, progress_bar, say
from downpour.core.families import SPLITTERS
from downpour.files.spec_file import read_spec
from downpour.host.paths import Credentials

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from downpour.files.log_places import LogLine, LogPlace
    from downpour.record.stored_experiments import LogCursor, LogFilter, LogPage


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReportOptions:
    folder: Path = argument("A folder of `downpour grid`, or of one experiment.", "FOLDER")
    out_dir: Path | None = option(
        None,
        "The folder to write the report to.",
        "DIR",
        default="FOLDER/report, or ./results/ID for one experiment",
        flag="--out",
    )
    spread: str = option(
        "interval",
        "The number after ± in tables of repetitions: the 95 % interval of the mean, or the "
        "standard deviation.",
        "interval|deviation",
    )
    tensorboard: Path | None = common.tensorboard()


@command
def report(options: _ReportOptions) -> None:
    """Write tables, figures and a page of the results.

    Means over repetitions come with 95 % intervals by Student's t. Tables are Markdown, CSV, JSON
    and LaTeX, figures are PNG and SVG, and index.html is one file that needs no network. The
    command replaces an earlier report in DIR and leaves other files alone.
    """
    errors.require("downpour report", "report")
    from downpour.experiments.studies import Grid, read_folder
    from downpour.experiments.studies.grid import Study
    from downpour.files.store.layout import RECORD_NAME
    from downpour.record.record import read_record
    from downpour.show.event_files import write_events
    from downpour.show.report import write_report
    from downpour.show.tables.report_tables import SPREADS
    from downpour.show.tables.terminal_tables import study_table

    if options.spread not in SPREADS:
        raise errors.SpecError("spread", options.spread, f"must be {' or '.join(SPREADS)}")
    folder, study = options.folder, Study.read(options.folder).result
    is_grid = (folder / Grid.file_name).exists()
    if options.tensorboard is not None:
        records = read_folder(folder, Grid).records() if is_grid else [folder / RECORD_NAME]
        for record in records:
            name = record.parent.name if is_grid else ""
            write_events(read_record(record), options.tensorboard, name)
    usual = folder / "report" if is_grid else RESULTS / study.subgrids[0].runs[0].result.experiment
    with progress_bar("figures") as show:
        page = write_report(
            study,
            options.out_dir or usual,
            lambda done, total: show(completed=done, total=total),
            options.spread,
        )
    for subgrid in study.subgrids:
        out().print(study_table(subgrid, options.spread))
    say(str(page))


_STANDARD_OUTPUT = Path("-")


@dataclass(frozen=True, slots=True, kw_only=True)
class _TraceOptions:
    experiment: str = common.experiment()
    to: Path | None = option(
        None,
        "The file to write; - is standard output. It may replace an earlier trace, but no other "
        "file.",
        "FILE",
        default="./results/ID/trace.json",
    )
    shared: Path | str | None = common.shared_if_seen()
    manager: str = base.manager()


@command
def trace(options: _TraceOptions, credentials: Credentials) -> None:
    """Write a timeline of an experiment, even while it runs.

    Open the file at ui.perfetto.dev or in chrome://tracing; both read it on your machine. The
    timeline shows which shards each worker trained, when and why, hand-overs, failures, rounds,
    decisions, loss and metrics. The command finds the experiment as `downpour results` does, and
    prints the file's path.
    """
    from downpour.show.trace import TRACE_NAME, trace_lines, write_trace

    found = find(options.experiment, options.shared, options.manager, credentials)
    if options.to == _STANDARD_OUTPUT:
        sys.stdout.writelines(trace_lines(found.record))
        return
    file = options.to or RESULTS / found.experiment / TRACE_NAME
    write_trace(found.record, file)
    say(str(file))


_FORMS = (".png", ".svg")


def figure_option(text: str, default: str) -> Any:
    """Return the option `--to FILE` of a command that draws a figure."""
    return option(None, f"{text} into this .png or .svg file.", "FILE", default=default)


def check_figure(field: str, path: Path | None) -> None:
    """Check the file to write a figure to."""
    if path is None:
        return
    other = path.exists() and not path.is_file()
    if path.suffix not in _FORMS or not path.parent.is_dir() or other:
        accepted = f"must end with {' or '.join(_FORMS)}, in a folder that exists"
        raise errors.SpecError(field, str(path), accepted)


def write_figure(field: str, path: Path, figure: Figure) -> None:
    """Write a figure to the file that the user has named in a field."""
    from downpour.show.figures.style import written

    try:
        path.write_bytes(written(figure, path))
    except OSError as error:
        raise errors.SpecError(field, str(path), f"cannot be written ({error.strerror})") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _SplitsOptions:
    file: Path = argument("A TOML file with the spec.", "FILE")
    shards: int | None = option(
        None,
        "The number of shards.",
        "N",
        default="the spec's, or as many as `downpour run` would train here",
    )
    split: tuple[str, ...] = option(
        (),
        "Show this split in place of the spec's. Repeatable, to compare several.",
        "|".join(SPLITTERS.accepted),
        default=False,
    )
    to: Path | None = figure_option("Also draw a figure", "not drawn")
    shared: Path = common.shared()
    data_dir: Path | None = base.data_dir()
    allow: tuple[str, ...] = common.allow()
    as_json: bool = common.as_json()


@command
def splits(options: _SplitsOptions) -> None:
    """Show how a split cuts the training data into shards.

    The manager makes the same shards, with the spec's seed, limits and validation. This command
    trains nothing and starts no process. For each shard, a table shows the number of examples and
    of classes, the share of the most frequent class, and the examples of each class.

    The distance of a shard is the total variation distance between its class shares and those of
    all shards together: half the sum of the absolute differences over all classes. It is 0 if the
    shard has the mixture of all data, and near 1 if it has only classes that are rare elsewhere.
    The summary has the mean over shards, and the size of the largest shard over the smallest's.

    A table shows the first 40 shards, and the first 20 classes or as many as fit. --json has all. A
    dataset without classes has only sizes. If the shared directory exists, the command leaves the
    prepared data there for a run; otherwise it removes them.
    """
    if options.to is not None:
        errors.require("downpour splits --to", "report")
        check_figure("to", options.to)
    allow_code(options.allow, options.file)
    spec = read_spec(options.file)
    if options.shards is not None:
        spec = spec.replace(shards=options.shards)
    allow_own_code(spec, options.file)
    from downpour.experiments.surroundings import cuts_of, shards_for
    from downpour.show.tables.terminal_tables import split_table, split_values

    number = shards_for(spec)
    cuts = cuts_of(spec, options.split, number, options.shared, options.data_dir)
    if spec.shards is None:
        note(f"shards = {number}, as `downpour run` would take here; --shards takes another number")
    if options.as_json:
        named = {"seed": spec.seed, "shards": len(cuts[0].shards)}
        print_json({**named, "splits": [split_values(cut) for cut in cuts]})
    else:
        for place, cut in enumerate(cuts):
            if place:
                out().print()
            out().print(split_table(cut, out().width))
    if options.to is not None:
        from downpour.show.figures.result_figure import split_figure

        write_figure("to", options.to, split_figure(cuts))
        note(f"drawn: {options.to}")


_LAST = 200
_NAMES_SHOWN = 20
_STREAMS = {"stdout", "stderr"}
_STYLES = {"debug": "dim", "info": "", "warning": "yellow", "error": "bold red"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _LogsOptions:
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
def logs(options: _LogsOptions, credentials: Credentials) -> None:
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
        begin=since_age("since", options.since), level=level_of(options.level), of=options.worker
    )
    if last is not None and last < 0:
        raise errors.SpecError("last", last, "must be a number, 0 or above; 0 prints all")
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
            raise errors.SpecError(
                "worker", self._wanted.of, accepted + errors.did_you_mean(self._wanted.of, names)
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
        text = "\n    ".join(map(errors.one_line, [line.text, *line.trace.splitlines()]))
        if out().is_terminal:
            from rich.text import Text

            shown = Text.assemble((head, "cyan"), (text, _STYLES[line.level]))
            out().print(shown, soft_wrap=True)
        else:
            print(f"{head}{text}")  # noqa: T201 - rich would take a millisecond per line


def _who(line: LogLine) -> str:
    return errors.one_line(f"{line.host} {line.name}")
