"""Epochs as rows of a CSV file."""

import csv
import dataclasses
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.show.loggers import CsvFile, logger_of
from tests.show.loggers.conftest import EPOCHS, RUN, logged, resumed


def rows(file: Path) -> list[dict[str, str]]:
    """Return the rows of a file."""
    with file.open(newline="") as opened:
        return [*csv.DictReader(opened)]


def test_each_epoch_is_a_row(tmp_path: Path) -> None:
    """With the numbers of the result; what was not measured is empty."""
    file = tmp_path / "log.csv"
    logged(logger_of(f"csv:{file}"))
    found = rows(file)
    assert [row["epoch"] for row in found] == [str(epoch.epoch) for epoch in EPOCHS]
    for row, epoch in zip(found, EPOCHS, strict=True):
        assert row["experiment"] == RUN.experiment
        assert float(row["test/accuracy"]) == pytest.approx(epoch.accuracy)
        assert float(row["train/loss"]) == pytest.approx(epoch.train_loss)
        assert float(row["bytes"]) == epoch.bytes


def test_experiments_share_a_file(tmp_path: Path) -> None:
    """Each adds its rows; new columns are empty in the rows before, and none is lost."""
    file = tmp_path / "log.csv"
    logged(CsvFile(str(file)))
    other = dataclasses.replace(RUN, experiment="other-1", spec={"validation": 0.1})
    before = rows(file)
    logged(CsvFile(str(file)), other)
    after = rows(file)
    assert [{**row, **old} for row, old in zip(after, before, strict=False)] == after[:2]
    assert {row["experiment"] for row in after[2:]} == {"other-1"}
    assert after[0]["validation/accuracy"] == ""
    assert float(after[2]["validation/accuracy"]) == pytest.approx(EPOCHS[0].accuracy)


@pytest.mark.parametrize(("before", "kept"), [(3, ["1", "3"]), (1, ["1"])])
def test_a_resumed_experiment_continues_without_doubling(
    tmp_path: Path, before: int, kept: list[str]
) -> None:
    """Rows of rounds that are trained again are replaced, however often it is begun."""
    file = tmp_path / "log.csv"
    logged(CsvFile(str(file)))
    for _ in range(2):
        logged(CsvFile(str(file)), resumed(before))
        told = [row["epoch"] for row in rows(file)]
        assert told == [*kept, str(before + 1), str(before + 3)]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a,b\n1,2\n", "its columns must begin with experiment, epoch, round; name a new file"),
        (b"experiment,epoch,round\nx,1,many\n", "its columns must begin with"),
        (b"\xff\xfe\n", "is not a CSV file"),
        (b'"open', "is not a CSV file"),
    ],
)
def test_files_of_others_are_left_alone(tmp_path: Path, content: bytes, said: str) -> None:
    """They are refused before training begins."""
    file = tmp_path / "log.csv"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=r"log = 'csv:.*log.csv'") as refused:
        CsvFile(str(file))
    assert said in str(refused.value)
    assert file.read_bytes() == content


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """So is a logger without a file."""
    for path in (tmp_path, tmp_path / "nowhere" / "log.csv"):
        with pytest.raises(SpecError, match="log = 'csv:"):
            CsvFile(str(path))
    with pytest.raises(SpecError, match="needs a file: csv:FILE"):
        CsvFile("")
