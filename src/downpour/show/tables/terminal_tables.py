"""Tables of results, studies and splits for the terminal, and the console that shows them.

Each table fits into 80 columns. Headers have the units, and numbers are aligned. We leave out a
column without measurements. Tables are only renderables of `rich`, and nothing here reads or
measures.

Displays pass each foreign text through `one_line`, which keeps tables straight. `SafeConsole` is
the safety net below them: rich itself removes only a few control characters, and lets an escape
pass.
"""

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from downpour.base.errors import one_line
from downpour.base.states import LOSS
from downpour.core.spec import Meetings
from downpour.core.splitters import ShardCounts
from downpour.record.result import Result
from downpour.record.result_parts import (
    NOT_VERIFIED,
    Measure,
    RoundResult,
    TestResult,
    mixture_of,
    names_of,
    number,
)
from downpour.record.study_result import SearchResult, SubgridResult, field_words, label
from downpour.record.timeline import Stragglers
from downpour.show.tables import report_tables

_STATE_STYLES = {"finished": "green", "failed": "red", "cancelled": "yellow"}
NOTHING = "-"
Column = tuple[str, Sequence[str | None]]


def shortened(value: Any) -> str:
    """Format a value with two significant digits: 0.012, 1.5e-5."""
    if not isinstance(value, float):
        return label(value)
    return re.sub(r"e([+-])0*", lambda e: "e" + e[1].strip("+"), f"{value:.2g}")


def _percents(shares: Sequence[float | None], decimals: int = 2) -> list[str | None]:
    return [None if share is None else f"{100 * share:.{decimals}f}" for share in shares]


def _losses(values: Sequence[float | None]) -> list[str | None]:
    """Write losses with four decimals, or large ones with four digits."""
    return [None if v is None else number(v) for v in values]


def _measurements(measure: Measure, values: Sequence[float | None]) -> Column:
    """Return a column of a metric or of the loss, with its header."""
    if measure.name == LOSS:
        return "test\nloss", _losses(values)
    name = one_line(measure.name)  # on one line, as the task spells it, for readers who search
    if measure.is_share:
        return f"{name}\n%", _percents(values)
    return name, _losses(values)


def seconds(values: Sequence[float | None]) -> list[str | None]:
    """Write the durations of one column with the same decimals, as many as are useful."""
    longest = max((value for value in values if value is not None), default=0.0)
    decimals = 3 if longest < 1 else 2 if longest < 100 else 1
    return [None if value is None else f"{value:.{decimals}f}" for value in values]


def text_table(
    columns: Sequence[Column],
    *,
    title: str | None = None,
    names: Container[str] = (),
    is_tight: bool = False,
) -> Table:
    """Lay out columns of text; those of `names`, and the first with names, are left-aligned."""
    padding = (0, 0) if is_tight else (0, 1)
    look: dict[str, Any] = {"title": title, "title_justify": "left", "header_style": "bold"}
    table = Table(box=box.SIMPLE_HEAD, padding=padding, pad_edge=False, **look)
    shown = [(header, cells) for header, cells in columns if any(c is not None for c in cells)]
    for place, (header, cells) in enumerate(shown):
        is_first = place == 0 and not all(cell and cell.isdigit() for cell in cells)
        whole = any(cell and "±" in cell for cell in cells)
        table.add_column(
            header,
            justify="left" if is_first or header in names else "right",
            no_wrap=whole,
            overflow="fold",
            # keeps a name such as mean_abs_error whole
            min_width=max(map(len, header.split("\n"))),
        )
    for row in zip(*(cells for _, cells in shown), strict=True):
        table.add_row(*(Text(NOTHING if cell is None else one_line(cell)) for cell in row))
    return table


class SafeConsole(Console):
    """A console that shows the control characters in its output, except line breaks."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render into segments; the controls among them are rich's own."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield segment._replace(text="\n".join(map(one_line, text.split("\n"))))


EPOCHS_MAX = 1000
"""A terminal takes a second to draw a thousand."""
_CHANGES_MAX = 8
_CLASS_EPOCHS_MAX = 6
_METRICS_WIDTH = 22
"""The room that 80 columns leave for an epoch's metrics, next to its losses and seconds."""

_EXPLAINED = (
    "ideal: every task takes the median time. unaided: every shard stays with its\n"
    "first worker (policy wait). est.: estimated from forecasts and snapshots"
)


