"""The worker as a process: what it looks at and is told, and what it says of its machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

import pytest

from downpour.base.errors import SpecError
from downpour.cluster.options import ONE_HASH_SEED, training_environment
from downpour.cluster.worker.process import advertised, listening_host
from downpour.host.machine import SystemSampler
from downpour.network.rpc import parse_address


@pytest.mark.parametrize(
    ("manager", "host"),
    [
        ("localhost:1", {"127.0.0.1"}),
        ("[::1]:1", {"::1"}),
        ("10.0.0.5:1", {"::", "0.0.0.0"}),
        ("[fd00::5]:1", {"::"}),
    ],
)
def test_a_worker_listens_where_its_manager_can_call(manager: str, host: set[str]) -> None:
    """On loopback where the manager is there, so that nobody else reaches it; else everywhere."""
    assert listening_host(parse_address(manager)) in host


@pytest.mark.parametrize(
    ("asked", "listening", "told"),
    [
        ("", "::", ("", 7)),
        ("", "0.0.0.0", ("", 7)),
        ("", "127.0.0.1", ("127.0.0.1", 7)),
        ("here", "::", ("here", 7)),
        ("here:8", "::", ("here", 8)),
        ("[fd00::5]", "::", ("fd00::5", 7)),
        ("[fd00::5]:8", "::", ("fd00::5", 8)),
    ],
)
def test_the_advertised_address(asked: str, listening: str, told: tuple[str, int]) -> None:
    """What it was told to, else where it listens, else (an empty host) what the manager sees."""
    assert advertised(asked, listening, 7) == told


def test_a_malformed_address_is_refused() -> None:
    """The line names the option."""
    with pytest.raises(SpecError, match="advertise = 'a:b:c': an address is HOST"):
        advertised("a:b:c", "::", 7)


REUSE = """
import resource
import numpy as np
from downpour.cluster.options import keep_memory
keep_memory()
def faults():
    for _ in range(20):
        np.ones(1 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
faults()
print(faults() - faults())
"""


def test_threads_wait_without_spinning() -> None:
    """The variables name the spec's threads, and a passive wait."""
    variables = training_environment(3)
    assert variables["OMP_NUM_THREADS"] == "3"
    assert variables["OMP_WAIT_POLICY"] == "PASSIVE"


def test_launched_processes_hash_alike() -> None:
    """Two of them put the same text into the same bucket, and so do those of the image."""
    words = [sys.executable, "-c", "print(hash('word'))"]
    environment = {**os.environ, **training_environment(1)}
    hashes = {subprocess.check_output(words, env=environment) for _ in range(2)}
    assert len(hashes) == 1
    image = (Path(__file__).parents[3] / "docker/Dockerfile").read_text(encoding="utf-8")
    [(name, seed)] = ONE_HASH_SEED.items()
    assert f" {name}={seed} " in image


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_memory_that_was_freed_is_used_again() -> None:
    """After the first rounds, large arrays come without faulting pages in anew."""
    shown = subprocess.run(
        [sys.executable, "-c", REUSE], capture_output=True, text=True, check=True
    )
    pages = 20 * (8 << 20) // 4096
    assert abs(int(shown.stdout)) < pages / 20


def test_shares_are_shares() -> None:
    """Whatever happens between two samples, shares stay within 0 and 1."""
    sampler = SystemSampler()
    for _ in range(3):
        state, _ = sampler.sample()
        for share in (state.cpu_others, state.memory_used, state.io_wait):
            assert 0.0 <= share <= 1.0
        assert state.load_average >= 0.0


def test_a_process_tells_its_resources() -> None:
    """Processor time since the look before, as a share of one core; memory; threads."""
    sampler = SystemSampler()
    began = time.process_time()
    while time.process_time() < began + 0.05:
        pass
    _, busy = sampler.sample()
    assert busy.cpu_share > 0
    assert busy.memory_bytes > 1_000_000
    release = Event()
    thread = Thread(target=release.wait)
    thread.start()
    assert sampler.sample()[1].threads == busy.threads + 1
    release.set()
    thread.join()
