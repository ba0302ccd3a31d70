"""What a worker of one process imports: nothing of cut layers, pipelines and helpers."""

from __future__ import annotations

import subprocess
import sys

import pytest

_CODE = """
import sys
import downpour.cluster.worker.task_runner, downpour.learning.training.trial
print(*(name for name in sys.modules if name.startswith("downpour")))
"""
_OTHERS = {"team", "helper", "helper_process"}


@pytest.mark.slow
def test_a_worker_of_one_process_imports_no_arrangement_of_several() -> None:
    """Helpers and layers in several processes are for those who ask for them."""
    command = [sys.executable, "-c", _CODE]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "downpour.learning.training.loop" in told
    assert not {f"downpour.learning.intra_worker.{name}" for name in _OTHERS} & set(told)
    assert not [name for name in told if name.startswith("downpour_lab")]
