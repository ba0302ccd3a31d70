"""How a split's table looks: it fits the terminal, and says what it leaves out."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console

from downpour.core.spec import Spec
from downpour.core.splitters import SplitCut, cut
from downpour.show.tables.terminal_tables import CLASSES_MAX, SHARDS_MAX, split_table, split_values


def made(
    classes: int, shards: int, each: int = 12, split: str = "random", **fields: object
) -> SplitCut:
    """Cut a dataset of some classes, with as many examples of each."""
    labels = np.arange(classes * each) % classes if classes else None
    count = classes * each or each
    return cut(Spec.make({"split": split, **fields}), labels, count, classes, shards)


def lines_of(shown: SplitCut, width: int = 80) -> list[str]:
    """Render a table as a terminal of that width shows it."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(split_table(shown, width))
    assert isinstance(console.file, io.StringIO)
    lines = [line.rstrip() for line in console.file.getvalue().splitlines()]
    return [line for line in lines if line]


def test_a_row_says_what_a_shard_has() -> None:
    """Examples, classes, the largest share, and the examples of each class."""
    lines = lines_of(made(3, 3, split="class", validation=0.25))
    assert lines[0] == (
        "split class: 27 examples in 3 shards, 9 more set apart for validation; examples"
    )
    assert "shard examples classes     % 0 1 2" in "\n".join(lines)
    assert [line.split() for line in lines if line.split()[0].isdigit()] == [
        ["0", "9", "1", "100.0", "9", "0", "0"],
        ["1", "9", "1", "100.0", "0", "9", "0"],
        ["2", "9", "1", "100.0", "0", "0", "9"],
    ]
    assert lines[-1] == (
        "sizes max/min 1.00; mean distance from the class shares of all data 0.667"
    )


@pytest.mark.parametrize("width", [60, 80, 10_000])
@pytest.mark.parametrize("classes", [10, CLASSES_MAX, CLASSES_MAX + 1, 300])
def test_classes_that_do_not_fit_are_summed_up(classes: int, width: int) -> None:
    """No line is wider than the terminal, and no example is left out."""
    shown = made(classes, 4, each=900)
    lines = lines_of(shown, width)
    rows = [line.split() for line in lines if line.split()[0].isdigit()]
    assert max(map(len, lines)) <= width
    is_folded = "others" in "".join(lines)
    for row, counts in zip(rows, shown.by_class.tolist(), strict=True):
        cells = list(map(int, row[4:]))
        alone = len(cells) - is_folded
        assert cells == [*counts[:alone], *([sum(counts[alone:])] if is_folded else [])]
        assert 0 < alone <= CLASSES_MAX
    if width == 10_000:
        assert is_folded == (classes > CLASSES_MAX)


def test_shards_beyond_the_first_are_counted() -> None:
    """The values for programs have all of them."""
    shown = made(5, SHARDS_MAX + 60, each=100)
    lines = lines_of(shown)
    assert sum(line.split()[0].isdigit() for line in lines) == SHARDS_MAX
    assert "… and 60 more shards; --json has all of them" in lines
    assert len(split_values(shown)["shards"]) == SHARDS_MAX + 60


def test_without_classes_sizes_are_shown_alone() -> None:
    """A line says why."""
    lines = lines_of(made(0, 2, each=9))
    assert lines[0] == "split random: 9 examples in 2 shards"
    assert [line.split() for line in lines[-3:-1]] == [["0", "5"], ["1", "4"]]
    assert lines[-1] == "sizes max/min 1.25; examples have no classes, so only sizes are shown"
    values = split_values(made(0, 2, each=9))
    assert values["mean_distance"] is None
    assert values["shards"] == [{"shard": 0, "examples": 5}, {"shard": 1, "examples": 4}]


def test_values_are_those_of_the_cut() -> None:
    """They are plain, so that JSON holds them."""
    shown = made(4, 3, split="dirichlet(0.5)")
    values = json.loads(json.dumps(split_values(shown)))
    assert values["split"] == "dirichlet(0.5)"
    assert values["examples"] == 48
    assert [shard["by_class"] for shard in values["shards"]] == shown.by_class.tolist()
    assert [shard["distance"] for shard in values["shards"]] == shown.distances.tolist()
    assert values["mean_distance"] == shown.mean_distance
