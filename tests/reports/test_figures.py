"""What is drawn is what was measured; how it looks, people must look at."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from downpour.reports.drawing import for_page, to_png, to_svg
from downpour.reports.figures import (
    classes_figure,
    learning_figure,
    outcome_figure,
    plots_of,
)
from downpour.reports.lanes import STINTS_MAX, first_epochs, resource_figure, timeline_figure
from downpour.reports.style import LIGHT
from tests.reports.conftest import Make


def test_a_study_is_drawn_with_all_it_has(make: Make) -> None:
    """Accuracy, time, classes where shards differ in them; a timeline a setting, set aside."""
    plots = plots_of(make.study(make.workers(), make.splits()))
    shown = [plot.name for plot in plots if not plot.aside]
    assert shown == [
        "workers-accuracy",
        "workers-final",
        "workers-time",
        "splits-accuracy",
        "splits-final",
        "splits-time",
        "splits-classes",
    ]
    assert len([plot for plot in plots if plot.aside]) == 3
    assert len({plot.name for plot in plots}) == len(plots)


def test_learning_is_drawn_a_panel_for_each_split(make: Make) -> None:
    """A line for each aggregation, through the means."""
    figure = learning_figure(make.splits())
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["split: random", "split: class"]
    line = figure.axes[0].lines[0]
    assert list(np.asarray(line.get_xdata())) == [1, 2]
    assert list(np.asarray(line.get_ydata())) == pytest.approx([50.0, 62.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["average", "first"]


def test_a_line_has_the_same_look_in_every_panel(make: Make) -> None:
    """Also where a panel lacks some: `first` alone is drawn as `first`."""
    group = make.splits()
    runs = [run for run in group.runs if run.values != ("class", "average")]
    figure = learning_figure(make.group(axes=group.axes, settings=group.settings, runs=runs))
    assert figure.axes[1].lines[0].get_color() == figure.axes[0].lines[1].get_color()


def test_time_is_drawn_against_the_number_of_workers(make: Make) -> None:
    """At the numbers themselves, not at their places in the list."""
    figure = outcome_figure(make.workers(), "time")
    assert list(np.asarray(figure.axes[0].lines[0].get_xdata())) == [1, 2, 4]
    assert list(np.asarray(figure.axes[0].lines[0].get_ydata())) == [8, 4, 2]
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["1", "2", "4"]


def test_numbers_far_apart_are_drawn_in_decades(make: Make) -> None:
    """Learning rates, say; with their own values at the ticks."""
    rates = (0.001, 0.01, 0.1)
    runs = [make.run([0.5], values=(rate,)) for rate in rates]
    group = make.group(axes=("learning_rate",), settings=[(rate,) for rate in rates], runs=runs)
    axis = outcome_figure(group, "accuracy").axes[0]
    assert axis.get_xscale() == "log"
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.001", "0.01", "0.1"]


def test_splits_and_aggregations_are_grouped_bars(make: Make) -> None:
    """A cluster a split, a bar an aggregation, as high as the mean."""
    figure = outcome_figure(make.splits(), "accuracy")
    heights = sorted(
        bar.get_height() for bar in figure.axes[0].patches if isinstance(bar, Rectangle)
    )
    assert heights == pytest.approx([62, 72, 82, 91])
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["random", "class"]


def test_no_axis_shows_more_than_everything_right(make: Make) -> None:
    """However wide an interval is, accuracy stays between 0 and 100 per cent."""
    runs = [make.run([a], values=("random",), trial=n) for n, a in enumerate((0.1, 0.5, 0.9), 1)]
    group = make.group(axes=("split",), settings=[("random",), ("class",)], runs=runs)
    for figure in (learning_figure(group), outcome_figure(group, "accuracy")):
        low, high = figure.axes[0].get_ylim()
        assert low >= 0
        assert high <= 100


def test_two_trials_draw_no_interval(make: Make) -> None:
    """It would hide everything else; three do."""
    for trials, bands in ((2, 0), (3, 1)):
        runs = [make.run([0.1 * n, 0.2 * n], values=(), trial=n) for n in range(1, trials + 1)]
        figure = learning_figure(make.group(settings=[()], runs=runs))
        assert len(figure.axes[0].collections) == bands


def test_each_class_is_a_square(make: Make) -> None:
    """A row a setting, a column a class; one that nobody tested is left blank."""
    axis = classes_figure(make.splits()).axes[0]
    assert [text.get_text() for text in axis.texts] == ["90", "", "20", "90", "", "10"]


def test_each_worker_has_a_lane(make: Make) -> None:
    """Workers in their order; a bar an attempt, with the shard's number on it."""
    figure = timeline_figure(make.stints(2))
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["worker-1", "worker-2"]
    assert len(axis.patches) == 8
    assert {text.get_text() for text in axis.texts} <= {"0", "1", "2", "3"}


def test_a_long_experiment_is_drawn_from_its_beginning(make: Make) -> None:
    """Whole epochs, as many as can be told apart; the first in any case."""
    assert first_epochs(make.stints(2) * (STINTS_MAX // 8 + 1))[-1].epoch == 1
    assert first_epochs(make.stints(2))[-1].epoch == 2


def test_resources_are_drawn_a_panel_each(make: Make) -> None:
    """CPU, memory, threads and I/O wait over time; a line a process; set aside like timelines."""
    samples = make.samples("worker-1", "worker-2")
    figure = resource_figure(samples)
    assert [axis.get_ylabel() for axis in figure.axes] == [
        "CPU, cores",
        "memory, MB",
        "threads",
        "I/O wait, %",
    ]
    drawn = [list(np.asarray(axis.lines[1].get_ydata())) for axis in figure.axes]
    assert drawn == [[1.9, 1.0], [2.0, 3.0], [7, 7], [0.0, 25.0]]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["worker-1", "worker-2"]
    run = make.run([0.5], resources=samples, stints=make.stints(2))
    plots = plots_of(make.study(make.group(settings=[()], runs=[run])))
    assert [p.name for p in plots if p.aside] == ["timeline-one--1", "resources-one--1"]


def test_a_long_trace_is_drawn_with_fewer_points(make: Make) -> None:
    """As many as can be told apart, from its beginning to its end."""
    first, _ = make.samples("a")
    samples = [replace(first, at_seconds=float(second)) for second in range(1000)]
    times = np.asarray(resource_figure(samples).axes[0].lines[0].get_xdata())
    assert len(times) <= 300
    assert times[0] == 0
    assert times[-1] > 990


def test_a_drawing_is_the_same_every_time(make: Make) -> None:
    """No date, no chance: a report can be committed without noise."""
    figures = [outcome_figure(make.splits(), "time") for _ in range(2)]
    assert to_svg(figures[0], "time") == to_svg(figures[1], "time")
    assert to_png(figures[0]) == to_png(figures[1])
    assert to_png(figures[0]).startswith(b"\x89PNG")


def test_a_page_colours_the_drawing_itself(make: Make) -> None:
    """Every colour of the style becomes a variable, and names that would clash are gone."""
    inner = for_page(to_svg(outcome_figure(make.splits(), "time"), "time"))
    assert inner.startswith("<svg")
    assert "var(--series-1)" in inner
    assert not any(colour in inner for colour in LIGHT.values())
    assert 'id="figure_1"' not in inner
