"""Lightning Fabric: its DDP strategy on gloo, whose second process it starts by itself."""

from lightning.fabric import Fabric
from torch import randperm
from torch.nn.functional import cross_entropy

from peers.job import BATCH, Job, flat

if __name__ == "__main__":
    job = Job.asked_for()
    fabric = Fabric(accelerator="cpu", devices=job.workers, strategy="ddp")
    fabric.launch()
    job.rank, job.size = fabric.global_rank, fabric.world_size
    network = job.network()
    numbers = flat(network)
    job.time_rounds(lambda: fabric.all_reduce(numbers))
    if not job.rounds:
        parallel, optimizer = fabric.setup(network, job.optimizer(network))
        x, y = job.data()
        for _ in range(job.epochs):
            for batch in randperm(len(x)).split(BATCH // job.size):
                optimizer.zero_grad()
                fabric.backward(cross_entropy(parallel(x[batch]), y[batch]))
                optimizer.step()
                job.first_batch()
            job.epoch_ends(network)
