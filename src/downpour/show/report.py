"""A study as a folder of tables, figures and pages; each figure has a sentence that describes it.

Bands and whiskers of figures are 95 % intervals over the repetitions. The template escapes all text
but the SVG of figures, which matplotlib has escaped, and the style's own colors.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from downpour.base.errors import SpecError, require
from downpour.base.states import LOSS
from downpour.core.splitters import ShardCounts
from downpour.files.store.publish import explain
from downpour.record.result import Result
from downpour.record.result_parts import NOT_VERIFIED, Measure, first_of
from downpour.record.study_result import RunResult, StudyResult, SubgridResult, label
from downpour.show.dashboard.page_data import static_page
from downpour.show.figures import curves, style
from downpour.show.figures.result_figure import MEASURES, measures_of, resource_figure, split_figure
from downpour.show.figures.timeline_figure import is_enlarged, timeline_figure
from downpour.show.tables import report_tables
from downpour.show.trace import TRACE_NAME

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TIMELINES_MAX = 24
_SPLITS_MAX = 6
"""Maximum panels of a figure, and rows of panels that fit a screen."""
_INTERVALS = "are 95\u00a0% intervals over the repetitions"

Part = Literal["outcome", "timeline", "resources"]
"""The parts of a page: results of a subgrid, worker timelines, and processes' resources."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure, its subgrid, the name of its files, what it shows, and the part it belongs to.

    A figure over time shows a single `experiment`.
    """

    subgrid: str
    name: str
    caption: str
    figure: Figure
    part: Part = "outcome"
    experiment: str = ""


def plots_of(study: StudyResult) -> list[Plot]:
    """Draw every figure that the study has data for."""
    plots: list[Plot] = []
    asides: dict[str, list[Plot]] = {}
    for subgrid in (subgrid for subgrid in study.subgrids if subgrid.runs):
        plots += [*_curves(subgrid), *_outcomes(subgrid), *_classes(subgrid), *_splits(subgrid)]
        for _, runs in subgrid.measured:
            first = runs[0].result.experiment
            if first not in asides and len(asides) < TIMELINES_MAX:
                asides[first] = list(_along_time(subgrid, runs[0]))
    return [*plots, *chain.from_iterable(asides.values())]


def _curves(subgrid: SubgridResult) -> Iterator[Plot]:
    bands = f"; bands {_INTERVALS}" if _has_intervals(subgrid) else ""
    first, part = report_tables.measured_by(subgrid)[0], report_tables.part_of(subgrid)
    words = f"{part.capitalize()} {first.words}"
    # If the first measure is a loss, the figure of the losses already shows it.
    if _is_measured(subgrid) and not (first.name == LOSS and curves.has_loss_course(subgrid)):
        name = f"{subgrid.name}-{first.file_stem}"
        caption = f"{words} after each epoch{bands}"
        yield Plot(subgrid.name, name, caption, curves.learning_figure(subgrid))
    if curves.has_loss_course(subgrid):
        means = "; means over the repetitions" if bands else ""
        caption = f"Training and {part} loss by epoch{means}"
        yield Plot(subgrid.name, f"{subgrid.name}-{LOSS}", caption, curves.loss_figure(subgrid))
    if len(subgrid.settings) > 1 and curves.has_course(subgrid):
        caption = f"{words} along the seconds of training and aggregation, without evaluation"
        yield Plot(
            subgrid.name, f"{subgrid.name}-pace", caption + bands, curves.pace_figure(subgrid)
        )


def _outcomes(subgrid: SubgridResult) -> Iterator[Plot]:
    if len(subgrid.settings) < 2:
        return
    whiskers = f"; whiskers {_INTERVALS}" if _has_intervals(subgrid) else ""
    if subgrid.lost and curves.numeric_axis(subgrid) < 0:
        whiskers += "; × marks failed attempts"
    if _is_measured(subgrid):
        first = report_tables.measured_by(subgrid)[0]
        caption = f"{first.words.capitalize()} of the final model{whiskers}"
        figure = curves.outcome_figure(subgrid, first)
        yield Plot(subgrid.name, f"{subgrid.name}-final", caption, figure)
    caption = f"Seconds of training, without aggregation and evaluation{whiskers}"
    figure = curves.outcome_figure(subgrid, "time")
    yield Plot(subgrid.name, f"{subgrid.name}-time", caption, figure)


def _classes(subgrid: SubgridResult) -> Iterator[Plot]:
    """Draw the accuracy of each class: by epoch if there is one setting, else by setting."""
    name = f"{subgrid.name}-classes"
    if len(subgrid.settings) == 1 and curves.has_class_course(subgrid.runs):
        caption = (
            f"{report_tables.part_of(subgrid).capitalize()} accuracy of each class by epoch, in %"
        )
        yield Plot(subgrid.name, name, caption, curves.class_course_figure(subgrid.runs))
    elif any(run.has_uneven_data and report_tables.final_classes(run) for run in subgrid.runs):
        caption = "Accuracy of the final models for each class, in %"
        yield Plot(subgrid.name, name, caption, curves.classes_figure(subgrid))


def _splits(subgrid: SubgridResult) -> Iterator[Plot]:
    """Draw the classes in each shard, in one figure for each number of shards."""
    by_shards: dict[int, list[ShardCounts]] = {}
    for split in subgrid.splits:
        by_shards.setdefault(len(split.sizes), []).append(split)
    for shards, splits in by_shards.items():
        name = f"{subgrid.name}-split" + (f"-{shards}" if len(by_shards) > 1 else "")
        rest = "" if len(splits) <= _SPLITS_MAX else f"; the first {_SPLITS_MAX} of {len(splits)}"
        caption = f"Training examples of each shard, and of each class in each shard{rest}"
        yield Plot(subgrid.name, name, caption, split_figure(splits[:_SPLITS_MAX]))


def _has_intervals(subgrid: SubgridResult) -> bool:
    return any(len(runs) >= style.REPETITIONS_MIN for _, runs in subgrid.measured)


def _is_measured(subgrid: SubgridResult) -> bool:
    first = report_tables.measured_by(subgrid)[0]
    return any(run.result.measured(first.name) is not None for run in subgrid.runs)


def _along_time(subgrid: SubgridResult, run: RunResult) -> Iterator[Plot]:
    setting = report_tables.setting_of(subgrid, run.values) or subgrid.name
    which = f" (repetition {run.repetition})" if subgrid.repetitions > 1 else ""
    name, spans = run.result.experiment, run.result.spans
    if spans:
        first = "the one with most moves and failures, or with the longest"
        twice = f"; enlarged are rounds that start with {first}" if is_enlarged(spans) else ""
        caption = f"{setting}: who trained each shard when{which}{twice}"
        figure = timeline_figure(spans, run.result.disturbed_seconds)
        yield Plot(subgrid.name, f"timeline-{name}", caption, figure, "timeline", name)
    if measures := measures_of(run.resources):
        rest = "" if len(measures) == len(MEASURES) else "; measures without a panel stayed 0"
        caption = f"{setting}: resources of the workers' processes over time{which}{rest}"
        figure = resource_figure(run.resources)
        yield Plot(subgrid.name, f"resources-{name}", caption, figure, "resources", name)


class Fact(NamedTuple):
    """A number, its meaning, and optionally a remark."""

    name: str
    value: str
    note: str = ""


def facts_of(result: Result) -> list[Fact]:
    """Return how good the model is, how long it took, and which workers trained it on what data."""
    workers = {span.worker for span in result.spans}
    facts = [*_quality(result), *_course(result)]
    if workers:
        facts.append(Fact("workers", f"{len(workers):,}", _ends(result)))
    facts.append(Fact("shards", f"{result.shards:,}", f"split {result.spec.get('split', '')}"))
    if result.train_samples:
        note = f"{result.test_samples:,} test examples"
        facts.append(Fact("training examples", f"{result.train_samples:,}", note))
        model = str(result.spec.get("model", ""))
        facts.append(Fact("parameters", f"{result.parameters:,}", model))
    if result.verified is False:
        facts.append(Fact("repeatable", "not verified", NOT_VERIFIED.partition(": ")[2]))
    return facts


def _quality(result: Result) -> Iterator[Fact]:
    first = first_of(result.metrics, result.test_loss)
    if first is not None and first[0].name != LOSS:
        measure, value = first
        yield Fact(f"{result.last_part} {measure.words}", measure.text(value))
    losses = (r.train_loss for r in reversed(result.rounds))
    trained = next((loss for loss in losses if loss is not None), None)
    note = "" if trained is None else f"{Measure(LOSS).text(trained)} in training"
    if result.test_loss is not None:
        yield Fact(f"{result.last_part} loss", Measure(LOSS).text(result.test_loss), note)


def _course(result: Result) -> Iterator[Fact]:
    rounds, epochs = len(result.rounds), len(result.epochs)
    asked = result.spec.get("epochs", epochs)
    yield Fact(
        "epochs",
        f"{epochs:,}" if epochs == asked else f"{epochs:,} of {asked:,}",
        f"{rounds:,} round{'s' * (rounds != 1)}",
    )
    trained = f"{result.train_seconds:,.1f} s training"
    yield Fact("total time", f"{result.total_seconds:,.1f} s", trained)


def _ends(result: Result) -> str:
    """List the ends of attempts other than updates."""
    outcomes = [span.outcome for span in result.spans]
    moved, failed = outcomes.count("moved"), outcomes.count("failed")
    words = [f"{moved:,} moved on"] if moved else []
    words += [f"{failed:,} failed"] if failed else []
    return ", ".join(words) or f"{len(outcomes):,} attempts"


LIVE_NAME = "live.html"
RUNS_MAX = 48
ATTEMPTS_MAX = 20_000
"""For all runs together: each attempt takes a few hundred bytes of the page."""


def write_live_copy(study: StudyResult, out: Path) -> dict[str, str]:
    """Write the page into a report's folder, with as many runs as fit.

    Returns:
        The URL of each run's page, relative to the report, by its experiment.
    """
    page = out / LIVE_NAME
    folders = _folders(study)
    if not folders:
        page.unlink(missing_ok=True)
        return {}
    page.write_text(static_page(folders.values(), study.name), "utf-8")
    return {experiment: f"{LIVE_NAME}#/experiments/{quote(experiment)}" for experiment in folders}


def _folders(study: StudyResult) -> dict[str, Path]:
    """Return the folders of the runs' records, by experiment; first repetitions come first."""
    runs = [run for subgrid in study.subgrids for run in subgrid.runs]
    folders: dict[str, Path] = {}
    attempts = 0
    for result in (run.result for run in sorted(runs, key=lambda run: run.repetition)):
        name, folder, count = result.experiment, result.folder, len(result.spans)
        fits = len(folders) < RUNS_MAX and attempts + count <= ATTEMPTS_MAX
        if folder is not None and count and name not in folders and fits:
            folders[name] = folder
            attempts += count
    return folders


