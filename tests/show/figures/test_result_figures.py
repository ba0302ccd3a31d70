"""Figures of results and of losses."""

import dataclasses
import re
import sys
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from matplotlib.lines import Line2D

import downpour
from downpour.base.errors import MissingPackage
from downpour.core.spec import Spec
from downpour.core.splitters import SplitCut, cut
from downpour.record.study_result import RunResult
from downpour.show.figures.curves import (
    class_course_figure,
    has_class_course,
    loss_figure,
    pace_figure,
)
from downpour.show.figures.result_figure import CLASSES_MAX, SHARDS_MAX, split_figure
from downpour.show.figures.style import LIGHT, new_figure, to_svg
from downpour.show.report import plots_of
from tests.show.conftest import Make

RESULT = downpour.Result.read(Path(__file__).parents[2] / "recorded" / "gestures")


def points(line: Line2D) -> list[tuple[float, float]]:
    """Return what a line goes through."""
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def test_a_plot_has_the_metric_and_the_losses() -> None:
    """A panel for each metric and one for the losses; an epoch without a value has no point."""
    accuracy, losses = RESULT.plot().axes
    (line,) = accuracy.get_lines()
    assert points(line) == [(1, 45.0), (3, 91.25)]
    assert accuracy.get_ylabel() == "test accuracy, %"
    drawn = {str(one.get_label()): points(one) for one in losses.get_lines()}
    assert drawn == {
        "test": [(e.epoch, e.test_loss) for e in RESULT.epochs if e.test_loss is not None],
        "training": [(e.epoch, e.train_loss) for e in RESULT.epochs if e.train_loss is not None],
    }


def test_an_experiment_without_metrics_has_its_losses() -> None:
    """Also one that has only begun."""
    bare = dataclasses.replace(RESULT, rounds=(), epochs=())
    (losses,) = bare.plot().axes
    assert losses.get_ylabel() == "loss"


def test_a_timeline_marks_when_someone_disturbed_a_process() -> None:
    """With a line, and a word on it in the key, as the report does."""
    at = RESULT.spans[0].end_seconds
    figure = dataclasses.replace(RESULT, disturbed_seconds=(at,)).timeline()
    drawn = [points(line) for line in figure.axes[0].get_lines()]
    assert [(at, 0), (at, 1)] in drawn
    (key,) = figure.legends
    assert "a process slowed or killed" in [text.get_text() for text in key.get_texts()]


def test_a_figure_shows_itself_in_a_notebook() -> None:
    """As an image, whether or not pyplot was imported."""
    html = new_figure(1.0, 1.0)._repr_html_()
    assert isinstance(html, str)
    _, _, source = html.partition("base64,")
    assert b64decode(source.partition('"')[0]).startswith(b"\x89PNG")


