"""Downpour: a manager and workers, which meet now and then."""

from pathlib import Path
from tempfile import TemporaryDirectory

from coordination import Case, median_round
from coordination import spec as idle

import downpour
from downpour.network.rpc.messages import Status
from peers.job import BATCH, MEETINGS, MOMENTUM, RATE, Job, say


def look(status: Status) -> None:
    """Say what has happened since the last look."""
    for worker in status.workers:
        if worker.pid not in known:
            known.append(worker.pid)
            say("worker", pid=worker.pid)
    if any(task.steps_done for task in status.tasks):
        job.first_batch()
    if status.experiment is None:
        return
    while len(epochs) < status.experiment.rounds_done // MEETINGS:
        epochs.append(len(epochs))
        say("epoch")
    if status.experiment.measured and status.experiment.measured not in known:
        known.append(status.experiment.measured)
        say("accuracy", **status.experiment.measured)


if __name__ == "__main__":
    job = Job.asked_for()
    known, epochs = list[object](), list[int]()
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
        evaluate_every=1 if job.look else job.epochs,
        meet=MEETINGS,
        shards=job.workers,
    )
    with TemporaryDirectory() as shared:
        if job.rounds:
            hidden = {"hidden": [31_447]} if job.large else {}
            network = "mlp" if job.large else "mnist-cnn"
            case = Case(workers=job.workers, network=network, options=hidden, rounds=job.rounds)
            done = downpour.run(idle(case), workers=job.workers, shared=shared)
            seconds, _ = median_round(Path(shared), done.experiment)
            say("rounds", milliseconds=1000 * seconds)
        else:
            result = downpour.run(spec, workers=job.workers, shared=shared, on_status=look)
            say("end", accuracy=result.accuracy)
