"""PyTorch's DistributedDataParallel on gloo: an all-reduce of the gradients at each step."""

import torch.distributed as dist
from torch import randperm
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from peers.job import BATCH, Job, flat

if __name__ == "__main__":
    job = Job.asked_for()
    dist.init_process_group("gloo")
    job.rank, job.size = dist.get_rank(), dist.get_world_size()
    network = job.network()
    numbers = flat(network)
    job.time_rounds(lambda: dist.all_reduce(numbers))
    if not job.rounds:
        parallel = DistributedDataParallel(network)
        optimizer = job.optimizer(network)
        x, y = job.data()
        for _ in range(job.epochs):
            for batch in randperm(len(x)).split(BATCH // job.size):
                optimizer.zero_grad()
                cross_entropy(parallel(x[batch]), y[batch]).backward()
                optimizer.step()
                job.first_batch()
            job.epoch_ends(network)
    dist.destroy_process_group()
