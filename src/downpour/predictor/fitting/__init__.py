"""Fits predictors to traces and scores them, for `downpour predictor`.

A manager imports nothing from here. The result of fitting is written to a model file, which
`downpour.predictor` reads.
"""
