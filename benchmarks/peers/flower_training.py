"""What a Flower client does with a message, in the simulation and in the deployment."""

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from torch.nn.functional import cross_entropy

from peers.job import BATCH, Job


def answer(message: Message, job: Job, epoch: int, meeting: int = 0, meetings: int = 1) -> Message:
    """Train one of an epoch's parts; nothing is kept until the next message."""
    network = job.network()
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = job.optimizer(network)
    x, y = job.data()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    for batch in () if job.rounds else order.chunk(meetings)[meeting].split(BATCH):
        optimizer.zero_grad()
        cross_entropy(network(x[batch]), y[batch]).backward()
        optimizer.step()
        job.first_batch()
    numbers = {"arrays": ArrayRecord(network.state_dict())}
    weight = {"metrics": MetricRecord({"num-examples": len(x)})}
    return Message(content=RecordDict({**numbers, **weight}), reply_to=message)
