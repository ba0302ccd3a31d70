"""The interface of a logger, which stores an experiment's epochs outside the shared directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from downpour.experiments.reading.result import Result
from downpour.experiments.reading.result_parts import RoundResult


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedRun:
    """An experiment at the start of its log.

    `spec` holds the fields of its spec. If it resumes another experiment, `resumes` names that one
    first, then the one that this resumed, and so on. `rounds_before` and `epochs_before` count what
    all of them trained. The rounds and epochs that a logger gets continue from there.
    """

    experiment: str
    name: str
    spec: Mapping[str, Any]
    resumes: tuple[str, ...] = ()
    rounds_before: int = 0
    epochs_before: int = 0

    @property
    def first(self) -> str:
        """The experiment with which the training began; loggers continue its log."""
        return self.resumes[-1] if self.resumes else self.experiment


class Logger(Protocol):
    """Stores one experiment's epochs; one thread calls its methods one after the other.

    A method may raise anything: Downpour logs the error once, and training continues. A slow method
    delays only the calls after it.
    """

    def begin(self, run: LoggedRun) -> None:
        """Called first, after the experiment's submission."""

    def log(self, epoch: RoundResult) -> None:
        """Called after each evaluation, with the evaluated epoch."""

    def end(self, result: Result) -> None:
        """Called last, when the experiment has ended, or when its caller stops waiting for it."""


LoggerKind = Callable[[str], Logger]
"""Makes a logger from a target, the part after the colon of `--log NAME:TARGET`, or "".

Raises SpecError if the target cannot be used, and MissingPackage if a library is not installed.
"""


def scalars_of(run: LoggedRun, epoch: RoundResult) -> dict[str, float]:
    """Return the measurements of an epoch as numbers by name.

    Metrics and the loss are of the test examples, or of the validation examples if the spec
    reserves some.
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
    """Return the numbers known at the end: the test results, and the seconds of everything."""
    known: dict[str, float | None] = {"seconds/total": result.total_seconds}
    if result.tested is not None:
        known |= {f"test/{name}": value for name, value in result.tested.metrics.items()}
        known["test/loss"] = result.tested.loss
    return {name: value for name, value in known.items() if value is not None}
