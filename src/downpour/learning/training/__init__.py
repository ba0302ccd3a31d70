"""Training on a shard, resumable after any step, and evaluation on the test examples.

`loop.ShardTraining` is the local loop; `parameters.load_parameters` sets a network to a model
version before it; `evaluation.evaluate` measures one; `trial.check_trains` tries one before workers
get anything. Parameters and states go in and out as flat dictionaries of numpy arrays. This module
imports nothing, because torch takes 1 to 3 s and `epoch_order` needs none.
"""
