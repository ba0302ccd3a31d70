"""Disturbs a run as its user asked: slows workers from the start, and kills at the right time.

The manager puts each disturbance on record before it happens, so that reports and traces show
causes before effects.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Protocol

from downpour.base.errors import DownpourError
from downpour.base.states import ExperimentState
from downpour.cluster.disturbing.disturbances import Disturbances, Kill, Slow
from downpour.cluster.disturbing.slowing import Slowing
from downpour.cluster.launchers import LocalCluster, RunningCluster
from downpour.experiments.client import OnStatus
from downpour.network.rpc.messages import Status

log = logging.getLogger(__name__)


class Disturbable(Protocol):
    """A cluster whose processes run on this machine."""

    def process_of(self, name: str) -> int | None:
        """Return the current process of the manager or a worker; None if there is none."""

    def kill(self, name: str, *, again: bool) -> None:
        """Kill the manager or a worker; a worker restarts if `again`, and otherwise stays away."""


class Disturber:
    """Kills processes of a cluster when they are due.

    Args:
        kills: who dies when.
        cluster: the cluster of these processes.
        tell: puts on record which process suffers what.
        now: returns seconds, from any beginning.
    """

    def __init__(
        self,
        kills: tuple[Kill, ...],
        cluster: Disturbable,
        tell: Callable[[Slow | Kill], None],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.left = list(kills)
        self._cluster = cluster
        self._tell = tell
        self._now = now
        self._began_seconds: float | None = None

    def look(self, status: Status) -> None:
        """Kill what should be dead by now; called with each new status."""
        shown = status.experiment
        if shown is None or shown.state is not ExperimentState.RUNNING:
            return
        if self._began_seconds is None:
            self._began_seconds = self._now()
        trained_seconds = self._now() - self._began_seconds
        for kill in tuple(self.left):
            # A missing process is restarting, so a later look kills it.
            is_there = self._cluster.process_of(kill.who) is not None
            if is_there and kill.is_due(shown.rounds_done, trained_seconds):
                self.left.remove(kill)
                self._tell(kill)
                self._cluster.kill(kill.who, again=kill.comes_back)


@contextmanager
def disturbing(
    asked: Disturbances,
    cluster: RunningCluster,
    record: Callable[[str, str], None],
    note: Callable[[str], object],
) -> Iterator[OnStatus]:
    """Disturb a cluster until the block ends; yield the function to call with each new status.

    Args:
        asked: what to do; nothing if the cluster is not local.
        cluster: the cluster to disturb.
        record: puts on record which process suffers what.
        note: gets a line about each kill that never came.
    """
    if not isinstance(cluster, LocalCluster):
        yield _ignore
        return

    def tell(one: Slow | Kill) -> None:
        try:
            record(one.who, one.what)
        except DownpourError as error:
            log.warning("%s %s, but the record does not have it: %s", one.who, one.what, error)

    with ExitStack() as slowed:
        for slow in asked.slow:
            tell(slow)
            slowed.callback(Slowing(slow, cluster.process_of).close)
        disturber = Disturber(asked.kill, cluster, tell)
        yield disturber.look
        for kill in disturber.left:
            note(f"--kill {kill} came too late: training had ended")


def _ignore(_: Status) -> None:
    """Disturb nothing."""
