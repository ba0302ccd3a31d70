"""Tables of a study, of shards and workers, and of splits."""

import csv
import io
import json
import os
from dataclasses import replace as replace_field
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from downpour.core.spec import Spec
from downpour.core.splitters import ShardCounts, SplitCut, cut
from downpour.record.result_parts import Estimate
from downpour.record.study_result import label, read_one
from downpour.show.tables.report_tables import (
    Column,
    Table,
    classes,
    differences,
    outcomes,
    resources,
    shards,
    tables_of,
    workers,
    written,
)
from downpour.show.tables.terminal_tables import CLASSES_MAX, SHARDS_MAX, split_table, split_values
from tests.show.conftest import Make
from tests.show.terminal import rendered

RECORDED = Path(__file__).parents[2] / "recorded" / "splits"


@pytest.mark.parametrize("suffix", ["md", "csv", "json", "tex"])
def test_the_tables_look_as_agreed(make: Make, suffix: str) -> None:
    """Every table of a small study, in each format."""
    tables = tables_of(make.study(make.splits()))
    forms = {"md": Table.to_markdown, "csv": Table.to_csv, "json": Table.to_json}
    told = "\n".join({**forms, "tex": Table.to_latex}[suffix](table) for table in tables)
    if os.environ.get("UPDATE_QUERIES"):
        (RECORDED / f"tables.{suffix}").write_text(told, "utf-8")
    assert told == (RECORDED / f"tables.{suffix}").read_text(encoding="utf-8")


def test_a_shard_that_was_moved_has_not_failed() -> None:
    """What a decision ended counts among no failures, in figures as in tables."""
    study = read_one(RECORDED.parent / "handoff")
    (run,) = study.subgrids[0].runs
    assert [lost.failure for lost in run.result.failures] == ["handed_over"]
    (row,) = json.loads(outcomes(study.subgrids[0]).to_json())
    assert row["failed_attempts"] == 0
    assert {span.outcome for span in run.result.spans} == {"trained", "moved", "stopped"}


def test_means_and_intervals_stand_in_columns_of_their_own(make: Make) -> None:
    """A program needs no parsing: a column for the mean, one for its half width."""
    rows = list(csv.DictReader(io.StringIO(outcomes(make.splits()).to_csv())))
    assert rows[0]["accuracy_percent"] == str(100 * (0.61 + 0.62 + 0.63) / 3)
    assert float(rows[0]["accuracy_percent_ci95"]) == pytest.approx(4.3027 / 3**0.5, abs=1e-4)
    assert rows[3]["trials"] == "1"
    assert rows[3]["accuracy_percent_ci95"] == ""


def test_a_setting_that_was_not_run_has_nothing(make: Make) -> None:
    """Its row is there, without figures."""
    subgrid = make.subgrid(axes=("split",), settings=[("random",), ("class",)], runs=[])
    table = outcomes(subgrid)
    assert table.texts() == [["random", "0", *["–"] * 5, "0"], ["class", "0", *["–"] * 5, "0"]]
    assert json.loads(table.to_json())[0]["accuracy_percent"] is None


def test_classes_are_told_where_shards_differ_in_them(make: Make) -> None:
    """The even settings come along, to compare; a class without test examples has no value."""
    table = classes(make.splits())
    assert [row[:3] for row in table.texts()] == [
        ["random", "average", "90.0 ± 0.0"],
        ["random", "first", "90.0 ± 0.0"],
        ["class", "average", "90.0 ± 0.0"],
        ["class", "first", "90.0"],
    ]
    assert [row[3] for row in table.texts()] == ["–"] * 4
    names = [table.name for table in tables_of(make.study(make.workers()))]
    assert names == ["workers-outcomes", "workers-epochs", "runs"]


def test_runs_that_name_no_workers_are_told_with_those_that_trained(make: Make) -> None:
    """A grid that leaves their number to each spec has none of its own; nor has a manager's."""
    several = make.run([0.5], spans=make.spans(2)), make.run([0.5], workers=4), make.run([0.5])
    *_, table = tables_of(make.study(make.subgrid(settings=[()], runs=several)))
    assert [row["workers"] for row in json.loads(table.to_json())] == [2, 4, None]


