"""Publishes a task's state now and then, so that a crash costs minutes and not the whole shard.

`node/snapshot_schedule.py` decides when. Nothing depends on a snapshot, so a failure to publish one
is logged and training continues.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from threading import Event

from downpour.errors import StoreError
from downpour.node.snapshot_schedule import SnapshotSchedule
from downpour.store import DirectoryStore, encode, layout
from downpour.training.loop import ShardTraining
from downpour.values import Snapshot
from downpour.worker.control import HandOverStop, TaskControl

log = logging.getLogger(__name__)


class Snapshots:
    """The snapshots of one attempt.

    Args:
        store: the experiment's files.
        control: the attempt, which is given each snapshot.
        every_seconds: the least time between two snapshots; 0: none are published.
        clock: seconds, from any beginning.
    """

    def __init__(
        self,
        store: DirectoryStore,
        control: TaskControl,
        every_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._control = control
        self._clock = clock
        self._pace = SnapshotSchedule(every_seconds, clock())

    def publish_if_due(self, training: ShardTraining) -> None:
        """Publish the state of a running training, unless it is too soon."""
        began = self._clock()
        if not self._pace.is_due(self._control, began):
            return
        try:
            self._control.snapshot = self._publish(training)
        except StoreError as error:
            log.warning("%s: no snapshot: %s", self._control.attempt, error)
        # After a failure as well: to try again at each step would take the time that is to be
        # saved.
        self._pace.saved(began, self._clock())

    def hand_over_if_asked(self, training: ShardTraining) -> None:
        """Publish the state and stop, if that is asked for; raises HandOverStop with it.

        If it cannot be published, the attempt is trained to its end, unless it is cancelled too.
        """
        control = self._control
        if not control.to_save.is_set():
            return
        # First, so that a failure is not repeated at each step. Replaced and not cleared, because a
        # signal handler that sets it may interrupt this thread.
        control.to_save = Event()
        if control.cancelled.is_set() and training.steps_done == control.steps_before:
            return
        try:
            snapshot = self._publish(training)
        except StoreError as error:
            log.warning("%s: cannot be handed over: %s", self._control.attempt, error)
            return
        raise HandOverStop(snapshot)

    def withdraw_unknown(self) -> None:
        """Remove the last snapshot, if the manager does not know it, because the attempt ended."""
        # The manager removes the files that it knows; no other process would remove this one.
        snapshot = self._control.withdraw_unknown()
        if snapshot is not None:
            try:
                self._store.delete(snapshot.file.name)
            except StoreError as error:
                log.warning("%s: a snapshot is left over: %s", self._control.attempt, error)

    def _publish(self, training: ShardTraining) -> Snapshot:
        # A longer token than other files have, because all snapshots of an attempt differ by it
        # alone.
        name = layout.attempt_name("snapshot", self._control.attempt, secrets.token_hex(6))
        file = self._store.put_new(name, encode(training.snapshot(), {}))
        done, total = training.steps_done, training.steps_total
        return Snapshot(file=file, steps_done=done, steps_total=total)
