"""Training on a shard, resumable after any step, and evaluation on the test examples.

`loop.ShardTraining` is the local loop; `parameters.load_parameters` sets a network to a model
version before it; `evaluation.evaluate` measures one; `trial.check_trains` tries one before workers
get anything. Parameters and states go in and out as flat dictionaries of numpy arrays. `batches` is
the one module that needs no torch, which is why nothing is imported here: torch takes 1 to 3 s.
"""