def test_what_processes_used_is_told_where_it_was_sampled(make: Make) -> None:
    """Means of processor and I/O wait, the most of memory and threads; for one process each."""
    runs = [
        make.run([0.5], values=(1,), resources=make.samples("a")),
        make.run([0.5], values=(2,), resources=make.samples("a", "b")),
        make.run([0.5], values=(4,)),
    ]
    subgrid = make.subgrid(axes=("workers",), settings=[(1,), (2,), (4,)], runs=runs)
    assert resources(subgrid).texts() == [
        ["1", "1", "1.45", "3", "7", "12.50"],
        ["2", "2", "1.45", "3", "7", "12.50"],
    ]
    fewer = make.run([0.5], values=(2,), repetition=2, resources=make.samples("a"))
    again = make.subgrid(axes=("workers",), settings=[(2,)], runs=[runs[1], fewer], repetitions=2)
    assert resources(again).texts()[0][1] == "2", "the most, because a short process has no sample"
    assert "splits-resources" in [table.name for table in tables_of(make.study(subgrid))]


def test_a_bar_in_a_value_does_not_end_its_column() -> None:
    """Values come from specs, and a spec may hold anything."""
    table = Table("t", "T", (Column("a", "a"),), (("x|y",),))
    assert "| x\\|y |" in table.to_markdown()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (True, "yes"),
        (0.1, "0.1"),
        (1e-05, "1e-05"),
        ([0.9, 0.99], "0.9, 0.99"),
        ({"hidden": [8, 4], "dropout": 0.5}, "hidden 8, 4, dropout 0.5"),
        ({}, "none"),
        ({"processes": 2, "how": "data", "cut": []}, "processes 2, how data"),
        (None, "none"),
        ("class", "class"),
    ],
)
def test_values_are_written_for_people(value: object, said: str) -> None:
    """For all values that a spec may have."""
    assert label(value) == said


def test_a_count_that_is_always_the_same_has_no_interval() -> None:
    """One that differs has, and so has what was measured."""
    processes, seconds = Column("processes", "processes", 0), Column("seconds", "s", 2)
    assert written(Estimate(2.0, 0.0, 3), processes) == "2"
    assert written(Estimate(2.3, 1.4, 3), processes) == "2 ± 1"
    assert written(Estimate(2.0, 0.0, 3), seconds) == "2.00 ± 0.00"


def test_an_interval_ends_where_no_value_can_be() -> None:
    """A share is at most 100 %; a deviation is no interval, and the caption says which it is."""
    share = Column("accuracy_percent", "accuracy %", 2, (0.0, 100.0))
    near_the_end = Estimate(99.5, 1.25, 3, 0.5)
    assert written(near_the_end, share) == "99.50 −1.25 +0.50"
    assert written(near_the_end, share, "deviation") == "99.50 ± 0.50"
    table = Table("t", "final accuracy", (share,), ((near_the_end,),), spread="deviation")
    assert table.caption == "final accuracy (± standard deviation)"
    assert replace_field(table, rows=((99.5,),)).caption == "final accuracy"


def test_a_latex_table_keeps_what_values_say() -> None:
    """Signs of LaTeX are escaped."""
    table = Table("t", "10 % of a_b", (Column("a", "a"), Column("b", "b", 1)), (("x&y", 0.5),))
    assert table.to_latex().splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{table}",
        r"\caption{10 \% of a\_b}",
        r"\centering",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"a & b \\",
        r"\midrule",
        r"x\&y & 0.5 \\",
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]


