"""A timeline is readable with two hundred boxes and with thousands."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle
from msgspec.structs import replace

from downpour.record.timeline import AttemptSpan
from downpour.show.figures.style import LIGHT, for_page, to_svg
from downpour.show.figures.timeline_figure import LANES_MAX, is_enlarged, timeline_figure


def spans(workers: int, each: int, rounds: int) -> list[AttemptSpan]:
    """Make rounds of `each` attempts a worker, a second long, of which the last is waited for."""
    made = [
        AttemptSpan(
            worker=f"worker-{worker + 1}",
            round=number + 1,
            shard=worker * each + place,
            attempt=0,
            begin_seconds=float(number * each + place),
            end_seconds=number * each + place + 0.9,
            outcome="trained",
        )
        for number in range(rounds)
        for worker in range(workers)
        for place in range(each)
    ]
    return [replace(one, last=one.shard == workers * each - 1) for one in made]


def numbered(axis: object) -> Iterator[tuple[Rectangle, object]]:
    """Yield the boxes that have a number, and those numbers."""
    boxes = [patch for patch in axis.patches if isinstance(patch, Rectangle)]  # type: ignore[attr-defined]
    for text in axis.texts:  # type: ignore[attr-defined]
        x, y = text.get_position()
        yield (
            next(
                box
                for box in boxes
                if box.get_x() < x < box.get_x() + box.get_width()
                and box.get_y() < y < box.get_y() + box.get_height()
            ),
            text,
        )


@pytest.mark.slow
@given(
    workers=st.integers(1, 6), each=st.sampled_from([1, 2, 9]), rounds=st.sampled_from([1, 5, 40])
)
def test_a_number_is_no_wider_than_its_box(workers: int, each: int, rounds: int) -> None:
    """However many boxes there are; and most boxes of the lowest panel have one."""
    figure = timeline_figure(spans(workers, each, rounds))
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    figure.draw(renderer)
    axis = figure.axes[-1]
    found = list(numbered(axis))
    for box, text in found:
        extent = text.get_window_extent(renderer)  # type: ignore[attr-defined]
        assert extent.width <= box.get_window_extent(renderer).width
    boxes = [patch for patch in axis.patches if isinstance(patch, Rectangle)]
    assert len(found) >= 0.8 * len(boxes)


def test_two_hundred_boxes_have_their_numbers() -> None:
    """Four workers in fifty rounds, drawn once."""
    figure = timeline_figure(spans(4, 1, 50))
    (axis,) = figure.axes
    assert len(axis.texts) == 200


def test_thousands_of_boxes_are_few_shapes_above_and_some_rounds_below() -> None:
    """The whole run, and a part of it with numbers; a page of it stays small."""
    many = spans(8, 8, 80)
    figure = timeline_figure(many)
    above, below = figure.axes
    assert above.get_title("left") == "the whole run: 80 rounds, 5,120 attempts"
    assert below.get_title("left").startswith("rounds 1 to ")
    assert not above.texts
    assert len(above.patches) < 10
    low, high = below.get_xlim()
    assert high - low < (above.get_xlim()[1] - above.get_xlim()[0]) / 2
    assert len(for_page(to_svg(figure, "many"))) < 600_000


def test_what_is_enlarged_is_the_round_with_most_to_see() -> None:
    """Of which most attempts went on elsewhere or failed; otherwise the longest."""
    many = spans(8, 8, 16)
    odd = [
        replace(one, outcome="failed") if (one.round, one.shard) == (8, 3) else one for one in many
    ]
    assert timeline_figure(odd).axes[1].get_title("left").startswith("rounds 8 to ")
    slow = [
        replace(one, end_seconds=one.end_seconds + 3) if (one.round, one.shard) == (12, 63) else one
        for one in many
    ]
    title = timeline_figure(slow).axes[1].get_title("left")
    assert title.startswith(("round 12", "rounds 12 to "))


@pytest.mark.slow
def test_a_failure_is_seen_among_thousands_of_boxes() -> None:
    """It is drawn with its neighbours where it is narrow, in its own colour."""
    many = spans(8, 8, 80)
    assert LIGHT["failure"] not in to_svg(timeline_figure(many), "well")
    odd = [
        replace(one, outcome="failed", end_seconds=one.begin_seconds + 0.01)
        if (one.round, one.shard) == (40, 3)
        else one
        for one in many
    ]
    colours = [patch.get_facecolor() for patch in timeline_figure(odd).axes[0].patches]
    red = tuple(int(LIGHT["failure"][place : place + 2], 16) / 255 for place in (1, 3, 5))
    assert any(colour[:3] == pytest.approx(red) for colour in colours)


@pytest.mark.slow
def test_a_disturbance_is_a_dashed_line_in_each_panel_that_shows_its_second() -> None:
    """The legend names it; one outside of the run is neither drawn nor named."""
    many = spans(8, 8, 80)
    above, below = timeline_figure(many, [600.0]).axes
    assert [dashed(above), dashed(below)] == [[600.0], []]
    first = below.get_xlim()[0] + 1.0
    assert [dashed(axis) for axis in timeline_figure(many, [first]).axes] == [[first], [first]]
    (axis,) = timeline_figure(spans(4, 1, 5), [2.5]).axes
    assert dashed(axis) == [2.5]
    early = timeline_figure(spans(4, 1, 5), [-1.0])
    (key,) = early.legends
    assert dashed(early.axes[0]) == []
    assert "a process slowed or killed" not in [text.get_text() for text in key.get_texts()]


def dashed(axis: Axes) -> list[float]:
    """Return where an axis has dashed lines."""
    return [float(np.asarray(line.get_xdata())[0]) for line in axis.lines if line.is_dashed()]


def test_of_many_workers_the_one_that_all_wait_for_has_a_lane() -> None:
    """It has the highest number; the title says that there are more."""
    above, below = timeline_figure(spans(100, 1, 10)).axes
    names = [text.get_text() for text in below.get_yticklabels()]
    assert len(names) == LANES_MAX
    assert names[-1] == "worker-100"
    assert "40 of 100 workers" in above.get_title("left")


def test_a_run_that_has_just_begun_is_drawn() -> None:
    """All of its attempts are still open, and may have begun this moment."""
    begun = [replace(one, outcome="open", end_seconds=one.begin_seconds) for one in spans(2, 1, 1)]
    assert not is_enlarged(begun)
    assert len(timeline_figure(begun).axes) == 1
    again = [*begun, *(replace(one, round=2) for one in begun)]
    assert is_enlarged(again)
    assert len(timeline_figure(again).axes) == 2
