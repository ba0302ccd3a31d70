"""A map of classes shows what was measured of each, by epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from downpour.record.study_result import RunResult
from downpour.show.figures.curves import class_course_figure, has_class_course
from downpour.show.figures.figures import plots_of
from tests.show.conftest import Make


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
