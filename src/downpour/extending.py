"""The imports of a package that adds a policy, a mode, a codec, a logger and so on; public.

The package registers each addition by name, as entry points in its `pyproject.toml`:

    [project.entry-points."downpour.policies"]
    latest-first = "my_package:LATEST_FIRST"

`docs/how-to/extend.md` lists the groups. A spec then names a member on every machine that has the
package.
"""

from downpour.base.errors import NonFinite
from downpour.base.states import ExperimentEvent, ExperimentState
from downpour.base.values import Forecast, PublishedFile
from downpour.core.modes import Mode, ModeKind, Options, Weight
from downpour.core.splitters import Integers, SplitRequest, Splitter
from downpour.core.stragglers.base import (
    Action,
    Assignment,
    Close,
    Contributing,
    Decide,
    Handoff,
    PendingTask,
    Policy,
    Resize,
    RoundView,
    RunningTask,
    Saving,
    Speed,
    UpdateTimes,
    Waiting,
    Withdrawal,
    WorkerHistory,
    WorkerRequest,
)
from downpour.files.aggregators import Aggregator, Combine, Contribution, Statistic, Weights
from downpour.files.compression import STRIDE, Bytes, Codec, Numbers
from downpour.record import RoundResult
from downpour.record.rows import StepPoint
from downpour.record.timeline import Stragglers
from downpour.show.loggers import LoggedRun, Logger

__all__ = [
    "Action",
    "Aggregator",
    "Assignment",
    "Bytes",
    "Close",
    "Codec",
    "Combine",
    "Contributing",
    "Contribution",
    "Decide",
    "ExperimentEvent",
    "ExperimentState",
    "Forecast",
    "Handoff",
    "Integers",
    "LoggedRun",
    "Logger",
    "Mode",
    "ModeKind",
    "NonFinite",
    "Numbers",
    "Options",
    "PendingTask",
    "Policy",
    "PublishedFile",
    "Resize",
    "RoundResult",
    "RoundView",
    "RunningTask",
    "STRIDE",
    "Saving",
    "Speed",
    "SplitRequest",
    "Splitter",
    "Statistic",
    "StepPoint",
    "Stragglers",
    "UpdateTimes",
    "Waiting",
    "Weight",
    "Weights",
    "Withdrawal",
    "WorkerHistory",
    "WorkerRequest",
]
