"""The figures that a result draws of itself."""

from __future__ import annotations

import dataclasses
import sys
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.lines import Line2D

import downpour
from downpour.base.errors import MissingPackage
from downpour.show.figures.style import new_figure

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


def test_a_timeline_has_every_worker() -> None:
    """In lanes, as the report draws them."""
    (axis,) = RESULT.timeline().axes
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert names == ["worker-2", "worker-10"]


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
