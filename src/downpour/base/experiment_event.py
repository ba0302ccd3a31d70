"""Events of an experiment and its workers, for users' callbacks and commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from downpour.base.states import ExperimentState

EventKind = Literal[
    "submitted",
    "finished",
    "failed",
    "cancelled",
    "waiting",
    "worker-joined",
    "worker-left",
    "worker-lost",
]
TOLD: frozenset[EventKind] = frozenset({"finished", "failed", "cancelled", "waiting"})
"""The kinds for which we run a command: a person may want to act on these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentEvent:
    """Something that happened to an experiment.

    `kind` is one of "submitted", "finished", "failed", "cancelled", "waiting", "worker-joined",
    "worker-left" and "worker-lost". An experiment is "waiting" if no worker has trained it for a
    while. `experiment` is its identifier, `name` the spec's name, and `state` its state after the
    event. `reason` says why, if there is a reason. `worker` is the worker that joined, left or was
    lost. A manager without open experiments also sends "waiting", and names no experiment.
    """

    kind: EventKind
    experiment: str = ""
    name: str = ""
    state: ExperimentState | None = None
    reason: str = ""
    worker: str = ""

    def __repr__(self) -> str:
        """Describe the event in one line; quote the reason, which may hold anything."""
        parts = [self.kind, self.experiment, self.worker, repr(self.reason) if self.reason else ""]
        return f"<ExperimentEvent {' '.join(filter(None, parts))}>"
