"""The figure of splits draws what was counted, at one scale; how it looks, people must look at."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from downpour.core.spec import Spec
from downpour.core.splitters import SplitCut, cut
from downpour.show.figures.result_figure import CLASSES_MAX, SHARDS_MAX, split_figure
from downpour.show.figures.style import LIGHT, to_svg


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
