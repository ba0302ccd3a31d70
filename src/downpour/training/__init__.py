"""Training on a shard, resumable after any step, and evaluation on the test examples.

`ShardTraining` is the local loop; `load_parameters` sets a network to a model version before it;
`evaluate` measures one; `check_trains` tries one before workers get anything. Parameters and
states go in and out as flat dictionaries of numpy arrays.
"""

from __future__ import annotations

from downpour.training.evaluation import evaluate
from downpour.training.loop import LocalTask, ShardTraining
from downpour.training.parameters import check_finite, load_parameters, parameters_of
from downpour.training.trial import check_trains

__all__ = [
    "LocalTask",
    "ShardTraining",
    "check_finite",
    "check_trains",
    "evaluate",
    "load_parameters",
    "parameters_of",
]
