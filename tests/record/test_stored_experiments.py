"""What a shared directory holds, where no manager can be asked."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from downpour.core.spec import Spec
from downpour.files.store.layout import RECORD_NAME
from downpour.record import stored_experiments
from downpour.record.record import export_record, line_text
from downpour.record.record_lines import CancelledLine, SubmittedLine
from downpour.record.result import Result, rounds_in
from downpour.record.stored_experiments import experiments_in

RECORDED = Path(__file__).parents[1] / "recorded"


def test_records_are_summed_up_and_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """Damaged records, folders without one and files beside them hide no experiment."""
    spec = Spec(epochs=7).model_dump()
    for name in ("ended", "damaged"):
        (tmp_path / name).mkdir()
        told = SubmittedLine(experiment=name, name="any", spec=spec, version="0", shards=2)
        ended = CancelledLine(reason="enough")
        export_record(tmp_path / name, [line_text(0.0, told), line_text(1.0, ended)])
    (tmp_path / "damaged" / RECORD_NAME).write_text("no fact\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (found,) = experiments_in(tmp_path)
    assert (found.experiment, found.state, found.reason) == ("ended", "cancelled", "enough")
    assert (found.rounds_done, found.rounds_total, found.metrics) == (0, 7, ())


def test_only_the_last_ones_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many, it would take minutes to read all records."""
    for age, name in enumerate(("newest", "middle", "oldest")):
        (tmp_path / name).mkdir()
        told = SubmittedLine(
            experiment=name, name="any", spec=Spec().model_dump(), version="0", shards=2
        )
        export_record(tmp_path / name, [line_text(0.0, told)])
        os.utime(tmp_path / name / RECORD_NAME, (1000 - age, 1000 - age))
    read: list[str] = []

    def noted(folder: Path, without: Collection[str]) -> Result:
        read.append(folder.name)
        return rounds_in(folder, without)

    monkeypatch.setattr(stored_experiments, "rounds_in", noted)
    assert [one.experiment for one in experiments_in(tmp_path, 2)] == ["middle", "newest"]
    assert read == ["newest", "middle"]


def test_a_summary_agrees_with_the_result() -> None:
    """Although it needs few kinds of lines."""
    results = [Result.read(record.parent) for record in RECORDED.glob("*/record.jsonl")]
    expected = {(one.experiment, one.state, len(one.rounds), one.test_loss) for one in results}
    found = experiments_in(RECORDED)
    assert {(one.experiment, one.state, one.rounds_done, one.loss) for one in found} == expected


def test_a_directory_without_experiments_holds_none(tmp_path: Path) -> None:
    """Also where there is no directory."""
    assert experiments_in(tmp_path / "nowhere") == ()
