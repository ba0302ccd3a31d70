"""Plain PyTorch: one process."""

from torch import randperm
from torch.nn.functional import cross_entropy

from peers.job import BATCH, Job, flat, set_flat

if __name__ == "__main__":
    job = Job.asked_for()
    network = job.network()
    optimizer = job.optimizer(network)
    job.time_rounds(lambda: set_flat(network, flat(network)))
    if not job.rounds:
        x, y = job.data()
        for _ in range(job.epochs):
            for batch in randperm(len(x)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
                job.first_batch()
            job.epoch_ends(network)
