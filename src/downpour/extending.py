"""The imports of a package that adds a policy, a mode, a codec, a logger and so on; public.

The package registers each addition by name, as entry points in its `pyproject.toml`:

    [project.entry-points."downpour.policies"]
    latest-first = "my_package:LATEST_FIRST"

The groups are `downpour.policies` (a `Policy`), `downpour.modes` (a `ModeKind`), `downpour.codecs`
(a `Codec`), `downpour.launchers` (a `LauncherKind` of `downpour.launchers`), and groups of
functions. `downpour.splitters`: from a `SplitRequest` to the shard of each example.
`downpour.aggregators`: from `Contribution`s to their weights. `downpour.loggers`: from a target to
a `Logger`, which `--log NAME:TARGET` names. `downpour.commands`: a command of Typer, `downpour
NAME`. A spec then names a member on every machine that has the package.
"""

from __future__ import annotations

from downpour.base.states import ExperimentEvent
from downpour.core.modes import Mode, ModeKind
from downpour.core.splitters import SplitRequest, Splitter
from downpour.core.stragglers.base import (
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
