"""Loggers: other places, besides our records, in which users store their experiments' epochs."""

from __future__ import annotations

from downpour.base.family import Family, Member
from downpour.experiments.loggers.base import LoggedRun, Logger, LoggerKind

__all__ = ["LOGGERS", "LoggedRun", "Logger", "LoggerKind", "logger_of"]

LOGGERS = Family(
    "log",
    "downpour.loggers",
    {
        "csv": Member("downpour.experiments.loggers.csv_file:CsvFile", "csv:FILE"),
        "mlflow": Member("downpour.experiments.loggers.mlflow_run:MlflowRun"),
        "wandb": Member("downpour.experiments.loggers.wandb_run:WandbRun", "Weights & Biases"),
        "trackio": Member("downpour.experiments.loggers.trackio_run:TrackioRun"),
    },
)
"""The places that can log epochs, one `LoggerKind` each."""


def logger_of(asked: Logger | str) -> Logger:
    """Return the logger that a user names, as NAME or NAME:TARGET, or the logger itself.

    Raises:
        SpecError: no logger has this name, or its target cannot be used.
        MissingPackage: the logger's library is not installed.
    """
    if not isinstance(asked, str):
        return asked
    name, _, target = asked.partition(":")
    kind: LoggerKind = LOGGERS[LOGGERS.check(name)]
    return kind(target)
