"""Torch's optimizers without what serves its compiler: the same steps, a second less to start."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from downpour.learning.training.optimizers import unwrapped

KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
}
TRAINS = """
import sys
from pathlib import Path
import numpy as np
from downpour.learning.datasets import open_prepared, prepare
from downpour.core.spec import Spec
from downpour.learning.tasks.loaded import load
from downpour.learning.training.evaluation import evaluate
from downpour.learning.training.loop import LocalTask, ShardTraining

spec, root = Spec(dataset="digits", model="mlp", clip_norm=1.0), Path(sys.argv[1])
loaded = load(spec, open_prepared(root, prepare(spec, root, None)))
network = loaded.network()
ShardTraining(loaded, network, LocalTask(indices=np.arange(64), round=0, shard=0)).advance(2)
evaluate(network, loaded)
assert "torch" in sys.modules
print("torch._dynamo" in sys.modules)
"""


def stepped(kind: Any, options: dict[str, Any]) -> list[Tensor]:
    """The parameters of a small network after five steps."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = kind(network.parameters(), fused=True, **options)
    for _ in range(5):
        optimizer.zero_grad()
        network(torch.randn(16, 8)).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in network.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_they_take_torchs_own_steps(kind: str) -> None:
    """To the bit, and nothing of it is recorded for a gradient."""
    theirs, options = KINDS[kind]
    for own, torchs in zip(
        stepped(unwrapped(theirs), options), stepped(theirs, options), strict=True
    ):
        assert own.equal(torchs)
        assert own.grad_fn is None


@pytest.mark.slow
def test_training_and_evaluation_do_without_torchs_compiler(tmp_path: Any) -> None:
    """Its import takes as long as that of torch, and a worker would wait for it."""
    done = subprocess.run(
        [sys.executable, "-c", TRAINS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
