"""Small values that the scheduler's tests are made of; only what a test names differs."""

from typing import Any

from downpour.base.states import Evaluation
from downpour.base.values import AttemptId, Progress, Snapshot, SystemState, Update
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec
from tests.specs import plain_file, plain_spec, plain_update

file = plain_file


def spec(**fields: Any) -> ResolvedSpec:
    """Make a resolved spec: three shards and two rounds unless said otherwise."""
    return plain_spec(**{"shards": 3, "epochs": 2, "policy": "wait", **fields})


def attempt(experiment: str, round_number: int, shard: int, attempt: int) -> AttemptId:
    """Make an attempt's identity."""
    return AttemptId(experiment=experiment, round=round_number, shard=shard, attempt=attempt)


def update(name: str, *, keeps_state: bool = False) -> Update:
    """Make an update whose parameters lie in the file of that name."""
    state = file(f"{name}.optimizer") if keeps_state else None
    return plain_update(file(name), train_seconds=1.0, optimizer_state=state)


def accepted(
    attempt: AttemptId, worker: str, update: Update, completion_seconds: float = 1.0
) -> out.Accepted:
    """Make the fact that an update counts."""
    return out.Accepted(
        worker=worker, attempt=attempt, update=update, completion_seconds=completion_seconds
    )


def progress(attempt: AttemptId, steps_done: int = 1, saved: str | None = None) -> Progress:
    """Make a report that an attempt has come so far; a snapshot's name ends with its step."""
    step = int(saved.rpartition("s")[2]) if saved else 0
    snapshot = Snapshot(file=file(saved), steps_done=step, steps_total=2 * step) if saved else None
    return Progress(
        attempt=attempt,
        steps_done=steps_done,
        steps_total=2 * steps_done,
        elapsed_seconds=2.0 * steps_done,
        snapshot=snapshot,
    )


def evaluation(accuracy: float = 0.5, loss: float = 0.5) -> Evaluation:
    """Make the measure of a model version."""
    metrics = {"accuracy": accuracy}
    return Evaluation(loss=loss, metrics=metrics, class_accuracy=(), samples=10, seconds=1.0)


SYSTEM = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)
"""The state of a machine that does nothing else."""
