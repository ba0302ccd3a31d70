"""An experiment keeps its examples and its code, whichever manager it goes on under."""

import logging
import os
import shutil
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from downpour.base.errors import FileMissing
from downpour.base.states import ExperimentState, FailureKind
from downpour.core.spec import ResolvedSpec
from downpour.files.store import RECORD_NAME, layout
from downpour.learning.shipping import PACKED_BYTES_MAX, Bundle
from downpour.network.rpc.messages import ExperimentSummary, TaskMessage
from downpour.record import Result
from downpour.record.record import read_record
from downpour.record.record_lines import PreparedLine
from downpour.show.tables.terminal_tables import result_table
from tests.cluster.manager.conftest import SMALL, FakeWorker, diligent, started_in
from tests.conftest import Allow
from tests.learning.shipping.conftest import forget_modules, written
from tests.show.terminal import rendered
from tests.specs import plain_spec

SPEC = SMALL.replace(dataset="npz", data_path="set.npz", model="mlp")


def write_set(folder: Path, level: float) -> None:
    """Write twenty examples of two classes; two levels give files of one size."""
    folder.mkdir(exist_ok=True)
    x = np.full((20, 2), level)
    np.savez(folder / "set.npz", x=x, y=np.arange(20) % 2)


class Begun(NamedTuple):
    """An experiment whose manager ended before its first round, and where everything is."""

    experiment: str
    shared: Path
    data: Path
    dataset: str

    def end_under_another_manager(self, data_dir: str = "") -> ExperimentSummary:
        """Let another manager go on to the end; what it asked for must be the first one's."""
        cluster = started_in(self.shared, data_dir=data_dir)
        worker = cluster.join("two")
        summary = cluster.end_of(self.experiment).experiment
        cluster.close()
        assert summary is not None
        assert {task.dataset for task in worker.tasks} <= {self.dataset}
        return summary


@pytest.fixture
def begun(tmp_path: Path) -> Begun:
    """The first manager ends when all is prepared; no worker has come yet."""
    shared, data = tmp_path / "shared", tmp_path / "data"
    write_set(data, 1.0)
    cluster = started_in(shared, data_dir=str(data))
    experiment = cluster.submit(SPEC)
    cluster.status_when(
        lambda status: (
            status.experiment is not None and status.experiment.state is ExperimentState.RUNNING
        ),
        experiment,
    )
    cluster.close()
    [dataset] = [path.name for path in (shared / "datasets").glob("npz-*")]
    return Begun(experiment, shared, data, dataset)


def test_a_manager_without_the_dataset_goes_on(begun: Begun) -> None:
    """The prepared examples are in the shared directory; that is all it needs."""
    shutil.rmtree(begun.data)
    assert begun.end_under_another_manager().state is ExperimentState.FINISHED


def test_a_dataset_that_changes_meanwhile_changes_nothing(begun: Begun) -> None:
    """All rounds are trained on the examples of the first one."""
    write_set(begun.data, 2.0)
    assert begun.end_under_another_manager(str(begun.data)).state is ExperimentState.FINISHED


def test_examples_that_are_lost_are_decoded_again(begun: Begun) -> None:
    """From a source whose file was touched and not changed."""
    shutil.rmtree(begun.shared / "datasets")
    os.utime(begun.data / "set.npz", (1, 1))
    assert begun.end_under_another_manager(str(begun.data)).state is ExperimentState.FINISHED


def test_examples_that_are_lost_and_changed_are_refused(begun: Begun) -> None:
    """What cannot be gone on with is told in one line, and nothing is trained."""
    shutil.rmtree(begun.shared / "datasets")
    write_set(begun.data, 2.0)
    end = begun.end_under_another_manager(str(begun.data))
    assert end.state is ExperimentState.FAILED
    assert f"has changed since the experiment began with {begun.dataset}" in (end.reason or "")
    assert end.asked_wrongly


def test_examples_that_were_altered_are_made_good(begun: Begun) -> None:
    """One wrong bit in the shared directory, while no manager was there."""
    path = begun.shared / "datasets" / begun.dataset / "train_x.npy"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert begun.end_under_another_manager(str(begun.data)).state is ExperimentState.FINISHED
    assert path.read_bytes() == whole


def test_the_kind_of_examples_is_on_record(begun: Begun) -> None:
    """One line for people, also in the table of results, and the key for who looks closer."""
    result = Result.read(begun.shared / "experiments" / begun.experiment)
    told = "16 training and 4 test examples of 2 numbers, normalized per feature; 2 classes"
    assert result.dataset[0] == told
    assert result.dataset[1].startswith("when tried, a step took ")
    assert told in rendered(result_table(result), width=200)
    record = read_record(begun.shared / "experiments" / begun.experiment / RECORD_NAME)
    [prepared] = [line for _, line in record if isinstance(line, PreparedLine)]
    assert prepared.dataset == begun.dataset


