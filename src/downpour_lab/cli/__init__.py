"""The laboratory's commands: simulate, compare-policies, predictor."""
