"""Tables of a study: what people read, and what programs do."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from downpour.record.result_parts import Estimate
from downpour.record.study_result import label, read_one
from downpour.show.tables.report_tables import classes, outcomes, resources, tables_of
from downpour.show.tables.table import Column, Table, written
from tests.show.conftest import Make

RECORDED = Path(__file__).parents[2] / "recorded" / "splits"


@pytest.mark.parametrize("suffix", ["md", "csv", "json"])
def test_the_tables_look_as_agreed(make: Make, suffix: str) -> None:
    """Every table of a small study, in each format."""
    tables = tables_of(make.study(make.splits()))
    write = {"md": Table.to_markdown, "csv": Table.to_csv, "json": Table.to_json}[suffix]
    told = "\n".join(write(table) for table in tables)
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
    """Only the settings whose split does that; a class without test examples has no value."""
    table = classes(make.splits())
    assert [row[:3] for row in table.texts()] == [
        ["class", "average", "90.0 ± 0.0"],
        ["class", "first", "90.0"],
    ]
    assert [row[3] for row in table.texts()] == ["–", "–"]
    names = [table.name for table in tables_of(make.study(make.workers()))]
    assert names == ["workers-outcomes", "workers-epochs", "runs"]


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
