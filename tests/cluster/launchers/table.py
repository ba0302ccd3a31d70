"""What launchers cost, in a table: `python -m tests.cluster.launchers.table`.

Each starts real workers, on clusters of the tests' own on this machine; one that cannot be had is
skipped. `-k "local or ray"` measures some. All figures but the round's are seconds.

- `first batch`: from the call of `downpour.run`, which trains the digits with two workers, to the
  first step that the caller sees.
- `round, ms`: the median round of one step a worker.
- `one more`: from a policy's request for a worker until it has joined, while another one is idle.
- `replaced`: from `kill -9` of the only worker until another one trains its shard.
"""

import os
import signal
import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest

import downpour
from downpour.core.spec import Spec
from downpour.experiments.surroundings import Surroundings
from downpour.experiments.training import embed
from downpour.files.store import SharedDirectory
from downpour.launchers import Launcher
from downpour.network.rpc.messages import Status
from downpour.record.record import read_record
from downpour.record.record_lines import AggregatedLine
from tests.cluster.docker.conftest import compose_command, engine, image  # noqa: F401 - fixtures
from tests.cluster.launchers.test_contract import launcher  # noqa: F401 - a fixture
from tests.cluster.ray_cluster.conftest import Nodes, lasting_nodes  # noqa: F401 - a fixture
from tests.cluster.slurm.conftest import slurm  # noqa: F401 - a fixture
from tests.cluster.slurm.lab import Lab
from tests.cluster.ssh.conftest import ssh  # noqa: F401 - a fixture

_SHORT = Spec(shards=2, epochs=30, local_steps=1, evaluate_every=0)
_LONG = Spec(shards=2, epochs=300, batch_size=16, evaluate_every=0)
_NOT_REPLACED = ("local", "inline", "placed", "compose")
"""A worker of the command's own is not started again, nor one of a test's; and the number of a
process in a container is another one outside."""


def test_row(launcher: Launcher, request: pytest.FixtureRequest, tmp_path: Path) -> None:  # noqa: F811
    """Print a launcher's row."""
    name = request.node.callspec.params["launcher"]
    first, round_ = start_and_round(launcher, tmp_path)
    more = one_more(launcher, tmp_path)
    replaced = f"{replacement(launcher, tmp_path):.1f}" if name not in _NOT_REPLACED else ""
    load = os.getloadavg()[0]
    row = f"| {name} | {first:.1f} | {1000 * round_:.0f} | {more:.1f} | {replaced} | {load:.1f} |"
    sys.stdout.write(f"\n{row}\n")


def test_row_of_ray_itself(lasting_nodes: Nodes) -> None:  # noqa: F811
    """Print how long two actors of Ray's own take to train a batch, as any script of theirs."""
    ray = pytest.importorskip("ray")
    began = time.time()
    ray.init(address=lasting_nodes.address, log_to_driver=False)
    actors = [ray.remote(num_cpus=1)(Own).remote() for _ in range(2)]
    first = min(ray.get([actor.train.remote() for actor in actors])) - began
    ray.shutdown()
    sys.stdout.write(f"\n| Ray's own actors | {first:.1f} | | | | {os.getloadavg()[0]:.1f} |\n")


def test_row_of_submitit(slurm: Lab, tmp_path: Path) -> None:  # noqa: F811
    """Print how long two jobs of submitit's take to train a batch."""
    assert slurm
    submitit = pytest.importorskip("submitit", reason="submitit is not installed")
    began = time.time()
    executor = submitit.AutoExecutor(folder=tmp_path)
    executor.update_parameters(slurm_partition="all", timeout_min=5, cpus_per_task=1)
    jobs = [executor.submit(Own().train) for _ in range(2)]
    first = min(job.result() for job in jobs) - began
    sys.stdout.write(f"\n| submitit's own jobs | {first:.1f} | | | | {os.getloadavg()[0]:.1f} |\n")


class Own:
    """What a user of Ray or submitit alone would start."""

    def train(self) -> float:
        import torch

        network = torch.nn.Linear(64, 10)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
        network(torch.ones(32, 64)).sum().backward()
        optimizer.step()
        return time.time()


def start_and_round(launcher: Launcher, shared: Path) -> tuple[float, float]:  # noqa: F811
    """Return the seconds to the first batch, and those of a round."""
    seen: list[float] = []

    def look(status: Status) -> None:
        began = status.experiment is not None and status.experiment.rounds_done
        if not seen and (began or any(task.steps_done for task in status.tasks)):
            seen.append(time.monotonic())

    began = time.monotonic()
    result = downpour.run(_SHORT, workers=2, shared=shared, on=launcher, on_status=look)
    record = SharedDirectory(shared).experiment_path(result.experiment) / "record.jsonl"
    ends = [at for at, line in read_record(record) if isinstance(line, AggregatedLine)]
    return seen[0] - began, statistics.median(after - before for before, after in pairwise(ends))


def one_more(launcher: Launcher, shared: Path) -> float:  # noqa: F811
    """Return the seconds until a further worker has joined."""
    with embed(_SHORT, 1, Surroundings(shared, on=launcher)) as (cluster, client):
        next(status for status in client.watch() if status.workers)
        began = time.monotonic()
        cluster.provide(2)
        next(status for status in client.watch() if len(status.workers) == 2)
        return time.monotonic() - began


def replacement(launcher: Launcher, shared: Path) -> float:  # noqa: F811
    """Return the seconds from the death of the only worker to a step of the next one."""
    killed: list[tuple[int, float]] = []
    seen: list[float] = []

    def look(status: Status) -> None:
        trains = any(task.worker and task.steps_done for task in status.tasks)
        if not status.workers or not trains or seen:
            return
        pid = status.workers[0].pid
        if not killed:
            os.kill(pid, signal.SIGKILL)
            killed.append((pid, time.monotonic()))
        elif pid != killed[0][0]:
            seen.append(time.monotonic())

    with embed(_LONG, 1, Surroundings(shared, on=launcher)) as (cluster, client):
        experiment = client.submit(_LONG)
        for status in client.watch(experiment):
            cluster.check()
            look(status)
            if seen:
                return seen[0] - killed[0][1]
    raise AssertionError("training ended first")


def main() -> None:
    """Print a row for each launcher."""
    sys.stdout.write("| launcher | first batch | round, ms | one more | replaced | load |\n")
    words = ["-q", "-s", "-n0", "-rs", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    sys.exit(pytest.main([__file__, *words, *sys.argv[1:]]))


if __name__ == "__main__":
    main()
