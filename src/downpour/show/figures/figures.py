"""The figures of a study, each with a sentence that describes it.

Bands and whiskers are 95 % intervals over the repetitions. Nothing here writes a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

from downpour.base.states import LOSS
from downpour.core.splitters import ShardCounts
from downpour.record.study_result import RunResult, StudyResult, SubgridResult
from downpour.show.figures.curves import (
    class_course_figure,
    classes_figure,
    has_class_course,
    has_course,
    has_loss_course,
    learning_figure,
    loss_figure,
    numeric_axis,
    outcome_figure,
    pace_figure,
)
from downpour.show.figures.result_figure import MEASURES, measures_of, resource_figure, split_figure
from downpour.show.figures.style import REPETITIONS_MIN
from downpour.show.figures.timeline_figure import is_enlarged, timeline_figure
from downpour.show.tables.report_tables import final_classes, measured_by, part_of, setting_of

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
    """Draw the course of the first metric and of the losses."""
    bands = f"; bands {_INTERVALS}" if _has_intervals(subgrid) else ""
    first, part = measured_by(subgrid)[0], part_of(subgrid)
    words = f"{part.capitalize()} {first.words}"
    # If the first measure is a loss, the figure of the losses already shows it.
    if _is_measured(subgrid) and not (first.name == LOSS and has_loss_course(subgrid)):
        name = f"{subgrid.name}-{first.file_stem}"
        caption = f"{words} after each epoch{bands}"
        yield Plot(subgrid.name, name, caption, learning_figure(subgrid))
    if has_loss_course(subgrid):
        means = "; means over the repetitions" if bands else ""
        caption = f"Training and {part} loss by epoch{means}"
        yield Plot(subgrid.name, f"{subgrid.name}-{LOSS}", caption, loss_figure(subgrid))
    if len(subgrid.settings) > 1 and has_course(subgrid):
        caption = f"{words} along the seconds of training and aggregation, without evaluation"
        yield Plot(subgrid.name, f"{subgrid.name}-pace", caption + bands, pace_figure(subgrid))


def _outcomes(subgrid: SubgridResult) -> Iterator[Plot]:
    """Draw the results of each setting, if there are several settings."""
    if len(subgrid.settings) < 2:
        return
    whiskers = f"; whiskers {_INTERVALS}" if _has_intervals(subgrid) else ""
    if subgrid.lost and numeric_axis(subgrid) < 0:
        whiskers += "; × marks failed attempts"
    if _is_measured(subgrid):
        first = measured_by(subgrid)[0]
        caption = f"{first.words.capitalize()} of the final model{whiskers}"
        figure = outcome_figure(subgrid, first)
        yield Plot(subgrid.name, f"{subgrid.name}-final", caption, figure)
    caption = f"Seconds of training, without aggregation and evaluation{whiskers}"
    figure = outcome_figure(subgrid, "time")
    yield Plot(subgrid.name, f"{subgrid.name}-time", caption, figure)


def _classes(subgrid: SubgridResult) -> Iterator[Plot]:
    """Draw the accuracy of each class: by epoch if there is one setting, else by setting."""
    name = f"{subgrid.name}-classes"
    if len(subgrid.settings) == 1 and has_class_course(subgrid.runs):
        caption = f"{part_of(subgrid).capitalize()} accuracy of each class by epoch, in %"
        yield Plot(subgrid.name, name, caption, class_course_figure(subgrid.runs))
    elif any(run.has_uneven_data and final_classes(run) for run in subgrid.runs):
        caption = "Accuracy of the final models for each class, in %"
        yield Plot(subgrid.name, name, caption, classes_figure(subgrid))


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
    return any(len(runs) >= REPETITIONS_MIN for _, runs in subgrid.measured)


def _is_measured(subgrid: SubgridResult) -> bool:
    first = measured_by(subgrid)[0]
    return any(run.result.measured(first.name) is not None for run in subgrid.runs)


def _along_time(subgrid: SubgridResult, run: RunResult) -> Iterator[Plot]:
    setting = setting_of(subgrid, run.values) or subgrid.name
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
