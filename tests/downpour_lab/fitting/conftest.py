"""The small traces of the predictors' tests, and what is trained on them."""

from tests.predictor.conftest import few_trees, fitted, sequences, traces, trained, training_set

__all__ = ["few_trees", "fitted", "sequences", "traces", "trained", "training_set"]