def result_table(result: Result) -> RenderableType:
    """Show the epochs, below a line that describes the run and above one that sums it up."""
    rounds, left_out = result.epochs[-EPOCHS_MAX:], len(result.epochs) - EPOCHS_MAX
    columns: list[Column] = [
        ("epoch", [str(r.epoch) for r in rounds]),
        *_metrics_columns(rounds),
        ("train\nloss", _losses([r.train_loss for r in rounds])),
        (f"{result.part}\nloss", _losses([r.test_loss for r in rounds])),
        ("training\ns", seconds([r.train_seconds for r in rounds])),
        ("aggregation\ns", seconds([r.aggregate_seconds for r in rounds])),
        ("evaluation\ns", seconds([r.evaluate_seconds or None for r in rounds])),
    ]
    parts: list[RenderableType] = [_heading(result)]
    parts += [Text(one_line(line), style="dim", overflow="fold") for line in result.dataset]
    if left_out > 0:
        parts.append(Text(f"… {left_out:,} epochs before these; --csv has all of them"))
    if rounds:
        parts.append(text_table(columns))
    if result.stragglers and result.stragglers.is_of_note:
        parts.append(stragglers_table(result))
    if _classes_were_lost(result):
        why = "\nThe dropped shards differ in their classes from the others. Accuracy by class:"
        parts += [Text(why), classes_table(result)]
    parts.append(_closing(result))
    if again := result.retrained:
        what = "1 task was" if again == 1 else f"{again} tasks were"
        parts.append(Text(f"{what} trained again: the first update was lost or damaged"))
    lines, more = result.worker_changes[:_CHANGES_MAX], len(result.worker_changes) - _CHANGES_MAX
    parts += [Text(one_line(line), overflow="fold") for line in lines]
    if more > 0:
        parts.append(Text(f"… and {more} more who joined, left or were lost", style="dim"))
    if result.verified is False:
        parts.append(Text(NOT_VERIFIED, style="yellow", overflow="fold"))
    if mixture := mixture_of(result.numeric_classes):
        parts.append(Text(one_line(mixture), style="yellow", overflow="fold"))
    return Group(*parts)


def classes_table(result: Result) -> RenderableType:
    """Show the accuracy of each class in percent, for at most six evenly spaced epochs."""
    measured = [r for r in result.epochs if r.class_accuracy]
    last = len(measured) - 1
    steps = _CLASS_EPOCHS_MAX - 1
    chosen = sorted({round(step * last / steps) for step in range(steps + 1)} if measured else ())
    classes = range(len(measured[-1].class_accuracy) if measured else 0)
    epochs = [measured[place] for place in chosen]
    columns = [(f"epoch {each.epoch}\n%", _percents(each.class_accuracy)) for each in epochs]
    return text_table([("class", [str(label) for label in classes]), *columns])


def stragglers_table(result: Result) -> RenderableType:
    """Show each epoch's time, its time without the policy, and what the policy did."""
    last = result.epochs[-EPOCHS_MAX:]
    epochs = [(each.epoch, each.stragglers) for each in last if each.stragglers is not None]
    costs, count = [cost for _, cost in epochs], len(epochs)
    lasted = [cost.round_seconds for cost in costs]
    ideal = [cost.ideal_seconds for cost in costs]
    unaided = [cost.wait_seconds for cost in costs]
    shown = seconds([*lasted, *ideal, *unaided])  # together, because readers compare them
    table = text_table(
        [
            ("epoch", [str(epoch) for epoch, _ in epochs]),
            ("took\ns", shown[:count]),
            ("ideal\ns", shown[count:-count]),
            ("unaided\ns, est.", shown[-count:]),
            ("mitigated\n%, est.", _percents([cost.mitigation for cost in costs], 1)),
            ("extra\nwork %", _percents([cost.extra_work or None for cost in costs], 1)),
            ("gradient\nlost %", _percents([cost.gradient_lost or None for cost in costs], 1)),
            ("moves", [str(cost.moves) if cost.moves else None for cost in costs]),
        ]
    )
    return Group(table, Text(_EXPLAINED, style="dim"))


def _classes_were_lost(result: Result) -> bool:
    """Whether left-out samples differ from the others, so that class accuracies show the effect."""
    uneven = str(result.spec.get("split")).startswith(("class", "dirichlet"))
    dropped = result.stragglers is not None and result.stragglers.gradient_lost > 0
    return uneven and dropped and any(r.class_accuracy for r in result.rounds)


