"""The interface of a logger, which keeps an experiment's epochs outside the shared directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import RoundResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """An experiment that is about to be logged.

    `spec` holds the fields of its spec. If it resumes another experiment, `resumes` names that one
    first, then the one that this resumed, and so on; `rounds_before` and `epochs_before` count what
    all of them trained. Rounds and epochs that a logger gets count on from there.
    """

    experiment: str
    name: str
    spec: Mapping[str, Any]
    resumes: tuple[str, ...] = ()
    rounds_before: int = 0
    epochs_before: int = 0

    @property
    def first(self) -> str:
        """The experiment with which the training began; its log is continued."""
        return self.resumes[-1] if self.resumes else self.experiment


class Logger(Protocol):
    """Keeps one experiment's epochs; its methods are called one after the other in one thread.

    A method may raise anything: that is logged once, and training goes on. A slow method delays
    only the calls after it.
    """

    def begin(self, run: LoggedRun) -> None:
        """Called first, when the experiment was submitted."""

    def log(self, epoch: RoundResult) -> None:
        """Called after each evaluation, with the epoch that was evaluated."""

    def end(self, result: Result) -> None:
        """Called last, when the experiment has ended, or when its caller stops waiting for it."""


LoggerKind = Callable[[str], Logger]
"""Makes a logger of a target, the part after the colon of `--log NAME:TARGET`; "" without one.

Raises SpecError if the target cannot be used, and MissingPackage if a library is not installed.
"""


def scalars_of(run: LoggedRun, epoch: RoundResult) -> dict[str, float]:
    """Return the measurements of an epoch as numbers by name.

    Metrics and the loss are of the test examples, or of the validation examples if the spec sets
    some apart.
    """
    part = "validation" if run.spec.get("validation") else "test"
    known = {
        **{f"{part}/{name}": value for name, value in epoch.metrics.items()},
        f"{part}/loss": epoch.test_loss,
        "train/loss": epoch.train_loss,
        "seconds/train": epoch.train_seconds,
        "seconds/aggregate": epoch.aggregate_seconds,
        "seconds/evaluate": epoch.evaluate_seconds,
        "bytes": epoch.bytes,
    }
    return {name: value for name, value in known.items() if value is not None}


def ending_of(result: Result) -> dict[str, float]:
    """Return the numbers that are known at the end: of the test, and the seconds of everything."""
    known: dict[str, float | None] = {"seconds/total": result.total_seconds}
    if result.tested is not None:
        known |= {f"test/{name}": value for name, value in result.tested.metrics.items()}
        known["test/loss"] = result.tested.loss
    return {name: value for name, value in known.items() if value is not None}
