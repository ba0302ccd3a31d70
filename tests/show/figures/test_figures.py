"""What is drawn is what was measured; how it looks, people must look at."""

import re

import numpy as np
import pytest
from matplotlib.patches import Rectangle
from msgspec.structs import replace

from downpour.core.splitters import ShardCounts
from downpour.record.result_parts import Measure
from downpour.show.figures.curves import classes_figure, learning_figure, outcome_figure
from downpour.show.figures.result_figure import resource_figure
from downpour.show.figures.style import LIGHT, for_page, to_png, to_svg
from downpour.show.figures.timeline_figure import (
    SPANS_MAX,
    first_rounds,
    timeline_figure,
    timelines_figure,
)
from downpour.show.report import plots_of
from tests.show.conftest import Make

ACCURACY = Measure("accuracy")


def test_a_study_is_drawn_with_all_it_has(make: Make) -> None:
    """Accuracy, losses and time, classes where shards differ; no course if there was one epoch."""
    plots = plots_of(make.study(make.workers(), make.splits()))
    shown = [plot.name for plot in plots if plot.part == "outcome"]
    assert shown == [
        "workers-accuracy",
        "workers-final",
        "workers-time",
        "splits-accuracy",
        "splits-loss",
        "splits-pace",
        "splits-final",
        "splits-time",
        "splits-classes",
    ]
    assert len([plot for plot in plots if plot.part == "timeline"]) == 3
    assert len({plot.name for plot in plots}) == len(plots)


def test_splits_are_drawn_where_the_record_counts_them(make: Make) -> None:
    """A figure for each number of shards, with every split once."""
    counts = [
        ShardCounts(
            split=split, sizes=np.full(shards, 4), by_class=np.full((shards, 2), 2), held_out=0
        )
        for split, shards in (("random", 2), ("class", 2), ("random", 3))
    ]
    values = [("a",), ("b",), ("c",), ("d",)]
    runs = [
        make.run([0.5], values=one, split=split)
        for one, split in zip(values, [*counts, counts[0]], strict=True)
    ]
    subgrid = make.subgrid(axes=("setting",), settings=values, runs=runs)
    drawn = {plot.name: plot.figure for plot in plots_of(make.study(subgrid))}
    assert {name for name in drawn if "split-" in name} == {"splits-split-2", "splits-split-3"}
    titles = [axis.get_title("left") for axis in drawn["splits-split-2"].axes[::2]]
    assert [title.split(":")[0] for title in titles] == ["random", "class"]