def _metrics_columns(epochs: Sequence[RoundResult]) -> list[Column]:
    """Return the columns of the metrics that fit a terminal, in the task's order."""
    columns: list[Column] = []
    room = _METRICS_WIDTH
    names = names_of(epoch.metrics for epoch in epochs)
    for name in sorted(names, key="accuracy".__ne__):  # other metrics never push it out
        values = [epoch.metrics.get(name) for epoch in epochs]
        column = _measurements(Measure.of(name, values), values)
        room -= 2 + max(map(len, (*column[0].split("\n"), "0.1234")))
        if room < 0 and columns:
            break
        columns.append(column)
    return columns


def _heading(result: Result) -> Text:
    spec = result.spec
    number, each = result.shards, Meetings.of(spec).each
    shards = f"{number} shard{'' if number == 1 else 's'}, " if number else ""
    meetings = "" if each == 1 else f" {each} times an epoch"
    parts = [
        str(spec.get("task") or f"{spec.get('model')} on {spec.get('dataset')}"),
        f"{shards}{spec.get('split')} split",
        f"{spec.get('aggregate')}{meetings}",
    ]
    name, what = one_line(result.name), one_line(" · ".join(parts))
    return Text.assemble((name, "bold"), "  ", (what, "dim"))


def _closing(result: Result) -> Text:
    (total,) = seconds([result.total_seconds])
    word = "in" if result.state == "finished" else "after"
    state = "paused" if result.reason == "paused" else result.state
    line = Text.assemble((one_line(state), _STATE_STYLES.get(state, "")), f" {word} {total} s")
    if result.reason != state and result.reason:
        line.append(f": {one_line(result.reason)}")
    spent = {
        "prepare": result.prepare_seconds,
        "train": result.train_seconds,
        "aggregate": result.aggregate_seconds,
        "evaluate": result.evaluate_seconds,
    }
    parts = zip(spent, seconds([value or None for value in spent.values()]), strict=True)
    if any(spent.values()):
        shown = " · ".join(f"{name} {part} s" for name, part in parts if part)
        line.append(f"\n{shown}", style="dim")
    if result.tested is not None:
        line.append(f"\n{_tested(result.tested)}")
    if (best := result.best) is not None:
        measure = Measure(best.metric)
        kept = f", kept as {one_line(best.file.name)}" if best.file is not None else ""
        praise = f"best {measure.words} {measure.text(best.value)} after epoch {best.epoch}{kept}"
        line.append(f"\n{praise}")
    if result.stragglers and result.stragglers.is_of_note:
        line.append(f"\n{_mitigated(result, result.stragglers)}", style="dim")
    return line


def _tested(test: TestResult) -> str:
    """Say how good the model was on the test examples, which epochs did not use."""
    known = {**test.metrics, LOSS: test.loss}
    values = [
        f"{Measure(name).words} {Measure(name).text(value)}"
        for name, value in known.items()
        if value is not None
    ]
    return f"test of the model after epoch {test.epoch}: {', '.join(values)}"


def _mitigated(result: Result, cost: Stragglers) -> str:
    """Sum up in two lines the actions against stragglers, and their cost."""
    policy = str(result.spec.get("policy", "wait"))
    done = [one_line(f"policy {policy}")] if policy != "wait" else []
    if cost.mitigation is not None:
        done.append(f"{cost.mitigation:.1%} of waiting mitigated (estimated)")
    if cost.moves:
        done.append(f"{cost.moves} move{'' if cost.moves == 1 else 's'}")
    paid = [] if cost.extra_work is None else [f"extra work {cost.extra_work:.1%}"]
    if cost.gradient_lost:
        paid.append(f"gradient lost {cost.gradient_lost:.1%}")
    return "\n".join(" · ".join(line) for line in (done, paid) if line)


_MARKS = {"pruned": "pruned ", "failed": "failed "}
_ROOMY_FIELDS = 4


def study_table(subgrid: SubgridResult, spread: str = "interval") -> RenderableType:
    """Show for each setting of a subgrid: its first metric, the accuracy, and seconds."""
    table = replace(report_tables.outcomes(subgrid), spread=spread)
    first, *more = report_tables.measured_by(subgrid)
    shown = {first.key, *(measure.key for measure in more if measure.name == "accuracy")}
    wanted = {*subgrid.axes, "trials", *shown, "train_seconds"}
    texts = table.texts()
    columns: list[Column] = [
        (column.header, [row[place] for row in texts])
        for place, column in enumerate(table.columns)
        if column.key in wanted
    ]
    name = one_line(table.caption.replace(table.title, subgrid.name))
    return Group(Text(name, style="bold"), text_table(columns))


