"""An experiment that an earlier version has begun, with a record beside its journal, goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Event

import pytest

from downpour.base.states import ExperimentState
from downpour.core.spec import Spec
from downpour.files.store import RECORD_NAME, SPEC_NAME
from downpour.learning.datasets.array_folder import open_array_folder, write_array_folder
from downpour.learning.datasets.prepared import ARRAYS
from downpour.learning.tasks import prepare_data
from downpour.record import Result
from downpour.record.attempt_lines import UpdatedLine
from downpour.record.record import read_record
from downpour.record.record_lines import AggregatedLine
from tests.cluster.manager.test_takeover import (
    PATIENCE_SECONDS,
    diligent_until,
    final_model,
    gone,
    manager_of,
)

FORMER = Path(__file__).parent / "former"
"""What a manager left that was ended in round 53 of 56, after a checkpoint."""

ROUNDS = 56


DATASET = "digits-8ba1fe71c5025646"
MEAN = 4.881095705841446
"""As the BLAS of its machine had rounded it: the key of prepared data followed from that."""


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """The folder of the experiment, in a directory that was restored as a whole."""
    shutil.copytree(FORMER, tmp_path, dirs_exist_ok=True)
    [folder] = (tmp_path / "experiments").iterdir()
    datasets = tmp_path / "datasets"
    spec = Spec.from_toml((folder / SPEC_NAME).read_text())
    data = open_array_folder(datasets, prepare_data(spec, datasets, None, None), ARRAYS)
    facts = {name: fact for name, fact in data.facts.items() if name != "arrays"}
    former = write_array_folder(datasets, "digits", {**facts, "mean": [MEAN]}, data.arrays)
    assert former == DATASET
    return folder


def test_it_can_be_read_without_going_on_with_it(left: Path) -> None:
    """Its record is the file that grew."""
    result = Result.read(left)
    assert (result.state, len(result.rounds)) == (ExperimentState.RUNNING, 53)


def test_it_goes_on_and_its_record_is_of_one_piece(left: Path, tmp_path: Path) -> None:
    """The lines of its record come first, as they were; each version and each task is told once."""
    former = (left / RECORD_NAME).read_text().splitlines()
    with (left / RECORD_NAME).open("a") as record:
        # The record was written before the journal, which does not know of these lines.
        record.write('{"at": 9.0, "kind": "worker-left", "worker": "late", "reason": "lunch"}\n')
        record.write('{"at": 9.0, "ki')
    enough = Event()
    first = manager_of(tmp_path)
    assert not (left / RECORD_NAME).exists()
    first.join("one", diligent_until(1, enough))
    assert enough.wait(PATIENCE_SECONDS)
    gone(first)

    second = manager_of(tmp_path, patience=0.3)  # the first one's worker is silent for good
    second.join("two")
    final_model(second, left.name)
    told = second.record(left.name)
    gone(second)
    assert told[: len(former)] == former
    assert (left / RECORD_NAME).read_text().splitlines() == told
    lines = [line for _, line in read_record(left / RECORD_NAME)]
    versions = [line.version for line in lines if isinstance(line, AggregatedLine)]
    assert versions == list(range(1, ROUNDS + 1))
    assert sum(isinstance(line, UpdatedLine) for line in lines) == ROUNDS
    assert Result.read(left).total_seconds > json.loads(former[-1])["at"] - 4


def test_a_manager_that_died_while_it_took_it_up_is_followed_by_another(
    left: Path, tmp_path: Path
) -> None:
    """The journal has the record from its first new line on; the file is removed after that."""
    former = (left / RECORD_NAME).read_bytes()
    gone(manager_of(tmp_path))
    (left / RECORD_NAME).write_bytes(former)
    second = manager_of(tmp_path)
    assert not (left / RECORD_NAME).exists()
    assert second.record(left.name)[: former.count(b"\n")] == former.decode().splitlines()
    gone(second)


def test_a_record_that_is_damaged_costs_nothing_but_the_record(left: Path, tmp_path: Path) -> None:
    """It serves people alone."""
    (left / RECORD_NAME).write_bytes(b"no fact\n" * 3)
    manager = manager_of(tmp_path)
    manager.join("one")
    final_model(manager, left.name)
    gone(manager)
    versions = [line for _, line in read_record(left / RECORD_NAME)]
    assert sum(isinstance(line, AggregatedLine) for line in versions) == ROUNDS - 53
