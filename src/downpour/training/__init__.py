"""Training on a shard, resumable after any step, and evaluation on the test examples.

`ShardTraining` is the local loop; `load_parameters` sets a network to a model version before it;
`evaluate` measures one. Parameters and states go in and out as flat dictionaries of numpy arrays.
"""

from __future__ import annotations

from downpour.training.evaluation import evaluate
from downpour.training.loop import LocalTask, ShardTraining
from downpour.training.parameters import check_finite, load_parameters, parameters_of

__all__ = [
    "LocalTask",
    "ShardTraining",
    "check_finite",
    "evaluate",
    "load_parameters",
    "parameters_of",
]
