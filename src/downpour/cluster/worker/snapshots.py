"""Publishes a task's state regularly, so that a crash costs minutes and not the whole shard.

`core/node/step_loop.py` decides when. Nothing depends on a snapshot, so a failure to publish one
is logged and training continues.
"""

from __future__ import annotations

import logging
import secrets

from downpour.base.errors import StoreError
from downpour.base.values import Snapshot
from downpour.cluster.worker.control import TaskControl
from downpour.files.store import Store, encode, layout
from downpour.learning.training.loop import ShardTraining

log = logging.getLogger(__name__)


class Snapshots:
    """Publishes and withdraws the snapshots of one attempt.

    Args:
        store: the experiment's files.
        control: the attempt.
    """

    def __init__(self, store: Store, control: TaskControl) -> None:
        self._store = store
        self._control = control

    def publish(self, training: ShardTraining) -> Snapshot | None:
        """Publish the state of a running training; returns None if it cannot be published."""
        # The token is longer than in other files' names, because an attempt's snapshots differ only
        # by it.
        name = layout.attempt_name("snapshot", self._control.attempt, secrets.token_hex(6))
        try:
            file = self._store.put_new(name, encode(training.snapshot(), {}))
        except StoreError as error:
            log.warning("%s: no snapshot: %s", self._control.attempt, error)
            # The file may exist although the write seemed to fail, and no other process knows its
            # name.
            self._remove(name)
            return None
        done, total = training.steps_done, training.steps_total
        return Snapshot(file=file, steps_done=done, steps_total=total)

    def withdraw_unknown(self) -> None:
        """Remove the last snapshot of an ended attempt, if the manager does not know that file."""
        # The manager removes the files that it knows. No other process would remove this one.
        snapshot = self._control.withdraw_unknown()
        if snapshot is not None:
            self._remove(snapshot.file.name)

    def _remove(self, name: str) -> None:
        try:
            self._store.delete(name)
        except StoreError as error:
            log.warning("%s: could not remove a snapshot: %s", self._control.attempt, error)
