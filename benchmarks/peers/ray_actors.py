"""Ray: workers are actors, and the driver averages their parameters now and then."""

import ray
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from peers.job import BATCH, MEETINGS, Job, flat, set_flat


@ray.remote(num_cpus=1)
class Worker:
    """Trains on its part of the examples."""

    def __init__(self, job: Job, rank: int) -> None:
        torch.set_num_threads(1)
        self.job, job.rank, job.size = job, rank, job.workers
        self.network = job.network()
        self.optimizer = job.optimizer(self.network)
        self.x, self.y = job.data()
        self.parts: list[Tensor] = []

    def train(self, numbers: Tensor) -> Tensor:
        """Train until the next meeting."""
        set_flat(self.network, numbers.clone())
        self.parts = self.parts or list(torch.randperm(len(self.x)).chunk(MEETINGS))
        for batch in self.parts.pop().split(BATCH):
            self.optimizer.zero_grad()
            cross_entropy(self.network(self.x[batch]), self.y[batch]).backward()
            self.optimizer.step()
            self.job.first_batch()
        return flat(self.network)

    def rest(self, numbers: Tensor) -> Tensor:
        """Train nothing."""
        set_flat(self.network, numbers.clone())
        return flat(self.network)


def meet(method: str, numbers: Tensor) -> Tensor:
    """Have each worker go on from some parameters; return the mean of what they come to."""
    shared = ray.put(numbers)
    return torch.stack(ray.get([getattr(w, method).remote(shared) for w in workers])).mean(0)


if __name__ == "__main__":
    job = Job.asked_for()
    ray.init(num_cpus=job.workers)
    network = job.network()
    numbers = flat(network)
    workers = [Worker.remote(job, rank) for rank in range(job.workers)]
    job.time_rounds(lambda: meet("rest", numbers))
    for _ in range(0 if job.rounds else job.epochs):
        for _ in range(MEETINGS):
            numbers = meet("train", numbers)
        set_flat(network, numbers)
        job.epoch_ends(network)
