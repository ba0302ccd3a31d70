"""Spark: the driver broadcasts the parameters, and averages what its tasks make of them."""

import operator
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import torch
from pyspark import Broadcast, SparkConf, SparkContext
from torch.nn.functional import cross_entropy

from peers.job import BATCH, MEETINGS, Job, flat, set_flat


def load(rank: int, _: Iterable[int]) -> Iterator[tuple[Any, ...]]:
    """Read a partition's examples."""
    job.rank, job.size = rank, job.workers
    yield tuple(part.numpy() for part in job.data())


def train(shared: Broadcast[Any], done: int, parts: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """Train until the next meeting; Spark keeps nothing but the examples until then."""
    network = job.network()
    set_flat(network, torch.from_numpy(shared.value.copy()))
    optimizer = job.optimizer(network)
    epoch, meeting = divmod(done, MEETINGS)
    for x, y in (map(torch.from_numpy, part) for part in parts):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in () if job.rounds else order.chunk(MEETINGS)[meeting].split(BATCH):
            optimizer.zero_grad()
            cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
            job.first_batch()
    yield flat(network).numpy()


def meet(done: int = 0) -> None:
    """Have each partition go on from the parameters, and make them the mean."""
    shared = context.broadcast(flat(network).numpy())
    total = examples.mapPartitions(partial(train, shared, done)).treeReduce(operator.add)
    set_flat(network, torch.from_numpy(total / job.workers))
    shared.destroy()


if __name__ == "__main__":
    job = Job.asked_for()
    # A task is tried four times, as on a cluster; `local[2]` alone would try it once.
    settings = SparkConf().setMaster(f"local[{job.workers},4]").set("spark.ui.enabled", "false")
    settings.set("spark.driver.memory", "4g").set("spark.driver.maxResultSize", "2g")
    context = SparkContext(conf=settings)
    network = job.network()
    examples = (
        context.parallelize(range(job.workers), job.workers).mapPartitionsWithIndex(load).cache()
    )
    job.time_rounds(meet)
    if not job.rounds:
        for done in range(job.epochs * MEETINGS):
            meet(done)
            if (done + 1) % MEETINGS == 0:
                job.epoch_ends(network)
    context.stop()
