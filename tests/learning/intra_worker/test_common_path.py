"""What a worker of one process imports: nothing of cut layers, pipelines and helpers."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import sys
import downpour.cluster.worker.task_runner, downpour.learning.training.trial
print(*(name for name in sys.modules if name.startswith("downpour.learning")))
"""
_OTHERS = {"pipeline", "hybrid", "stage", "team", "helper", "link", "jobs", "shared_network"}


def test_a_worker_of_one_process_imports_no_arrangement_of_several() -> None:
    """Pipelines and slices of layers are for those who ask for them."""
    command = [sys.executable, "-c", _CODE]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert "downpour.learning.training.loop" in told
    unwanted = {f"downpour.learning.intra_worker.{name}" for name in _OTHERS}
    unwanted |= {f"downpour.learning.training.{name}" for name in ("cut", "probe", "sliced_step")}
    assert not unwanted & set(told)