@pytest.mark.parametrize("draw", [downpour.Result.plot, downpour.Result.timeline])
def test_without_matplotlib_one_line_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, draw: Callable[[downpour.Result], object]
) -> None:
    """As of every other extra."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = rf"Result\.{draw.__name__} needs matplotlib; install downpour-sgd\[report\]"
    with pytest.raises(MissingPackage, match=said):
        draw(RESULT)


def course(run: RunResult, *known: tuple[float | None, ...]) -> RunResult:
    """Return a run whose epochs know the classes so well."""
    pairs = zip(run.result.epochs, known, strict=True)
    epochs = tuple(replace(epoch, class_accuracy=one) for epoch, one in pairs)
    return replace(run, result=replace(run.result, rounds=epochs, epochs=epochs))


def test_a_row_is_a_class_and_a_column_an_epoch(make: Make) -> None:
    """An epoch that was not evaluated has no column; repetitions are averaged."""
    once = course(make.run([0.5] * 3), (0.5, 0.0), (), (1.0, None))
    again = course(make.run([0.5] * 3, repetition=2), (0.7, 0.0), (), (1.0, None))
    (axis,) = class_course_figure([once, again]).axes
    assert [text.get_text() for text in axis.texts] == ["60", "100", "0", ""]
    assert [text.get_text() for text in axis.get_xticklabels()] == ["1", "3"]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["0", "1"]


def test_of_many_epochs_every_nth_is_drawn_and_the_last(make: Make) -> None:
    """A page stays small, and shows what the model came to."""
    run = make.run([0.5] * 1000, classes=(0.5, 0.6))
    run = course(run, *[(0.5, 0.6)] * 999, (0.5, 1.0))
    axis = class_course_figure([run]).axes[0]
    (squares,) = axis.collections
    shares = np.asarray(squares.get_array())
    assert len(shares) == 2
    assert len(shares[0]) <= 60
    assert shares[1][-1] == 100


def test_only_few_classes_over_several_epochs_have_a_course(make: Make) -> None:
    """A hundred rows are not told apart, and one column is no course."""
    assert has_class_course([make.run([0.5, 0.6], classes=(0.1, 0.2))])
    assert not has_class_course([make.run([0.5], classes=(0.1, 0.2))])
    assert not has_class_course([make.run([0.5, 0.6], classes=(0.1,) * 100)])
    assert not has_class_course([make.run([0.5, 0.6])])


def test_one_setting_has_a_map_by_epoch_and_several_one_by_setting(make: Make) -> None:
    """Under the same name: no report has both."""
    one = make.subgrid(settings=[()], runs=[make.run([0.5, 0.6], classes=(0.1, 0.2))])
    captions = {
        plot.name: plot.caption
        for subgrid in (one, replace(make.splits(), name="several"))
        for plot in plots_of(make.study(subgrid))
    }
    assert captions["splits-classes"].startswith("Test accuracy of each class by epoch")
    assert captions["several-classes"].startswith("Accuracy of the final models for each class")


def made(split: str, classes: int, shards: int) -> SplitCut:
    """Cut sixty examples of each class."""
    labels = np.arange(60 * classes) % classes if classes else None
    return cut(Spec(split=split), labels, 60 * classes or 60, classes, shards)


def dots_of(axis: Any) -> tuple[list[tuple[int, int]], list[float]]:
    """Return the places (shard, class) of an axis's dots, and their areas."""
    (dots,) = (one for one in axis.collections if isinstance(one, PathCollection))
    places = np.asarray(dots.get_offsets()).astype(int)
    return [(int(x), int(y)) for x, y in places], [float(s) for s in dots.get_sizes()]


def test_a_dot_is_as_large_as_its_count_in_every_panel() -> None:
    """Two splits are compared by their areas; where there is no example, there is no dot."""
    cuts = [made("class", 4, 3), made("dirichlet(0.5)", 4, 3)]
    figure = split_figure(cuts)
    areas_per_example = []
    for place, one in enumerate(cuts):
        bars, dots = figure.axes[2 * place : 2 * place + 2]
        heights = [float(bar.get_height()) for bar in bars.patches]  # type: ignore[attr-defined]
        assert heights == one.sizes.tolist()
        places, areas = dots_of(dots)
        assert places == [(int(s), int(c)) for s, c in np.argwhere(one.by_class)]
        counts = one.by_class[one.by_class > 0]
        areas_per_example += (np.array(areas) / counts).tolist()
    assert areas_per_example == pytest.approx([areas_per_example[0]] * len(areas_per_example))
    assert figure.axes[0].get_ylim() == figure.axes[2].get_ylim()


def test_many_classes_and_shards_are_folded() -> None:
    """The last lane is the mean of the others, which has the scale of one class."""
    one = made("random", CLASSES_MAX + 80, SHARDS_MAX + 60)
    figure = split_figure([one])
    bars, dots = figure.axes
    assert len(bars.patches) == SHARDS_MAX
    names = [text.get_text() for text in dots.get_yticklabels()]
    assert names[-1] == "others"
    assert dots.get_ylabel() == "class; others: mean of 80"
    assert dots.get_xlabel() == f"shard: the first {SHARDS_MAX} of {SHARDS_MAX + 60}"
    places, areas = dots_of(dots)
    means = one.by_class[:SHARDS_MAX, CLASSES_MAX:].mean(axis=1)
    others = [area for (_, lane), area in zip(places, areas, strict=True) if lane == CLASSES_MAX]
    assert np.array(others) / others[0] == pytest.approx(means / means[0])


def test_without_classes_there_are_only_bars() -> None:
    """And no key, which would be of dots."""
    figure = split_figure([made("random", 0, 4)])
    assert len(figure.axes) == 1
    assert not figure.legends


def test_every_colour_has_a_name() -> None:
    """So that a dark page can put its own in their places."""
    svg = to_svg(split_figure([made("class", 3, 2)]), "splits")
    assert set(re.findall(r"#[0-9a-f]{6}\b", svg)) <= set(LIGHT.values())