def search_table(search: SearchResult) -> RenderableType:
    """Show the runs of a search: their values, how good they were, and after how many epochs."""
    runs, best = search.runs, search.best
    columns: list[Column] = [("run", [str(run.number) for run in runs])]
    for name in search.fields:
        values = [shortened(run.values[name]) for run in runs]
        columns.append((field_words(name).replace(" ", "\n"), values))
    marks = ["best " if run is best else _MARKS.get(run.state, "") for run in runs]
    epochs = [f"{mark}{len(r.epoch_values)}" for mark, r in zip(marks, runs, strict=True)]
    columns += [_measurements(search.measure, [run.value for run in runs]), ("epochs", epochs)]
    is_tight = len(search.fields) > _ROOMY_FIELDS
    return Group(Text(one_line(search.name), style="bold"), text_table(columns, is_tight=is_tight))


SHARDS_MAX = 40
CLASSES_MAX = 20
_OTHERS = "others"
_EDGE = 1
"""The width of the character at the left of a table."""


def split_table(cut: ShardCounts, width: int) -> RenderableType:
    """Show one shard per row, below a line about the data and above the summary.

    A table shows the first shards and the first classes that fit; the values have all of them.
    """
    columns: list[Column] = [
        ("shard", [str(shard) for shard in range(len(cut.sizes))][:SHARDS_MAX]),
        ("examples", _texts(cut.sizes)),
    ]
    if cut.classes:
        columns += [
            ("classes", _texts(cut.classes_held)),
            ("top\n%", _percents([float(share) for share in cut.largest_shares[:SHARDS_MAX]], 1)),
        ]
        taken = _EDGE + sum(map(_width, columns))
        columns += _class_columns(cut, width - taken)
    parts: list[RenderableType] = [Text(_data_line(cut)), text_table(columns, is_tight=True)]
    left_out = len(cut.sizes) - SHARDS_MAX
    if left_out > 0:
        parts.append(Text(f"… and {left_out:,} more shards; --json has all of them"))
    return Group(*parts, Text(summary(cut)))


def summary(cut: ShardCounts) -> str:
    """Say in one line how uneven the shards are."""
    sizes = f"sizes max/min {cut.unevenness:,.2f}"
    if not cut.classes:
        return f"{sizes}; examples have no classes, so only sizes are shown"
    return f"{sizes}; mean distance from the class shares of all data {cut.mean_distance:.3f}"


def split_values(cut: ShardCounts) -> dict[str, Any]:
    """Return everything that we know about a cut, as JSON holds it."""
    shards: list[dict[str, Any]] = [
        {"shard": shard, "examples": int(size)} for shard, size in enumerate(cut.sizes)
    ]
    if cut.classes:
        measured = zip(
            cut.by_class, cut.classes_held, cut.largest_shares, cut.distances, strict=True
        )
        for values, (by_class, held, largest, distance) in zip(shards, measured, strict=True):
            values["by_class"] = by_class.tolist()
            values["classes"] = int(held)
            values["largest_share"] = float(largest)
            values["distance"] = float(distance)
    return {
        "split": cut.split,
        "examples": int(cut.sizes.sum()),
        "held_out": cut.held_out,
        "classes": cut.classes,
        "unevenness": cut.unevenness,
        "mean_distance": cut.mean_distance if cut.classes else None,
        "shards": shards,
    }


def _data_line(cut: ShardCounts) -> str:
    shards = "1 shard" if len(cut.sizes) == 1 else f"{len(cut.sizes):,} shards"
    words = f"split {cut.split}: {cut.sizes.sum():,} examples in {shards}"
    if cut.held_out:
        words += f", {cut.held_out:,} more set apart for validation"
    return f"{words}; examples of each class:" if cut.classes else words


def _class_columns(cut: ShardCounts, room: int) -> list[Column]:
    """Return a column for each class that fits, and one for the sum of the others."""
    every = [(str(number), _texts(cut.by_class[:, number])) for number in range(cut.classes)]
    if len(every) <= CLASSES_MAX and sum(map(_width, every)) <= room:
        return [*every]
    shown = min(CLASSES_MAX, len(every) - 1)
    while True:
        others = _OTHERS, _texts(cut.by_class[:, shown:].sum(axis=1))
        if not shown or sum(map(_width, [*every[:shown], others])) <= room:
            return [*every[:shown], others]
        shown -= 1


def _texts(counts: Any) -> list[str]:
    return [str(count) for count in counts[:SHARDS_MAX].tolist()]


def _width(column: Column) -> int:
    """Return how many characters a column takes, with the space next to it."""
    header, cells = column
    return 1 + max(map(len, [*header.split("\n"), *(cell or "" for cell in cells)]))
