"""Fitting predictors to traces and scoring them: what `downpour predictor` needs.

A manager imports nothing from here. The result of fitting is written to a model file, which
`downpour.predictor` reads.
"""