def test_learning_is_drawn_a_panel_for_each_split(make: Make) -> None:
    """A line for each aggregation, through the means."""
    figure = learning_figure(make.splits())
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["split: random", "split: class"]
    line = figure.axes[0].lines[0]
    assert list(np.asarray(line.get_xdata())) == [1, 2]
    assert list(np.asarray(line.get_ydata())) == pytest.approx([50.0, 62.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["average", "first"]


def test_panels_that_are_compared_have_the_same_axes(make: Make) -> None:
    """What is higher is better, whichever panel it is in; nothing is cut off."""
    figure = learning_figure(make.splits())
    above, below = figure.axes
    assert above.get_ylim() == below.get_ylim()
    low, high = above.get_ylim()
    assert low < 50
    assert high > 90


def test_a_line_has_the_same_look_in_every_panel(make: Make) -> None:
    """Also where a panel lacks some: `first` alone is drawn as `first`."""
    subgrid = make.splits()
    runs = [run for run in subgrid.runs if run.values != ("class", "average")]
    figure = learning_figure(make.subgrid(axes=subgrid.axes, settings=subgrid.settings, runs=runs))
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
    subgrid = make.subgrid(axes=("learning_rate",), settings=[(rate,) for rate in rates], runs=runs)
    axis = outcome_figure(subgrid, ACCURACY).axes[0]
    assert axis.get_xscale() == "log"
    assert [text.get_text() for text in axis.get_xticklabels()] == ["0.001", "0.01", "0.1"]


def test_numbers_too_near_to_be_named_side_by_side_are_drawn_in_decades(make: Make) -> None:
    """Powers of two, say, but not what is at even distances."""
    for numbers, scale in (
        ((1, 2, 4, 8, 16), "log"),
        ((1, 3, 7, 10), "linear"),
        ((0, 9), "linear"),
    ):
        runs = [make.run([0.5], values=(n,)) for n in numbers]
        subgrid = make.subgrid(axes=("workers",), settings=[(n,) for n in numbers], runs=runs)
        assert outcome_figure(subgrid, "time").axes[0].get_xscale() == scale


def test_no_epoch_is_called_zero(make: Make) -> None:
    """Nor anything between two; of many epochs only some have a mark."""
    subgrid = make.subgrid(settings=[()], runs=[make.run([0.5] * 25)])
    axis = learning_figure(subgrid).axes[0]
    low, high = axis.get_xlim()
    assert [tick for tick in axis.get_xticks() if low <= tick <= high] == [5, 10, 15, 20, 25]
    assert axis.lines[0].get_markevery() == 3
    single = learning_figure(make.subgrid(settings=[()], runs=[make.run([0.5])])).axes[0]
    low, high = single.get_xlim()
    assert [tick for tick in single.get_xticks() if low <= tick <= high] == [1]


def test_what_was_not_evaluated_has_no_figure_of_accuracy(make: Make) -> None:
    """But one of time."""
    runs = [make.run([None], values=(n,)) for n in (1, 2)]
    subgrid = make.subgrid(axes=("workers",), settings=[(1,), (2,)], runs=runs)
    assert [plot.name for plot in plots_of(make.study(subgrid))] == ["splits-time"]


def test_splits_and_aggregations_are_grouped_bars(make: Make) -> None:
    """A cluster a split, a bar an aggregation, as high as the mean."""
    figure = outcome_figure(make.splits(), ACCURACY)
    heights = sorted(
        bar.get_height() for bar in figure.axes[0].patches if isinstance(bar, Rectangle)
    )
    assert heights == pytest.approx([62, 72, 82, 91])
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["random", "class"]


def test_no_axis_shows_more_than_everything_right(make: Make) -> None:
    """However wide an interval is, accuracy stays between 0 and 100 per cent."""
    runs = [
        make.run([a], values=("random",), repetition=n) for n, a in enumerate((0.1, 0.5, 0.9), 1)
    ]
    subgrid = make.subgrid(axes=("split",), settings=[("random",), ("class",)], runs=runs)
    for figure in (learning_figure(subgrid), outcome_figure(subgrid, ACCURACY)):
        low, high = figure.axes[0].get_ylim()
        assert low >= 0
        assert high <= 100


def test_two_trials_draw_no_interval(make: Make) -> None:
    """It would hide everything else; three do."""
    for repetitions, bands in ((2, 0), (3, 1)):
        runs = [
            make.run([0.1 * n, 0.2 * n], values=(), repetition=n) for n in range(1, repetitions + 1)
        ]
        figure = learning_figure(make.subgrid(settings=[()], runs=runs))
        assert len(figure.axes[0].collections) == bands
        caption = plots_of(make.study(make.subgrid(settings=[()], runs=runs)))[0].caption
        assert ("bands are 95" in caption) == bool(bands)


def test_a_line_that_is_not_there_is_not_in_the_legend(make: Make) -> None:
    """And the others look as they will when it is."""
    settings = [("a",), ("b",), ("c",)]
    runs = [make.run([0.5, 0.6], values=values) for values in settings[1:]]
    figure = learning_figure(make.subgrid(axes=("split",), settings=settings, runs=runs))
    keys = figure.legends[0]
    assert [text.get_text() for text in keys.get_texts()] == ["b", "c"]
    drawn = [line.get_color() for line in figure.axes[0].lines]
    assert [key.get_color() for key in keys.get_lines()] == drawn


def test_a_bar_has_its_height_above_it_and_its_hatch_in_the_legend(make: Make) -> None:
    """With decimals for its size; only the first two bars of a cluster differ by colour alone."""
    names = ("a", "b", "c", "d")
    settings = [("random", name) for name in names]
    runs = [make.run([0.5], values=values, seconds=0.0125) for values in settings]
    axes = ("split", "aggregate")
    figure = outcome_figure(make.subgrid(axes=axes, settings=settings, runs=runs), "time")
    assert [text.get_text() for text in figure.axes[0].texts] == ["0.013"] * 4
    keys = figure.legends[0].get_patches()
    assert [key.get_hatch() or "" for key in keys] == ["", "", "////", "..."]
    assert [key.get_facecolor() for key in keys] == [
        bar.get_facecolor() for bar in figure.axes[0].patches
    ]


def test_a_setting_that_failed_has_a_cross_for_a_bar(make: Make) -> None:
    """An empty place would mean that it was not run yet."""
    settings = [(split, name) for split in ("random", "class") for name in ("average", "first")]
    runs = [make.run([0.5], values=settings[0])]
    lost = (make.run([], values=settings[3]),)
    axes = ("split", "aggregate")
    subgrid = make.subgrid(axes=axes, settings=settings, runs=runs, failed=lost)
    axis = outcome_figure(subgrid, ACCURACY).axes[0]
    assert [text.get_text() for text in axis.texts] == ["×", "50.0"]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["random", "class"]
    assert "× marks failed attempts" in plots_of(make.study(subgrid))[1].caption


def test_many_narrow_bars_have_upright_numbers(make: Make) -> None:
    """Side by side they would touch."""
    settings = [(split, n) for split in "abcdef" for n in "wxyz"]
    runs = [make.run([0.5], values=values) for values in settings]
    subgrid = make.subgrid(axes=("split", "aggregate"), settings=settings, runs=runs)
    texts = outcome_figure(subgrid, ACCURACY).axes[0].texts
    assert {text.get_rotation() for text in texts} == {90.0}


def test_many_classes_have_a_scale_in_place_of_numbers(make: Make) -> None:
    """A hundred numbers would not fit."""
    run = make.run([0.5], classes=(0.5,) * 100, spec={"split": "class"})
    figure = classes_figure(make.subgrid(settings=[()], runs=[run]))
    assert not figure.axes[0].texts
    assert figure.axes[1].get_ylabel() == "accuracy, %"


def test_each_class_is_a_square(make: Make) -> None:
    """A row a setting, a column a class; a class without test examples is left blank."""
    axis = classes_figure(make.splits()).axes[0]
    texts = [text.get_text() for text in axis.texts]
    assert texts == [*["90", "", "20"] * 3, "90", "", "10"]


def test_each_worker_has_a_lane(make: Make) -> None:
    """Workers in their order; a bar an attempt, with the shard's number on it."""
    figure = timeline_figure(make.spans(2))
    axis = figure.axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["worker-1", "worker-2"]
    assert len(axis.patches) == 8
    assert {text.get_text() for text in axis.texts} <= {"0", "1", "2", "3"}


def test_a_long_experiment_is_drawn_from_its_beginning(make: Make) -> None:
    """Whole epochs, as many as are distinguishable; the first in any case."""
    assert first_rounds(make.spans(2) * (SPANS_MAX // 8 + 1))[-1].round == 1
    assert first_rounds(make.spans(2))[-1].round == 2


def test_runs_are_compared_along_the_same_seconds(make: Make) -> None:
    """Each run has a panel with a lane for every worker; the legend names moves once."""
    spans = make.spans(2)
    moved = [replace(span, outcome="moved", end_seconds=50.0) for span in spans[:1]]
    figure = timelines_figure({"wait": spans, "handoff": moved})
    above, below = figure.axes
    assert [axis.get_title("left") for axis in (above, below)] == ["wait", "handoff"]
    assert above.get_xlim() == below.get_xlim() == (0, 50.5)
    lanes = [[text.get_text() for text in axis.get_yticklabels()] for axis in (above, below)]
    assert lanes[0] == lanes[1]
    assert len(lanes[0]) > 1
    (key,) = figure.legends
    assert "went on elsewhere" in [text.get_text() for text in key.get_texts()]


def test_a_disturbance_is_a_line_in_its_run_alone(make: Make) -> None:
    """The legend names it; without any it does not."""
    spans = make.spans(2)
    figure = timelines_figure({"calm": spans, "killed": spans}, disturbed={"killed": [1.5]})
    dashed = [
        [np.asarray(line.get_xdata())[0] for line in axis.lines if line.is_dashed()]
        for axis in figure.axes
    ]
    assert dashed == [[], [1.5]]
    assert "a process slowed or killed" in [
        text.get_text() for text in figure.legends[0].get_texts()
    ]
    [key] = timelines_figure({"calm": spans}).legends
    assert "a process slowed or killed" not in [text.get_text() for text in key.get_texts()]


def test_resources_are_drawn_a_panel_each(make: Make) -> None:
    """CPU, memory, threads and I/O wait over time; a line a process."""
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
    run = make.run([0.5], resources=samples, spans=make.spans(2))
    plots = plots_of(make.study(make.subgrid(settings=[()], runs=[run])))
    assert [p.name for p in plots if p.part != "outcome"] == ["timeline-one--1", "resources-one--1"]


def test_only_what_was_used_has_a_panel(make: Make) -> None:
    """A measure that is 0 throughout has none; the caption says so."""
    samples = {"a": [one._replace(io_wait=0.0) for one in make.samples("a")["a"]]}
    figure = resource_figure(samples)
    assert [axis.get_ylabel() for axis in figure.axes] == ["CPU, cores", "memory, MB", "threads"]
    plots = plots_of(
        make.study(make.subgrid(settings=[()], runs=[make.run([0.5], resources=samples)]))
    )
    assert plots[-1].caption.endswith("; measures without a panel stayed 0")


def test_a_run_too_short_to_have_a_course_has_no_figure_of_resources(make: Make) -> None:
    """A sample of each process is a dot at the edge of four empty panels."""
    lone = make.samples("a")["a"][:1]
    for samples in ({}, {"a": lone, "b": lone}, {"a": lone * 2, "b": lone * 2}):
        run = make.run([0.5], resources=samples)
        plots = plots_of(make.study(make.subgrid(settings=[()], runs=[run])))
        assert [plot.part for plot in plots] == ["outcome"]


def test_a_line_is_broken_where_a_process_sent_nothing(make: Make) -> None:
    """A worker that trained nothing has no samples for that time; a lone sample is a dot."""
    first, _ = make.samples("a")["a"]
    seconds = (1.0, 2.0, 3.0, 4.0, 30.0, 31.0, 50.0)
    samples = {"a": [first._replace(at_seconds=second) for second in seconds]}
    line = resource_figure(samples).axes[0].lines[0]
    values = np.asarray(line.get_ydata())
    assert list(np.flatnonzero(np.isnan(values))) == [4, 7]
    assert line.get_markevery() == [8]


def test_a_long_trace_is_drawn_with_fewer_points(make: Make) -> None:
    """As many as are distinguishable, from its beginning to its end."""
    first, _ = make.samples("a")["a"]
    samples = {"a": [first._replace(at_seconds=float(second)) for second in range(1000)]}
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


def test_a_page_loses_nothing_that_can_be_seen(make: Make) -> None:
    """Coordinates are cut to hundredths of a point; what is written stays as it is."""
    rates = (0.00001, 0.00012345)
    runs = [make.run([0.5], values=(rate,)) for rate in rates]
    subgrid = make.subgrid(axes=("learning_rate",), settings=[(rate,) for rate in rates], runs=runs)
    svg = to_svg(outcome_figure(subgrid, "time"), "time")
    inner = for_page(svg)
    assert ">0.00012345<" in inner
    assert not re.search(r' d="[^"]*\.\d{3}', inner)
    assert len(inner) < 0.9 * len(svg)
