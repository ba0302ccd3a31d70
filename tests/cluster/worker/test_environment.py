"""What a training process is told; none of it may change what it computes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from downpour.cluster.worker.options import ONE_HASH_SEED, training_environment

REUSE = """
import resource
import numpy as np
from downpour.cluster.worker.options import keep_memory
keep_memory()
def faults():
    for _ in range(20):
        np.ones(1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
faults()
print(faults() - faults())
"""


def test_threads_wait_without_spinning() -> None:
    """The variables name the spec's threads, and a passive wait."""
    variables = training_environment(3)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["OMP_WAIT_POLICY"] == "PASSIVE"


def test_launched_processes_hash_alike() -> None:
    """Two of them put the same text into the same bucket, and so do those of the image."""
    words = [sys.executable, "-c", "print(hash('word'))"]
    environment = {**os.environ, **training_environment(1)}
    hashes = {subprocess.check_output(words, env=environment) for _ in range(2)}
    assert len(hashes) == 1
    image = (Path(__file__).parents[3] / "docker/Dockerfile").read_text(encoding="utf-8")
    [(name, seed)] = ONE_HASH_SEED.items()
    assert f" {name}={seed} " in image


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_memory_that_was_freed_is_used_again() -> None:
    """After the first rounds, large arrays come without faulting pages in anew."""
    shown = subprocess.run(
        [sys.executable, "-c", REUSE], capture_output=True, text=True, check=True
    )
    pages = 20 * (8 << 20) // 4096
    assert abs(int(shown.stdout)) < pages / 20
