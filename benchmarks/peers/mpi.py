"""mpi4py: an Allreduce of the gradients at each step."""

import torch
from mpi4py import MPI
from torch.nn.functional import cross_entropy

from peers.job import BATCH, Job, flat

if __name__ == "__main__":
    world = MPI.COMM_WORLD
    job = Job.asked_for()
    job.rank, job.size = world.Get_rank(), world.Get_size()
    network = job.network()
    optimizer = job.optimizer(network)
    numbers = flat(network).numpy()
    job.time_rounds(lambda: world.Allreduce(MPI.IN_PLACE, numbers))
    if not job.rounds:
        x, y = job.data()
        for _ in range(job.epochs):
            for batch in torch.randperm(len(x)).split(BATCH // job.size):
                optimizer.zero_grad()
                cross_entropy(network(x[batch]), y[batch]).backward()
                gradient = torch.cat([p.grad.flatten() for p in network.parameters()])
                world.Allreduce(MPI.IN_PLACE, gradient.numpy())
                done = 0
                for parameter in network.parameters():
                    part = gradient[done : done + parameter.numel()] / job.size
                    parameter.grad = part.view_as(parameter)
                    done += parameter.numel()
                optimizer.step()
                job.first_batch()
            job.epoch_ends(network)
