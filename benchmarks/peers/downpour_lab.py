"""Downpour on the hosts of a lab: its defaults, one worker a host, started by ssh.

Takes the words of every peer, and from the environment the file of hosts and the shared folder.
"""

import os

import downpour
from downpour.launchers import SshOptions, on_ssh
from downpour.network.rpc.messages import Status
from peers.job import BATCH, MOMENTUM, RATE, Job, say


def look(status: Status) -> None:
    """Say what has happened since the last look."""
    if any(task.steps_done for task in status.tasks):
        job.first_batch()
    if status.experiment is not None and status.experiment.measured not in [{}, None, *known]:
        known.append(status.experiment.measured)
        say("accuracy", **status.experiment.measured)


if __name__ == "__main__":
    job = Job.asked_for()
    known = list[object]()
    spec = downpour.Spec(
        dataset="mnist",
        model="mnist-cnn",
        train_limit=job.examples,
        test_limit=2000,
        batch_size=BATCH,
        learning_rate=RATE,
        momentum=MOMENTUM,
        epochs=job.epochs,
        shards=job.workers,
    )
    hosts = on_ssh(SshOptions(hosts=os.environ["LAB_HOSTS"]))
    shared = os.environ["LAB_SHARED"]
    result = downpour.run(spec, workers=job.workers, shared=shared, on=hosts, on_status=look)
    say("accuracy", accuracy=result.accuracy)
