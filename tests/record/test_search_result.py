"""A search as a value, as a table and as a figure."""

import json
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PathCollection

from downpour.base.states import Goal
from downpour.record.study_result import (
    Axis,
    Choices,
    Range,
    SearchResult,
    SearchRun,
    field_words,
)
from downpour.show.figures.result_figure import search_figure
from downpour.show.tables.terminal_tables import search_table, shortened
from tests.show.terminal import rendered

FIELDS: dict[str, Axis] = {
    "learning_rate": Range(1e-4, 1.0, log=True, whole=False),
    "batch_size": Choices((16, 32)),
    "model_options.dropout": Range(0.0, 0.5, log=False, whole=False),
    "split": Choices(("random", "dirichlet(0.3)")),
    "local_steps": Range(1, 50, log=False, whole=True),
    "weight_decay": Range(1e-6, 1.0, log=True, whole=False),
}


GOAL = Goal.of("accuracy")


def run(number: int, state: Any, accuracies: list[float]) -> SearchRun:
    """Make a run that has these accuracies, an epoch each."""
    return SearchRun(
        number=number,
        values={
            "learning_rate": 0.0123456 * number,
            "batch_size": 32,
            "model_options.dropout": 0.25,
            "split": "dirichlet(0.3)",
            "local_steps": 40 + number,
            "weight_decay": 1.5e-5,
        },
        state=state,
        reason=None,
        value=accuracies[-1] if accuracies else None,
        epoch_values=tuple(accuracies),
        train_seconds=2.0,
        wall_seconds=3.0,
        experiment=f"small-{number}",
    )


@pytest.fixture
def search() -> SearchResult:
    """A search in which everything has happened."""
    runs = (
        run(1, "failed", []),
        run(2, "finished", [0.5, 0.75]),
        run(3, "pruned", [0.8]),
        run(4, "finished", [0.6, 0.9]),
        run(5, "finished", [0.6, 0.9]),
        run(6, "finished", [0.6, 0.7]),
    )
    return SearchResult(name="small", goal=GOAL, fields=FIELDS, asked=8, runs=runs)


def test_the_best_is_the_first_of_the_best_that_finished(search: SearchResult) -> None:
    """A pruned run is never the best, even with the highest accuracy; neither is a failed one."""
    assert search.best is not None
    assert search.best.number == 4
    assert search.best_so_far == [(2, 0.75), (3, 0.75), (4, 0.9), (5, 0.9), (6, 0.9)]
    nothing = SearchResult(name="small", goal=GOAL, fields=FIELDS, asked=8, runs=search.runs[:1])
    assert (nothing.best, nothing.best_so_far) == (None, [])


def test_a_search_is_told_in_a_line_and_as_json(search: SearchResult) -> None:
    """How far it is, what was left out, and the best."""
    assert str(search) == ("small: 6 of 8 runs, 1 pruned, 1 failed, the best is run 4 with 90.00%")
    told = json.loads(json.dumps(search.to_dict()))
    assert (told["asked"], told["best"], len(told["trials"])) == (8, 4, 6)
    assert told["trials"][1]["values"]["learning_rate"] == 0.0246912


def test_the_table_fits_a_terminal(search: SearchResult) -> None:
    """Six fields in 80 columns, with nothing cut off; the best, pruned and failed are marked."""
    text = rendered(search_table(search))
    assert max(map(len, text.splitlines())) <= 80
    rows = [line.split() for line in text.splitlines() if line.strip()[:1].isdigit()]
    assert rows[0] == [
        "1",
        "0.012",
        "32",
        "0.25",
        "dirichlet(0.3)",
        "41",
        "1.5e-5",
        "-",
        "failed",
        "0",
    ]
    assert rows[2][-2:] == ["pruned", "1"]
    assert rows[3][-3:] == ["90.00", "best", "2"]
    assert rows[4][-2:] == ["90.00", "2"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0123456, "0.012"), (1.5e-5, "1.5e-5"), (2e9, "2e9"), (0.5, "0.5"), (32, "32")],
)
def test_values_are_short(value: object, text: str) -> None:
    """Two digits tell one from another."""
    assert shortened(value) == text


def test_the_figure_has_the_history_and_a_panel_for_each_field(search: SearchResult) -> None:
    """The line is the best so far; each mark stands at its run, and at its value."""
    figure = search_figure(search)
    history, *panels = figure.axes
    assert [axis.get_xlabel() for axis in panels] == [*map(field_words, FIELDS)]
    (line,) = history.lines
    assert list(np.asarray(line.get_ydata())) == [75, 75, 90, 90, 90]
    assert marks(history) == {
        "finished": [(2, 75), (5, 90), (6, 70)],
        "pruned": [(3, 80)],
        "best": [(4, 90)],
        "failed": [(1, 0)],
    }
    low, high = history.get_xlim()
    assert low < 1  # also what failed lies within
    assert high > 6
    rates, sizes = panels[0], panels[1]
    assert marks(rates)["failed"] == [(0.0123456, 0)]
    assert (rates.get_xscale(), panels[2].get_xscale()) == ("log", "linear")
    assert marks(rates)["best"] == [(pytest.approx(0.0493824), 90)]
    assert marks(sizes)["best"] == [(1, 90)]
    assert [text.get_text() for text in sizes.get_xticklabels()] == ["16", "32"]
    shown = {text.get_text() for text in figure.legends[0].get_texts()}
    assert shown == {"finished", "pruned", "best", "failed", "best so far"}


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_no_axis_of_a_search_shows_more_than_everything_right(accuracy: float) -> None:
    """Nor less than nothing, where all runs are alike."""
    runs = tuple(run(n, "finished", [accuracy]) for n in (1, 2))
    found = SearchResult(name="s", goal=GOAL, fields=FIELDS, asked=2, runs=runs)
    for axis in search_figure(found).axes:
        low, high = axis.get_ylim()
        assert low >= 0
        assert high <= 100


def marks(axis: Any) -> dict[str, list[Any]]:
    """Return where the marks of each kind stand."""
    drawn = [one for one in axis.collections if isinstance(one, PathCollection)]
    return {
        str(one.get_label()): [tuple(place) for place in np.asarray(one.get_offsets()).tolist()]
        for one in drawn
    }
