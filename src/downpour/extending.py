"""The imports of a package that adds a policy, a mode, a codec, a logger and so on; public.

The package registers each addition by name, as entry points in its `pyproject.toml`:

    [project.entry-points."downpour.policies"]
    latest-first = "my_package:LATEST_FIRST"

The groups are `downpour.policies` (a `Policy`), `downpour.modes` (a `ModeKind`), `downpour.codecs`
(a `Codec`), `downpour.launchers` (a `LauncherKind` of `downpour.launchers`), and two of functions.
Those of `downpour.splitters` take a `SplitRequest` and return the shard of each example. Those of
`downpour.aggregators` take `Contribution`s and return their weights. A spec then names it, on every
machine that has the package. Loggers are of the group `downpour.loggers` (a function from a target
to a `Logger`), and `--log NAME:TARGET` names them. A function of the group `downpour.commands` is a
command, `downpour NAME`: typer makes its options from its parameters.
"""

from __future__ import annotations

from downpour.base.states import ExperimentEvent
from downpour.core.modes import Mode, ModeKind
from downpour.core.splitters import SplitRequest, Splitter
from downpour.core.stragglers import (
    Action,
    Assignment,
    Close,
    Handoff,
    Policy,
    Resize,
    RoundView,
    Waiting,
    Withdrawal,
    WorkerRequest,
)
from downpour.files.aggregators import Aggregator, Contribution
from downpour.files.compression import Codec
from downpour.record import RoundResult
from downpour.show.loggers import LoggedRun, Logger

__all__ = [
    "Action",
    "Aggregator",
    "Assignment",
    "Close",
    "Codec",
    "Contribution",
    "ExperimentEvent",
    "Handoff",
    "LoggedRun",
    "Logger",
    "Mode",
    "ModeKind",
    "Policy",
    "Resize",
    "RoundResult",
    "RoundView",
    "SplitRequest",
    "Splitter",
    "Waiting",
    "Withdrawal",
    "WorkerRequest",
]
