"""Publishes a task's state now and then, so that a crash costs minutes and not the shard.

`node/snapshot_schedule.py` says when. Nothing depends on a snapshot, so one that cannot be
published is done without.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from downpour.errors import StoreError
from downpour.node.snapshot_schedule import SnapshotSchedule
from downpour.store import DirectoryStore, encode, layout
from downpour.training.loop import ShardTraining
from downpour.values import Snapshot
from downpour.worker.control import HandOverStop, TaskControl

log = logging.getLogger(__name__)


class Snapshots:
    """Of one attempt.

    Args:
        store: the experiment's files.
        control: the attempt's; learns of each snapshot.
        every_seconds: how long to wait between two, at least; 0: there are none.
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
        """Publish the state of a training that goes on, unless it is too soon."""
        began = self._clock()
        if not self._pace.is_due(self._control, began):
            return
        try:
            self._control.snapshot = self._publish(training)
        except StoreError as error:
            log.warning("%s: no snapshot: %s", self._control.attempt, error)
        self._pace.saved(began, self._clock())

    def hand_over_if_asked(self, training: ShardTraining) -> None:
        """Publish the state and stop, where that is wanted; raises HandedOver with it.

        What cannot be published is trained to its end.
        """
        if not self._control.leaving.is_set():
            return
        self._control.leaving.clear()
        try:
            snapshot = self._publish(training)
        except StoreError as error:
            log.warning("%s: cannot be handed over: %s", self._control.attempt, error)
            return
        raise HandOverStop(snapshot)

    def withdraw_unknown(self) -> None:
        """Remove a snapshot that nobody has heard of, now that the attempt has ended."""
        snapshot = self._control.withdraw_unknown()
        if snapshot is not None:
            try:
                self._store.delete(snapshot.file.name)
            except StoreError as error:
                log.warning("%s: a snapshot is left over: %s", self._control.attempt, error)

    def _publish(self, training: ShardTraining) -> Snapshot:
        name = layout.attempt_name("snapshot", self._control.attempt, secrets.token_hex(6))
        file = self._store.put_new(name, encode(training.snapshot(), {}))
        done, total = training.steps_done, training.steps_total
        return Snapshot(file=file, steps_done=done, steps_total=total)
