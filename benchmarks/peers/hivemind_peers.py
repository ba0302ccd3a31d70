"""hivemind: two peers that find each other, and average what their local steps have made."""

import multiprocessing
from multiprocessing.queues import Queue

import hivemind
from torch import randperm
from torch.nn.functional import cross_entropy

from peers.job import BATCH, MEETINGS, Job, flat


def train(job: Job, rank: int, known: "Queue[list[str]]") -> None:
    """Train in one peer, which meets whoever of the same run it finds."""
    job.rank, job.size = rank, job.workers
    addresses = known.get() if rank else []
    network = job.network()
    dht = hivemind.DHT(addresses, start=True, host_maddrs=["/ip4/127.0.0.1/tcp/0"])
    for _ in range(0 if rank else job.workers - 1):
        known.put([str(address) for address in dht.get_visible_maddrs()])
    alone = {"target_group_size": job.workers, "min_matchmaking_time": 1.0, "request_timeout": 0.5}
    if job.rounds:
        averager = hivemind.DecentralizedAverager(
            [flat(network)], dht, prefix="rounds", start=True, **alone
        )
        job.time_rounds(averager.step)
        return
    x, y = job.data()
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="mnist",
        optimizer=job.optimizer(network),
        target_batch_size=job.workers * len(x) // MEETINGS,
        batch_size_per_step=BATCH,
        use_local_updates=True,
        delay_state_averaging=False,
        matchmaking_time=1.0,
        averaging_timeout=20.0,
        averager_opts={"target_group_size": job.workers, "request_timeout": 0.5},
    )
    epochs = 0
    while epochs < job.epochs:
        for batch in randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            cross_entropy(network(x[batch]), y[batch]).backward()
            optimizer.step()
            job.first_batch()
            if optimizer.local_epoch // MEETINGS > epochs:
                epochs = optimizer.local_epoch // MEETINGS
                job.epoch_ends(network)
    optimizer.shutdown()


if __name__ == "__main__":
    job = Job.asked_for()
    context = multiprocessing.get_context("fork")
    known = context.Queue()
    peers = [context.Process(target=train, args=(job, rank, known)) for rank in range(job.workers)]
    for one in peers:
        one.start()
    for one in peers:
        one.join()