def test_the_same_cuts_are_the_same_bytes() -> None:
    """A figure that is committed changes with what it shows alone."""
    one, again = (to_svg(split_figure([made("equal", 3, 2)]), "splits") for _ in range(2))
    assert one == again
    assert "sizes max/min 1.00, mean distance 0.00" in one


def lossy(run: RunResult, trained: list[float | None], tested: list[float | None]) -> RunResult:
    """Return a run whose epochs have these losses."""
    epochs = tuple(
        replace(epoch, train_loss=one, test_loss=other)
        for epoch, one, other in zip(run.result.epochs, trained, tested, strict=True)
    )
    return replace(run, result=replace(run.result, rounds=epochs, epochs=epochs))


def test_one_experiment_has_a_line_for_each_of_its_losses(make: Make) -> None:
    """The one in training is thin, and the key says which is which."""
    run = lossy(make.run([0.5, 0.6]), [2.0, 1.0], [2.2, 1.5])
    figure = loss_figure(make.subgrid(settings=[()], runs=[run]))
    (axis,) = figure.axes
    thick, thin = axis.lines
    assert points(thick) == [(1, 2.2), (2, 1.5)]
    assert points(thin) == [(1, 2.0), (2, 1.0)]
    assert thin.get_linewidth() < thick.get_linewidth()
    names = [text.get_text() for text in axis.get_legend().get_texts()]  # type: ignore[union-attr]
    assert names == ["test loss", "training loss"]


def test_losses_are_drawn_a_panel_for_each_value_of_the_first_axis(make: Make) -> None:
    """As the accuracy is, in the same colours; means over the repetitions, and no bands."""
    figure = loss_figure(make.splits())
    assert [axis.get_title("left") for axis in figure.axes] == ["split: random", "split: class"]
    for axis in figure.axes:
        assert len(axis.lines) == 4
        assert not axis.collections
        colours = [line.get_color() for line in axis.lines]
        assert colours[0] == colours[1] != colours[2] == colours[3]


def test_losses_that_fall_far_are_drawn_in_decades(make: Make) -> None:
    """And those that do not are drawn along a straight axis, also where one of them is 0."""
    for losses, scale in (([3.0, 0.01], "log"), ([3.0, 1.0], "linear"), ([3.0, 0.0], "linear")):
        run = lossy(make.run([0.5, 0.6]), [*losses], [None, None])
        figure = loss_figure(make.subgrid(settings=[()], runs=[run]))
        assert figure.axes[0].get_yscale() == scale


def test_what_has_no_course_has_no_curve(make: Make) -> None:
    """One epoch is a dot; an experiment that is never evaluated still has losses in training."""
    one = make.subgrid(settings=[()], runs=[make.run([0.5])])
    assert [plot.name for plot in plots_of(make.study(one))] == ["splits-accuracy"]
    blind = lossy(make.run([None, None]), [2.0, 1.0], [None, None])
    plots = plots_of(make.study(make.subgrid(settings=[()], runs=[blind])))
    assert [plot.name for plot in plots] == ["splits-loss"]


def test_a_task_without_metrics_has_its_loss_drawn_once(make: Make) -> None:
    """The figure of losses is that of its first measure, too."""
    run = lossy(make.run([None, None]), [2.0, 1.0], [2.2, 1.5])
    plots = plots_of(make.study(make.subgrid(settings=[()], runs=[run])))
    assert [plot.name for plot in plots] == ["splits-loss"]


def test_pace_is_drawn_along_training_and_aggregation(make: Make) -> None:
    """A setting's epochs stand where they had ended on the mean of its repetitions."""
    runs = [
        make.run([0.5, 0.75], values=(n,), repetition=repetition, seconds=n * repetition)
        for n in (1.0, 2.0)
        for repetition in (1, 3)
    ]
    subgrid = make.subgrid(axes=("workers",), settings=[(1.0,), (2.0,)], runs=runs)
    (axis,) = pace_figure(subgrid).axes
    first, second = map(points, axis.lines)
    assert first == [pytest.approx((2.01, 50.0)), pytest.approx((4.02, 75.0))]
    assert second == [pytest.approx((4.01, 50.0)), pytest.approx((8.02, 75.0))]
    assert axis.get_xlabel() == "training and aggregation, s"