_BESIDE = ("-epochs", "-shards")
"""The endings of the names of tables that stand next to a single experiment's figures."""
_TEMPLATE = Path(__file__).with_suffix(".html")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure for a page: its SVG, what it shows, and the URL of its run's replay, if any."""

    caption: str
    svg: str
    subgrid: str
    part: Part
    live: str = ""


def html_page(
    study: StudyResult, tables: Sequence[report_tables.Table], figures: Sequence[Drawn]
) -> str:
    """Put a study's tables and figures on a page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_TEMPLATE.read_text("utf-8")).render(
        study=study,
        headline=_headline(study),
        failures=_failures(study),
        light=style.variables(style.LIGHT),
        dark=style.variables(style.DARK),
        sections=_sections(study, tables, figures),
        timelines=[figure for figure in figures if figure.part == "timeline"],
        resources=[figure for figure in figures if figure.part == "resources"],
        facts=facts_of(study.subgrids[0].runs[0].result) if _is_one_run(study) else [],
        workers=next((table for table in tables if table.name == report_tables.WORKERS_NAME), None),
        runs=tables[-1],
        fields=_fields(study),
    )


def _sections(
    study: StudyResult, tables: Sequence[report_tables.Table], figures: Sequence[Drawn]
) -> list[dict[str, Any]]:
    is_one_run = _is_one_run(study)
    is_titled_already = [subgrid.name for subgrid in study.subgrids] == [study.name]
    sections = []
    for subgrid in study.subgrids:
        own = [table for table in tables if table.subgrid == subgrid.name and table.rows]
        # The page of a single experiment begins with the content of its first table.
        first, *more = own
        beside = [one for one in more if one.name.endswith(_BESIDE)] if is_one_run else []
        sections.append(
            {
                "title": "" if is_titled_already else subgrid.name,
                "first": None if is_one_run else first,
                "beside": beside,
                "more": [one for one in (own if is_one_run else more) if one not in beside],
                "figures": [
                    f for f in figures if f.subgrid == subgrid.name and f.part == "outcome"
                ],
            }
        )
    return sections


def _is_one_run(study: StudyResult) -> bool:
    return study.is_single and bool(study.subgrids[0].runs)


def _headline(study: StudyResult) -> str:
    if study.is_single:
        run = study.subgrids[0].runs[0] if study.subgrids[0].runs else None
        state = run.result.state if run else "not run yet"
        reason = f": {run.result.reason}" if run and run.result.reason else "."
        return f"One experiment, {state}{reason}"
    repetitions = study.subgrids[0].repetitions
    each = f"{repetitions} repetition{'s' if repetitions > 1 else ''} each"
    headline = f"{study.done} of {study.asked} runs, {each}."
    if repetitions == 1:
        return headline
    return f"{headline} Figures have 95\u00a0% intervals of the mean, by Student's t."


def _failures(study: StudyResult) -> list[str]:
    """Name the settings of the runs that failed, each run once, with the reason."""
    repetitions: dict[tuple[str, str], list[int]] = {}
    seen: set[str] = set()
    for subgrid in study.subgrids:
        for run in sorted(subgrid.failed, key=lambda run: run.repetition):
            if run.result.experiment not in seen:
                where = ", ".join(
                    filter(None, (subgrid.name, report_tables.setting_of(subgrid, run.values)))
                )
                why = run.result.reason or run.result.state
                repetitions.setdefault((where, why), []).append(run.repetition)
                seen.add(run.result.experiment)
    return [
        f"{where}, repetition{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {why}"
        for (where, why), numbers in repetitions.items()
    ]


def _fields(study: StudyResult) -> report_tables.Table:
    """List the fields that all specs share, and name the fields that vary."""
    specs = [r.result.spec for subgrid in study.subgrids for r in (*subgrid.runs, *subgrid.failed)]
    names = list(dict.fromkeys(name for spec in specs for name in spec))
    rows = []
    for name in names:
        values = list(dict.fromkeys(label(spec.get(name)) for spec in specs))
        rows.append((name, values[0] if len(values) == 1 else f"varies: {', '.join(values)}"))
    columns = (report_tables.Column("field", "field"), report_tables.Column("value", "value"))
    return report_tables.Table("fields", "The fields of the spec", columns, tuple(rows))


PAGE_NAME = "index.html"
GENERATOR = 'name="generator" content="downpour report"'
_TABLES = "tables"
_FIGURES = "figures"

OnProgress = Callable[[int, int], None]


def write_report(
    study: StudyResult,
    out: Path,
    on_progress: OnProgress = lambda *_: None,
    spread: str = "interval",
) -> Path:
    """Write the report into a folder and return its page; `spread` is that of its tables.

    This makes the folder if it is missing, and replaces its `tables/`, `figures/` and pages.
    `on_progress` gets the number of finished figures, and the number of all.
    """
    require("a report", "report")
    if not any(subgrid.runs for subgrid in study.subgrids):
        raise SpecError("FOLDER", study.name, "has no finished run to report on")
    _check(out)
    tables, plots, page = report_tables.tables_of(study, spread), plots_of(study), out / PAGE_NAME
    try:
        for name in (_TABLES, _FIGURES):
            shutil.rmtree(out / name, ignore_errors=True)
            (out / name).mkdir(parents=True)
        for table in tables:
            forms = {
                "md": table.to_markdown(),
                "csv": table.to_csv(),
                "json": table.to_json(),
                "tex": table.to_latex(),
            }
            for suffix, text in forms.items():
                (out / _TABLES / f"{table.name}.{suffix}").write_text(text, "utf-8")
        live = write_live_copy(study, out)
        drawn = []
        for done, plot in enumerate(plots):
            on_progress(done, len(plots))
            drawn.append(_draw(plot, out / _FIGURES, live.get(plot.experiment, "")))
        on_progress(len(plots), len(plots))
        page.write_text(html_page(study, tables, drawn), "utf-8")
    except OSError as error:
        raise SpecError("out", str(out), explain(error)) from None
    return page


def _draw(plot: Plot, folder: Path, live: str) -> Drawn:
    """Write a figure in both formats; return it for the page, with the URL of its replay."""
    svg = style.to_svg(plot.figure, plot.name)
    (folder / f"{plot.name}.svg").write_text(svg, "utf-8")
    (folder / f"{plot.name}.png").write_bytes(style.to_png(plot.figure))
    return Drawn(plot.caption, style.for_page(svg), plot.subgrid, plot.part, live)


def _check(out: Path) -> None:
    """Refuse to replace anything but a report; by default, a trace is in the same folder."""
    try:
        others = (file for file in out.iterdir() if file.name != TRACE_NAME)
        if not any(others) or GENERATOR in (out / PAGE_NAME).read_text("utf-8"):
            return
    except FileNotFoundError:
        if not out.exists():
            return
    except (OSError, ValueError) as error:
        reason = explain(error) if isinstance(error, OSError) else "not text"
        raise SpecError("out", str(out), reason) from None
    raise SpecError("out", str(out), "holds something other than a report; choose another folder")
