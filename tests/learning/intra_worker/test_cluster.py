"""A cluster whose workers have helpers, and one whose workers have none."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import downpour


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("on", "inside"),
    [
        ("local", downpour.Inside(processes=2)),
        ("inline", downpour.Inside(processes=2, how="pipeline")),
    ],
)
def test_the_model_is_the_same_and_no_helper_is_left(
    tmp_path: Path, on: str, inside: downpour.Inside
) -> None:
    """Two processes in each worker, or one that trains both halves of each batch."""
    spec = downpour.Spec(
        dataset="digits", model="mlp", shards=2, epochs=3, batch_size=32, inside=inside
    )
    alone = spec.replace(inside=downpour.Inside(), accumulate=2)
    models = []
    for number, one in enumerate((spec, alone)):
        folder = tmp_path / str(number)
        result = downpour.run(one, workers=2, shared=folder, on=on, progress=False)
        assert result.model_file is not None
        models.append(result.model_file.read_bytes())
    assert models[0] == models[1]
    words = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    assert not any(
        "downpour.learning.intra_worker.team" in line and str(tmp_path) in line for line in words
    )
    mine = psutil.Process().children(recursive=True)
    assert not [one for one in mine if "downpour.learning.intra_worker.team" in one.cmdline()]


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
