"""Ray Train: DDP in two workers, which all start again from a checkpoint when one is lost."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import ray
import torch
import torch.distributed as dist
from ray import train
from ray.train.torch import TorchTrainer, prepare_model
from torch.nn.functional import cross_entropy

from peers.job import BATCH, Job, flat


def work(asked: dict[str, Job]) -> None:
    """Train in one worker."""
    job = asked["job"]
    job.rank, job.size = dist.get_rank(), dist.get_world_size()
    network = job.network()
    optimizer = job.optimizer(network)
    numbers = flat(network)
    job.time_rounds(lambda: dist.all_reduce(numbers))
    done = 0
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            kept = torch.load(Path(folder) / "state.pt")
        done = kept["done"]
        network.load_state_dict(kept["network"])
        optimizer.load_state_dict(kept["optimizer"])
    if not job.rounds:
        parallel = prepare_model(network)
        x, y = job.data()
        for epoch in range(done, job.epochs):
            for batch in torch.randperm(len(x)).split(BATCH // job.size):
                optimizer.zero_grad()
                cross_entropy(parallel(x[batch]), y[batch]).backward()
                optimizer.step()
                job.first_batch()
            state = {"network": network.state_dict(), "optimizer": optimizer.state_dict()}
            with TemporaryDirectory() as folder:
                torch.save({**state, "done": epoch + 1}, Path(folder) / "state.pt")
                train.report({}, checkpoint=train.Checkpoint.from_directory(folder))
            job.epoch_ends(network)


if __name__ == "__main__":
    job = Job.asked_for()
    if "RAY_ADDRESS" in os.environ:
        ray.init()
        while len(ray.nodes()) < job.workers:
            time.sleep(0.2)
    else:
        ray.init(num_cpus=job.workers)
    with TemporaryDirectory() as storage:
        TorchTrainer(
            work,
            train_loop_config={"job": job},
            scaling_config=train.ScalingConfig(num_workers=job.workers),
            run_config=train.RunConfig(
                storage_path=storage, failure_config=train.FailureConfig(max_failures=1)
            ),
        ).fit()
