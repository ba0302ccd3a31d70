"""Downpour on the hosts of a lab: its defaults, one worker a host.

The command starts workers by ssh, or, with LAB_CLUSTER, submits to a cluster that was started by
hand. Takes the words of every peer. The environment names the file of hosts and the shared folder,
and fields of the spec that are not the defaults.
"""

import json
import os
import time
from pathlib import Path

import downpour
from downpour.launchers import SshOptions, on_ssh
from downpour.network.rpc.messages import Status
from peers.job import BATCH, MOMENTUM, RATE, Job, checksum, say


def look(status: Status) -> None:
    """Say what has happened since the last look."""
    if any(task.steps_done for task in status.tasks):
        job.first_batch()
    if status.experiment is not None and status.experiment.measured not in [{}, None, *known]:
        known.append(status.experiment.measured)
        say("accuracy", **status.experiment.measured)


def train(spec: downpour.Spec, shared: Path) -> downpour.Result:
    """Train with workers that this command starts, or those of a cluster."""
    if "LAB_CLUSTER" not in os.environ:
        hosts = on_ssh(SshOptions(hosts=os.environ["LAB_HOSTS"]))
        return downpour.run(spec, workers=job.workers, shared=shared, on=hosts, on_status=look)
    with downpour.Client(
        shared=shared, credentials=downpour.Credentials(token_file=token)
    ) as client:
        while len(client.status().workers) < job.workers:
            time.sleep(0.1)
        return client.wait(client.submit(spec), on_status=look)


if __name__ == "__main__":
    job = Job.asked_for()
    known = list[object]()
    folder = Path(os.environ["LAB_SHARED"])
    token = str(folder / "token")
    asked = downpour.Spec(
        dataset="mnist",
        model="padded:build" if job.padded else "mnist-cnn",
        train_limit=job.examples,
        test_limit=2000,
        batch_size=BATCH,
        learning_rate=RATE,
        momentum=MOMENTUM,
        epochs=job.epochs,
        shards=job.workers,
        **json.loads(os.environ["LAB_SPEC"]),
    )
    result = train(asked, folder)
    if len(known) < job.epochs:
        say("accuracy", accuracy=result.accuracy)
    model = folder / "experiments" / result.experiment / "model.safetensors"
    say("end", checksum=checksum(model.read_bytes()))
