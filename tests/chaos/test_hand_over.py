"""A shard goes from one real process to another in the middle of its training."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from socket import gethostname
from threading import Event, Thread
from time import monotonic

import pytest

from downpour import Client, Spec
from tests.chaos.stage import Cluster
from tests.conftest import Allow
from tests.specs import model_of

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SPEC = Spec(
    shards=2,
    epochs=2,
    meet=1,
    batch_size=1,
    image_size=28,
    model="mnist-cnn",
    seed=3,
    train_limit=700,
)
STOPPED_SECONDS, RUNNING_SECONDS = 0.2, 0.04


@contextmanager
def mostly_stopped(process: int) -> Iterator[None]:
    """Let a process run for a sixth of the time: it is slow, and never silent for long."""
    done = Event()

    def hold_up() -> None:
        while not done.wait(RUNNING_SECONDS):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)
                done.wait(STOPPED_SECONDS)
                os.kill(process, signal.SIGCONT)

    thread = Thread(target=hold_up)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_slow_worker_hands_its_shard_on_and_the_model_is_the_same(tmp_path: Path) -> None:
    """The parameters, the optimizer and the place in the data go along: not one bit differs."""
    with ExitStack() as stack:
        cluster = Cluster(tmp_path, stack)
        waited = cluster.run(SPEC)
        with mostly_stopped(cluster.workers[0].popen.pid):
            moved = cluster.run(SPEC.replace(policy="handoff"))
    assert moved.stragglers is not None
    assert moved.stragglers.moves > 0
    assert model_of(moved) == model_of(waited)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("way", ["signal", "notice"])
def test_a_worker_that_is_told_to_leave_takes_no_step_with_it(
    tmp_path: Path, allowing: Allow, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What it trains is saved and goes on elsewhere, at no retry, with the same bytes.

    It is gone before a machine is taken that gave 30 s of notice.
    """
    allowing(BENCHMARKS, "padded", "lenet")
    monkeypatch.setenv("LAB_EXAMPLE_SECONDS", "0.01")
    monkeypatch.setenv("LAB_NOTES", str(tmp_path))
    spec = SPEC.replace(epochs=1, retries=0, policy="wait", snapshot_every=3600.0)
    spec = spec.replace(model="padded:build")
    with ExitStack() as stack:
        cluster = Cluster(tmp_path / "shared", stack)
        undisturbed = cluster.run(spec)
        steps = noted(tmp_path, cluster)
        with Client(cluster.address, shared=cluster.shared) as client:
            experiment = client.submit(spec)
            leaver = cluster.workers[0]
            for status in client.watch(experiment):
                if any(one.worker == "worker-0" and one.steps_done > 20 for one in status.tasks):
                    break
            if way == "signal":
                leaver.signal(signal.SIGTERM)
            else:
                cluster.notice(0).touch()
            assert leaver.popen.wait(timeout=30) == 0
            left = client.wait(experiment)
        assert noted(tmp_path, cluster) == 2 * steps  # none is lost, so none is trained twice
    # The manager may have given it another shard before its goodbye, which gives that back.
    handed_over, *given_back = left.failures
    assert handed_over.worker == "worker-0"
    assert re.fullmatch(r"handed over after [1-9]\d?%", handed_over.reason)
    assert all(one.blameless and one.worker == "worker-0" for one in given_back), given_back
    assert model_of(left) == model_of(undisturbed)


def noted(folder: Path, cluster: Cluster) -> int:
    """Return how many steps all workers have taken so far, but for trials under another clock."""
    files = (folder / f"{gethostname()} {one.popen.pid}" for one in cluster.workers)
    lines = (line for file in files for line in file.read_text().splitlines())
    return sum(float(line.split()[0]) <= monotonic() for line in lines)
