"""torchft: local SGD of two replica groups, each of which is started again when it dies."""

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch.distributed as dist
from padded import note
from torch import randperm
from torch.nn.functional import cross_entropy
from torchft import Manager, ProcessGroupGloo
from torchft.coordination import LighthouseServer
from torchft.local_sgd import LocalSGD

from peers.job import BATCH, MEETINGS, Job


def keep_alive(group: int) -> None:
    """Run a replica group, and once again if it ends early, as a cluster's scheduler does."""
    environment = {**os.environ, "REPLICA_GROUP_ID": str(group), "TORCHFT_LIGHTHOUSE": address}
    for _ in range(2):
        if not subprocess.run(sys.orig_argv, env=environment, check=False).returncode:
            break


def train() -> None:
    """Train in one replica group, from wherever the others are."""
    job.rank, job.size = int(os.environ["REPLICA_GROUP_ID"]), job.workers
    network = job.network()
    optimizer = job.optimizer(network)

    def state() -> dict[str, Any]:
        return {"network": network.state_dict(), "optimizer": optimizer.state_dict()}

    def load(state: dict[str, Any]) -> None:
        note("healed")
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])

    host = os.environ.get("TORCHFT_HOST", "localhost")
    store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        pg=ProcessGroupGloo(),
        load_state_dict=load,
        state_dict=state,
        min_replica_size=1,
        use_async_quorum=False,
        rank=0,
        world_size=1,
        store_addr=host,
        store_port=store.port,
        replica_id=f"group_{job.rank}",
        hostname=host,
    )
    x, y = job.data()
    between = math.ceil(len(x) / MEETINGS / BATCH)
    with LocalSGD(manager, network, optimizer, sync_every=between) as local:
        job.time_rounds(local.sync)
        while not job.rounds and (met := manager.current_step()) < job.epochs * MEETINGS:
            if met % MEETINGS == 0:
                parts = randperm(len(x)).chunk(MEETINGS)
            for batch in parts[met % MEETINGS].split(BATCH):
                optimizer.zero_grad()
                cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
                job.first_batch()
            if manager.current_step() > met:
                note(f"met {manager.current_step()} {manager.num_participants()}")
            if manager.current_step() > met and (met + 1) % MEETINGS == 0:
                job.rank = manager.participating_rank() or 0
                job.epoch_ends(network)
    manager.shutdown()


if __name__ == "__main__":
    job = Job.asked_for()
    if "REPLICA_GROUP_ID" in os.environ:
        train()
    else:
        lighthouse = LighthouseServer(bind="[::]:0", min_replicas=1)
        address = lighthouse.address()
        with ThreadPoolExecutor(job.workers) as threads:
            list(threads.map(keep_alive, range(job.workers)))
        lighthouse.shutdown()
