"""Downpour: a manager and two workers, which meet now and then."""

from pathlib import Path
from tempfile import TemporaryDirectory

from coordination import Case, median_round
from coordination import spec as idle

import downpour
from downpour.rpc.messages import Status
from peers.job import BATCH, MEETINGS, MOMENTUM, RATE, Job, say

WORKERS = 2


def look(status: Status) -> None:
    """Say what has happened since the last look."""
    for worker in status.workers:
        if worker.pid not in known:
            known.add(worker.pid)
            say("worker", pid=worker.pid)
    if any(task.steps_done for task in status.tasks):
        job.first_batch()
    done = status.experiment.rounds_done // MEETINGS if status.experiment else 0
    while len(epochs) < done:
        epochs.append(len(epochs))
        say("epoch")


if __name__ == "__main__":
    job = Job.asked_for()
    known, epochs = set[int](), list[int]()
    downpour.allow("idle")
    spec = downpour.Spec(
        dataset="mnist",
        model="mnist-cnn",
        train_limit=job.examples,
        test_limit=2000,
        batch_size=BATCH,
        learning_rate=RATE,
        momentum=MOMENTUM,
        epochs=job.epochs,
        evaluate_every=job.epochs,
        meet=MEETINGS,
        shards=WORKERS,
    )
    with TemporaryDirectory() as shared:
        if job.rounds:
            case = Case(workers=WORKERS, network="mnist-cnn", options={}, rounds=job.rounds)
            done = downpour.run(idle(case), workers=WORKERS, shared=shared)
            seconds, _ = median_round(Path(shared), done.experiment)
            say("rounds", milliseconds=1000 * seconds)
        else:
            result = downpour.run(spec, workers=WORKERS, shared=shared, on_status=look)
            say("end", accuracy=result.accuracy)
