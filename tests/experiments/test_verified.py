"""A run of a task that depends on the process ends with one line; another run is verified."""

from pathlib import Path
from typing import Any

import pytest

import downpour
from downpour.base.errors import ExperimentFailed
from tests.conftest import Allow

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_clusters")]

TASKS = Path(__file__).parents[1] / "learning" / "training"
FIELDS: Any = {"shards": 2, "epochs": 1, "batch_size": 4}


def test_a_worker_refuses_what_depends_on_the_process(tmp_path: Path, allowing: Allow) -> None:
    """Before it trains a shard, and in one line that names the task; the user may fix it."""
    allowing(TASKS, "process_tasks")
    spec = downpour.Spec(task="process_tasks:Counting", **FIELDS)
    with pytest.raises(ExperimentFailed) as refused:
        downpour.run(spec, workers=2, shared=tmp_path)
    said = str(refused.value)
    assert "task = 'process_tasks:Counting': gives different bytes in another process: " in said
    assert "\n" not in said
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(("name", "repeatable"), [("Plain", True), ("Numbered", False)])
def test_a_result_is_verified_unless_its_processes_differ(
    tmp_path: Path,
    allowing: Allow,
    name: str,
    repeatable: bool,  # noqa: FBT001 - a case
) -> None:
    """The manager and a worker have trained the first steps to the same bytes, or to others."""
    allowing(TASKS, "process_tasks")
    spec = downpour.Spec(task=f"process_tasks:{name}", repeatable=repeatable, **FIELDS)
    assert downpour.run(spec, workers=1, shared=tmp_path).verified is repeatable


def test_a_result_names_the_variables_that_its_code_reads(tmp_path: Path, allowing: Allow) -> None:
    """All processes of this run have the same ones, and those of the next run may have others."""
    allowing(TASKS, "process_tasks")
    spec = downpour.Spec(task="process_tasks:Configured", **FIELDS)
    result = downpour.run(spec, workers=1, shared=tmp_path)
    assert any("its code reads LAB_SCALE from the environment" in line for line in result.dataset)
