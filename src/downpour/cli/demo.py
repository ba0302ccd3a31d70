"""`downpour demo`: two runs side by side, a minute each, for a lesson."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downpour.base.errors import MissingPackage, SpecError, did_you_mean, require
from downpour.base.options import argument, option
from downpour.cli import common
from downpour.cli.common import RESULTS, SHARED
from downpour.cli.drawings import check_figure, figure_option, write_figure
from downpour.cli.parameters import command
from downpour.cli.printing import err, note, out, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from downpour.experiments.demos import Acted, Demo


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of `downpour demo`."""

    name: str = argument(
        "The demo to show; leave it out to list them.",
        "stragglers|splits|crash|asynchrony",
        "",
        default=False,
    )
    to: Path | None = figure_option("Draw the figure", "./results/demo-NAME.png")
    shared: Path = common.shared()
    epochs: int | None = option(None, "Train for this many epochs.", "N", default="the demo's")


@command
def demo(options: DemoOptions) -> None:
    """Show what Downpour does, in about a minute.

    A demo trains a small network twice on this machine: two policies, two splits, with a crash and
    without, with a barrier and without. Then it prints a table of both runs, a sentence on the
    lesson, the path of a figure, and the command lines that repeat the runs. All numbers are
    measured.

    A demo downloads nothing. It trains on scikit-learn's digits, or on synthetic data if that
    package is missing.
    """
    from downpour.experiments.demos import DEMOS

    name = options.name
    if not name:
        for name, lesson in DEMOS.items():
            say(f"{name:<12}{lesson.about}")
        return
    if name not in DEMOS:
        *others, last = DEMOS
        accepted = f"must be {', '.join(others)} or {last}{did_you_mean(name, DEMOS)}"
        raise SpecError("demo", name, accepted)
    check_figure("to", options.to)
    fewer = {} if options.epochs is None else {"epochs": options.epochs}
    for act in DEMOS[name].acts:
        act.check(fewer)
    _play(DEMOS[name], options.to or RESULTS / f"demo-{name}.png", options.shared, fewer)


def _play(demo: Demo, figure: Path, shared: Path, fewer: Mapping[str, Any]) -> None:
    from downpour.experiments.demos import data_in, play
    from downpour.show.tables.live import ProgressDisplay

    changes = {**data_in(RESULTS), **fewer}
    acted = []
    for number, act in enumerate(demo.acts, 1):
        note(f"{number} of {len(demo.acts)}: {act.title}")
        with ProgressDisplay(err()) as display:
            acted.append(play(act, changes, shared, display.show))
    _print(demo, acted)
    _draw(demo, acted, figure)
    say("Repeat both runs:" if shared == SHARED else f"Repeat both runs (with --shared {shared}):")
    for performance in acted:
        say(f"  {performance.act.command(changes)}")


def _print(demo: Demo, acted: Sequence[Acted]) -> None:
    from downpour.show.tables.terminal_tables import text_table

    table = demo.table(acted)
    texts = table.texts()
    columns = [
        (column.header, [row[place] for row in texts]) for place, column in enumerate(table.columns)
    ]
    out().print(table.title, style="bold", highlight=False, markup=False)
    out().print(text_table(columns))
    say(f"Notice: {demo.notice(acted)}")


def _draw(demo: Demo, acted: Sequence[Acted], path: Path) -> None:
    """Draw the figure; if that fails, print one line, because the user has the table already."""
    try:
        require("the figure of downpour demo", "report")
    except MissingPackage as error:
        note(str(error))
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_figure("to", path, demo.figure(acted))
    say(f"Figure: {path}")
