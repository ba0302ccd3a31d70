"""Turns an experiment's record into views for people: a `Result`, and tables for the terminal.

Nothing here asks a manager or changes an experiment; a record is all it needs.
"""

from __future__ import annotations

from downpour.experiments.reading.mitigation import Stragglers
from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import (
    BestModel,
    FailureResult,
    RoundResult,
    TaskResult,
    TestResult,
)

__all__ = [
    "BestModel",
    "FailureResult",
    "Result",
    "RoundResult",
    "Stragglers",
    "TaskResult",
    "TestResult",
]
