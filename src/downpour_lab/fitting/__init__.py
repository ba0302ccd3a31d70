"""Fits predictors to traces and scores them, for `downpour predictor`.

A manager imports nothing from here. Fitting writes its result to a model file, which
`downpour.predictor` reads.
"""
