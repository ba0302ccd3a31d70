"""Curves go through what was measured: losses by epoch, and the first metric along seconds."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from downpour.record.study_result import RunResult
from downpour.show.figures.curves import loss_figure, pace_figure
from downpour.show.report import plots_of
from tests.show.conftest import Make


def lossy(run: RunResult, trained: list[float | None], tested: list[float | None]) -> RunResult:
    """Return a run whose epochs have these losses."""
    epochs = tuple(
        replace(epoch, train_loss=one, test_loss=other)
        for epoch, one, other in zip(run.result.epochs, trained, tested, strict=True)
    )
    return replace(run, result=replace(run.result, rounds=epochs, epochs=epochs))


def drawn(axis: Any) -> list[tuple[list[float], list[float]]]:
    """Return the points of the lines of a panel."""
    return [
        (np.asarray(line.get_xdata()).tolist(), np.asarray(line.get_ydata()).tolist())
        for line in axis.lines
    ]


def test_one_experiment_has_a_line_for_each_of_its_losses(make: Make) -> None:
    """The one in training is thin, and the key says which is which."""
    run = lossy(make.run([0.5, 0.6]), [2.0, 1.0], [2.2, 1.5])
    figure = loss_figure(make.subgrid(settings=[()], runs=[run]))
    (axis,) = figure.axes
    assert drawn(axis) == [([1, 2], [2.2, 1.5]), ([1, 2], [2.0, 1.0])]
    thick, thin = axis.lines
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
    (first, accuracies), (second, _) = drawn(axis)
    assert first == pytest.approx([2.01, 4.02])
    assert second == pytest.approx([4.01, 8.02])
    assert accuracies == [50.0, 75.0]
    assert axis.get_xlabel() == "training and aggregation, s"