def test_examples_that_vanish_during_a_run_cost_no_attempt(tmp_path: Path) -> None:
    """The manager prepares them again for workers that miss them; two at once may say so."""
    shared, data = tmp_path / "shared", tmp_path / "data"
    write_set(data, 1.0)
    cluster = started_in(shared, data_dir=str(data), patience_seconds=30.0)
    lacking: list[str] = []
    one_at_a_time = Lock()

    def looks(worker: FakeWorker, task: TaskMessage) -> None:
        folder = shared / "datasets" / task.dataset
        with one_at_a_time:
            if not lacking:
                shutil.rmtree(folder)
            misses = len(lacking) < 2
            lacking.extend([worker.name] if misses else [])
        if misses:
            reason = str(FileMissing(f"{task.dataset}/facts.json"))
            worker.client.report_failure(worker.name, task.id, FailureKind.STORE, reason)
            worker.reported.add(task.id)
            return
        while not (folder / "facts.json").exists():
            pass  # as a worker, which looks for a while
        diligent(worker, task)

    experiment = cluster.submit(SPEC, retries=0)
    for name in ("one", "two"):
        cluster.join(name, looks)
    end = cluster.end_of(experiment).experiment
    cluster.close()
    assert end is not None
    assert end.state is ExperimentState.FINISHED, end.reason
    assert len(lacking) == 2


NETWORK = b"""
from shipped_helpers import flat
from torch import nn
def build(num_classes, sample_shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(flat(sample_shape), num_classes))
"""
HELPERS = b"def flat(shape):\n    return shape[1] * shape[2]\n"
PROJECT = {"shipped_lab.py": NETWORK, "shipped_helpers.py": HELPERS}
MODEL = "shipped_lab:build"


@pytest.fixture
def project(tmp_path: Path, allowing: Allow) -> Path:
    """A project that this process has not imported."""
    forget_modules()
    folder = written(tmp_path / "project", PROJECT)
    allowing(folder, "shipped_lab")
    return folder


def spec_of(cluster: Any, experiment: str) -> ResolvedSpec:
    """Return what the spec's file says."""
    file = cluster.shared.experiment_path(experiment) / layout.SPEC_NAME
    return ResolvedSpec.from_toml(file.read_text())


@pytest.mark.slow
@pytest.mark.usefixtures("project")
def test_the_code_lies_in_the_experiments_folder_to_its_end_and_after(cluster: Any) -> None:
    """Named by the spec, with the versions of packages; a repeated request is the same one."""
    cluster.join("one")
    asked = cluster.client.submit
    text = plain_spec(shards=2, model=MODEL, epochs=1).to_toml()
    experiment = asked(text, "abcd")
    assert asked(text, "abcd") == experiment
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED
    spec = spec_of(cluster, experiment)
    assert spec.packages == {"torch": torch.__version__.partition("+")[0]}
    assert spec.code_bundle is not None
    packed = cluster.shared.store(experiment).read_unchecked(
        layout.bundle_name(spec.code_bundle), limit_bytes=PACKED_BYTES_MAX
    )
    assert dict(Bundle.unpacked(packed, spec.code_bundle).files) == PROJECT


def test_our_own_networks_need_none(cluster: Any) -> None:
    """The spec's file says nothing of it, whatever was asked for: it is as before."""
    experiment = cluster.submit(code_bundle="a" * 64, packages={"torch": "0.1"})
    text = (cluster.shared.experiment_path(experiment) / layout.SPEC_NAME).read_text()
    assert "code_bundle" not in text
    assert "packages" not in text
    assert not [name for name in cluster.shared.store(experiment).list() if "code-" in name]


@pytest.mark.slow
def test_a_project_that_cannot_be_shipped_is_trained_and_the_log_says_why(
    cluster: Any, project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line; workers that have the files train as ever."""
    written(project, {"shipped_helpers.py": b"# coding: latin-1\n# \xe9\n" + HELPERS})
    cluster.join("one")
    with caplog.at_level(logging.WARNING):
        experiment = cluster.submit(model=MODEL, name="foreign")
    why = "cannot ship the code of foreign to workers: shipped_helpers.py is not UTF-8"
    assert why in caplog.messages
    assert spec_of(cluster, experiment).code_bundle is None
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED
