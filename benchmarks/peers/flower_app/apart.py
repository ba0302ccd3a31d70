"""Flower in its deployment: an app that a SuperLink and a SuperNode on every host run.

A round is an epoch, as in the app that `flwr new` writes for PyTorch: Flower starts a process for
every message, and each of them imports torch.
"""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peers.flower_training import answer
from peers.job import Job

client = ClientApp()
server = ServerApp()


def job_of(context: Context) -> Job:
    """Return what `flwr run --run-config` asks for, on the host that the SuperNode is on."""
    torch.set_num_threads(1)
    asked = context.run_config
    torch.manual_seed(int(asked["seed"]))
    workers = int(asked["workers"])
    return Job(
        examples=int(asked["examples"]),
        epochs=int(asked["epochs"]),
        rounds=0,
        look=True,
        padded=True,
        rank=int(context.node_config.get("partition-id", 0)),
        size=workers,
        workers=workers,
    )


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train an epoch; nothing is kept until the next one."""
    return answer(message, job_of(context), int(message.content["config"]["server-round"]))


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Have all hosts train, average, and look at the accuracy, round after round."""
    job = job_of(context)
    network = job.network()

    def look(done: int, arrays: ArrayRecord) -> None:
        if done:
            network.load_state_dict(arrays.to_torch_state_dict())
            job.epoch_ends(network)

    FedAvg(
        fraction_evaluate=0.0, min_train_nodes=job.workers, min_available_nodes=job.workers
    ).start(
        grid=grid,
        initial_arrays=ArrayRecord(network.state_dict()),
        num_rounds=job.epochs,
        train_config=ConfigRecord(),
        evaluate_fn=look,
    )