def test_differences_are_those_of_one_seed(make: Make) -> None:
    """The noise that settings share drops out; a repetition without a partner does not count."""
    noise = (0.1, 0.2, 0.3)
    first = [make.run([0.5 + n], values=("a",), repetition=r) for r, n in enumerate(noise, 1)]
    second = [make.run([0.6 + n], values=("b",), repetition=r) for r, n in enumerate(noise, 1)]
    late = make.run([0.9], values=("b",), repetition=4)
    subgrid = make.subgrid(
        axes=("split",), settings=[("a",), ("b",)], runs=[*first, *second, late], repetitions=4
    )
    (row,) = json.loads(differences(subgrid).to_json())
    assert (row["split"], row["pairs"]) == ("b", 3)
    assert row["accuracy_percent"]["mean"] == pytest.approx(10)
    assert row["accuracy_percent"]["ci95"] == pytest.approx(0)


def test_an_accuracy_above_1_is_not_a_percentage(make: Make) -> None:
    """A task that counts in percent itself is not multiplied by 100."""
    subgrid = make.subgrid(axes=(), settings=[()], runs=[make.run([0.5, 87.5])])
    (row,) = json.loads(outcomes(subgrid).to_json())
    assert row["accuracy"]["mean"] == 87.5


def counts(split: str, *by_class: list[int]) -> ShardCounts:
    """Make shards of so many examples of each class."""
    table = np.array(by_class, np.int64)
    return ShardCounts(split=split, sizes=table.sum(axis=1), by_class=table, held_out=0)


def test_each_shard_is_a_row(make: Make) -> None:
    """Its examples, how far it is from all data, and the examples of each class."""
    run = make.run([0.5], split=counts("class", [4, 0], [0, 4]))
    table = shards(make.subgrid(settings=[()], runs=[run]))
    assert [column.key for column in table.columns][:3] == ["shard", "examples", "distance"]
    assert table.rows == ((0, 4, 0.5, 4, 0), (1, 4, 0.5, 0, 4))


def test_splits_that_are_compared_are_named(make: Make) -> None:
    """Each once, whatever else differs; fewer classes leave cells empty."""
    values = [("class", 1), ("class", 2), ("random", 1)]
    splits = [counts("class", [4, 0, 1])] * 2 + [counts("random", [2, 3])]
    runs = [
        make.run([0.5], values=one, split=split) for one, split in zip(values, splits, strict=True)
    ]
    table = shards(make.subgrid(axes=("split", "n"), settings=values, runs=runs))
    assert [row[0] for row in table.rows] == ["class", "random"]
    assert table.rows[1][-1] is None


def test_each_worker_is_a_row(make: Make) -> None:
    """Its attempts by their ends, and how much of the run it trained."""
    spans = list(make.spans(2))
    spans[0] = replace(spans[0], outcome="moved")
    run = make.run([0.5], spans=tuple(spans))
    rows = workers(run.result).rows
    assert [row[:5] for row in rows] == [("worker-1", 3, 0, 1, 0), ("worker-2", 4, 2, 0, 0)]
    busy, share = rows[1][5:]
    assert busy == pytest.approx(3.6)
    assert share == pytest.approx(100 * 3.6 / 11.9)


def test_tables_of_what_is_not_known_are_left_out(make: Make) -> None:
    """Shards and classes where no record counts these, and workers where there are several runs."""
    run = make.run([0.5], spec={"split": "class"})
    one = make.subgrid(settings=[()], runs=[run], repetitions=1)
    assert not {"splits-shards", "splits-classes"} & {
        table.name for table in tables_of(make.study(one))
    }
    assert "workers" in [table.name for table in tables_of(make.study(one))]
    assert "workers" not in [table.name for table in tables_of(make.study(make.splits()))]


def made(
    classes: int, shards: int, each: int = 12, split: str = "random", **fields: object
) -> SplitCut:
    """Cut a dataset of some classes, with as many examples of each."""
    labels = np.arange(classes * each) % classes if classes else None
    count = classes * each or each
    return cut(Spec.make({"split": split, **fields}), labels, count, classes, shards)


def lines_of(shown: SplitCut, width: int = 80) -> list[str]:
    """Render a table as a terminal of that width shows it."""
    return list(filter(None, rendered(split_table(shown, width), width=width).splitlines()))


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
