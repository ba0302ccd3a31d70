"""Local SGD on gloo: processes train by themselves, and average their parameters now and then."""

import torch.distributed as dist
from torch import randperm
from torch.nn.functional import cross_entropy

from peers.job import BATCH, MEETINGS, Job, flat, set_flat


def average() -> None:
    """Give every process the mean of all parameters."""
    numbers = flat(network)
    dist.all_reduce(numbers)
    set_flat(network, numbers / job.size)


if __name__ == "__main__":
    job = Job.asked_for()
    dist.init_process_group("gloo")
    job.rank, job.size = dist.get_rank(), dist.get_world_size()
    network = job.network()
    optimizer = job.optimizer(network)
    job.time_rounds(average)
    if not job.rounds:
        x, y = job.data()
        for _ in range(job.epochs):
            for part in randperm(len(x)).chunk(MEETINGS):
                for batch in part.split(BATCH):
                    optimizer.zero_grad()
                    cross_entropy(network(x[batch]), y[batch]).backward()
                    optimizer.step()
                    job.first_batch()
                average()
            job.epoch_ends(network)
    dist.destroy_process_group()
