"""Small values that the scheduler's tests are made of."""

from __future__ import annotations

from typing import Any

import pytest

from downpour.base.states import Evaluation
from downpour.base.values import AttemptId, Progress, PublishedFile, Snapshot, SystemState, Update
from downpour.core.scheduler import events as on
from downpour.core.spec import ResolvedSpec
from tests.specs import plain_spec, plain_update


class Make:
    """Makes the values that events carry; only what a test names differs from one to the next."""

    def spec(self, **fields: Any) -> ResolvedSpec:
        """Make a resolved spec: three shards and two rounds unless said otherwise."""
        return plain_spec(**{"shards": 3, "epochs": 2, "policy": "wait", **fields})

    def file(self, name: str) -> PublishedFile:
        """Make a file of that name."""
        return PublishedFile(name=name, size_bytes=8, checksum="0" * 32)

    def attempt(self, experiment: str, round_number: int, shard: int, attempt: int) -> AttemptId:
        """Make an attempt's identity."""
        return AttemptId(experiment=experiment, round=round_number, shard=shard, attempt=attempt)

    def update(self, name: str, *, keeps_state: bool = False) -> Update:
        """Make an update whose parameters lie in the file of that name."""
        state = self.file(f"{name}.optimizer") if keeps_state else None
        return plain_update(self.file(name), train_seconds=1.0, optimizer_state=state)

    def progress(
        self, attempt: AttemptId, steps_done: int = 1, saved: str | None = None
    ) -> Progress:
        """Make a report that an attempt has come so far; a snapshot's name ends with its step."""
        step = int(saved.rpartition("s")[2]) if saved else 0
        snapshot = (
            Snapshot(file=self.file(saved), steps_done=step, steps_total=2 * step)
            if saved
            else None
        )
        return Progress(
            attempt=attempt,
            steps_done=steps_done,
            steps_total=2 * steps_done,
            elapsed_seconds=2.0 * steps_done,
            snapshot=snapshot,
        )

    def evaluation(self, accuracy: float = 0.5, loss: float = 0.5) -> Evaluation:
        """Make the measure of a model version."""
        metrics = {"accuracy": accuracy}
        return Evaluation(loss=loss, metrics=metrics, class_accuracy=(), samples=10, seconds=1.0)

    def prepared(
        self, experiment: str, samples: tuple[int, ...], at_seconds: float = 0.0, **more: Any
    ) -> on.Prepared:
        """Make the event that an experiment's data are cut into shards of so many samples."""
        made = {"dataset": "d", "model": self.file("m0"), **more}
        return on.Prepared(
            at_seconds=at_seconds, experiment=experiment, shard_samples=samples, **made
        )

    def beat(self, worker: str, *running: Progress, at_seconds: float) -> on.HeartbeatReceived:
        """Make a heartbeat of a worker that runs these attempts."""
        return on.HeartbeatReceived(
            at_seconds=at_seconds, worker=worker, running=running, system=self.system()
        )

    def system(self) -> SystemState:
        """Make the state of a machine that does nothing else."""
        return SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)


@pytest.fixture(scope="session")
def make() -> Make:
    """Return the maker of values."""
    return Make()
