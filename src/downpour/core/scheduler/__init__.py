"""The pure core: events go in, facts and commands come out."""

from downpour.core.scheduler.core import Scheduler
from downpour.core.scheduler.outputs import Output
from downpour.core.scheduler.replay import (
    Checkpoint,
    Entry,
    Journaled,
    Observed,
    TakenUp,
    checkpoint,
    durable,
    must_last,
)
