"""Experiments on three nodes of a real Slurm, with the bytes that they have everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

import downpour
from downpour.launchers.slurm import on_slurm
from downpour.launchers.slurm_script import SlurmOptions
from downpour.rpc.messages import Status
from downpour.spec import Spec
from tests.slurm.lab import Lab

pytestmark = pytest.mark.slow
SPEC = Spec(shards=3, epochs=2, batch_size=32, learning_rate=0.05)
OPTIONS = SlurmOptions(partition="all", time="5", sbatch=("--exclusive",))


def test_digits_on_three_nodes_have_the_bytes_of_a_run_here(slurm: Lab, tmp_path: Path) -> None:
    """The nodes reach the manager by this machine's address, with a token; nothing is left."""
    seen: set[str] = set()

    def look(_: Status) -> None:
        seen.update(node for _, _, node in slurm.tasks())

    there = downpour.run(
        SPEC, workers=3, shared=tmp_path / "there", on=on_slurm(OPTIONS), on_status=look
    )
    here = downpour.run(SPEC, workers=3, shared=tmp_path / "here", progress=False)
    assert there.model_file is not None
    assert here.model_file is not None
    assert there.model_file.read_bytes() == here.model_file.read_bytes()
    assert seen >= {"n1", "n2", "n3"}
    assert slurm.tasks() == []
