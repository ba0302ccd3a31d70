"""Flower: federated averaging of two clients in its simulation; a meeting is a round."""

import statistics
import time
from itertools import pairwise

from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from peers.flower_training import answer
from peers.job import MEETINGS, Job, say

client, server = ClientApp(), ServerApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train until the next meeting; nothing is kept until then but the examples."""
    job.rank, job.size = int(context.node_config["partition-id"]), job.workers
    epoch, meeting = divmod(message.content["config"]["server-round"] - 1, MEETINGS)
    return answer(message, job, epoch, meeting, MEETINGS)


def met(done: int, arrays: ArrayRecord) -> None:
    """Look at the mean of what the clients came to."""
    moments.append(time.perf_counter())
    if done and done % MEETINGS == 0 and not job.rounds:
        network.load_state_dict(arrays.to_torch_state_dict())
        job.epoch_ends(network)


@server.main()
def main(grid: Grid, _: Context) -> None:
    """Have all clients train, and average, round after round."""
    FedAvg(fraction_evaluate=0.0).start(
        grid=grid,
        initial_arrays=ArrayRecord(network.state_dict()),
        num_rounds=job.rounds or job.epochs * MEETINGS,
        evaluate_fn=met,
    )


if __name__ == "__main__":
    job, moments = Job.asked_for(), list[float]()
    network = job.network()
    backend = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": job.workers}}
    run_simulation(server, client, num_supernodes=job.workers, backend_config=backend)
    if job.rounds:
        seconds = [after - before for before, after in pairwise(moments)]
        say("rounds", milliseconds=1000 * statistics.median(seconds[2:]))
