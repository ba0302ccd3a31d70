"""Publishes a task's state now and then, so that a crash costs minutes and not the shard.

It never costs more than a small share of the time, whatever the state's size: what the last one
took decides how soon the next may follow. Nothing depends on a snapshot, so one that cannot be
published is done without. Before a newer one, the last must have been heard of: else it would lie
about with nobody to remove it.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable

from downpour.errors import StoreError
from downpour.store import DirectoryStore, encode, layout
from downpour.training.loop import ShardTraining
from downpour.values import Snapshot
from downpour.worker.control import HandedOver, TaskControl

log = logging.getLogger(__name__)

_COST_SHARE = 0.005


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
        self._every_seconds = every_seconds
        self._clock = clock
        self._due_at = clock() + every_seconds

    def publish_if_due(self, training: ShardTraining) -> None:
        """Publish the state of a training that goes on, unless it is too soon."""
        if not self._every_seconds or self._clock() < self._due_at:
            return
        if training.steps_done == training.steps_total or not self._control.snapshot_is_known:
            return
        began = self._clock()
        try:
            self._control.snapshot = self._publish(training)
        except StoreError as error:
            log.warning("%s: no snapshot: %s", self._control.attempt, error)
        now = self._clock()
        self._due_at = now + max(self._every_seconds, (now - began) / _COST_SHARE)

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
        raise HandedOver(snapshot)

    def withdraw_unknown(self) -> None:
        """Remove a snapshot that nobody has heard of, now that the attempt has ended."""
        snapshot = self._control.snapshot
        if snapshot is not None and not self._control.snapshot_is_known:
            try:
                self._store.delete(snapshot.file.name)
            except StoreError as error:
                log.warning("%s: a snapshot is left over: %s", self._control.attempt, error)

    def _publish(self, training: ShardTraining) -> Snapshot:
        name = layout.attempt_name("snapshot", self._control.attempt, secrets.token_hex(6))
        file = self._store.put_new(name, encode(training.snapshot(), {}))
        done, total = training.steps_done, training.steps_total
        return Snapshot(file=file, steps_done=done, steps_total=total)
