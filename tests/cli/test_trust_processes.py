"""A cluster of real processes under TLS and a token, each on an address of its own.

Where this user may make a network namespace, the addresses are none of loopback, as in a cluster of
several machines; elsewhere they are loopback's. Each machine's certificate names its own address
alone, so names are checked in every direction.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import pytest

from downpour.cluster.certificates import issue

COMMAND = [sys.executable, "-m", "downpour.cli"]
PATIENCE_SECONDS = 60
ADDRESSES = ("10.77.1.1", "10.77.1.2", "10.77.1.3", "10.77.1.4")
LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


@dataclass(frozen=True)
class Network:
    """Where the processes run: how commands get there, and an address for each machine."""

    entrance: tuple[str, ...]
    addresses: tuple[str, ...]


@pytest.fixture
def network() -> Iterator[Network]:
    """A network namespace with addresses that are not loopback's, or else loopback."""
    tools = [shutil.which(name) for name in ("unshare", "nsenter", "ip")]
    if os.geteuid() != 0 or not all(tools):
        yield Network((), LOOPBACK)
        return
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != b"ready\n":
                yield Network((), LOOPBACK)
                return
            enter = ("nsenter", f"--net=/proc/{holder.pid}/ns/net")
            subprocess.run([*enter, "ip", "link", "set", "lo", "up"], check=True)
            for address in ADDRESSES:
                words = ["ip", "address", "add", f"{address}/24", "dev", "lo"]
                subprocess.run([*enter, *words], check=True)
            yield Network(enter, ADDRESSES)
        finally:
            holder.kill()


class Running:
    """A process of ours: what it says, line by line, while it runs and after."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        self._lines = SimpleQueue[str]()
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def heard(self, pattern: str) -> str:
        """Wait for a line with the pattern; returns its first group."""
        while line := self._lines.get(timeout=PATIENCE_SECONDS):
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"ended without {pattern!r}: {self.said}")

    def ended(self) -> int:
        """Wait for its end; returns its status."""
        self.process.wait(PATIENCE_SECONDS)
        self._thread.join(PATIENCE_SECONDS)
        return self.process.returncode

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            self._lines.put(line)
        self._lines.put("")


@dataclass(frozen=True)
class Cluster:
    """Machines with addresses and certificates, and the files that all of them see."""

    network: Network
    folder: Path

    @property
    def shared(self) -> Path:
        """The shared directory."""
        return self.folder / "shared"

    @contextmanager
    def runs(self, number: int, *words: str, name: int | None = None) -> Iterator[Running]:
        """Run a command on a machine, with its own certificate or another's; end it at last."""
        certs = self.folder / "certs"
        own = self.network.addresses[number if name is None else name]
        environment = {
            **os.environ,
            "DOWNPOUR_TOKEN_FILE": str(self.shared / "token"),
            "DOWNPOUR_TLS_CERT": str(certs / f"{own}.pem"),
            "DOWNPOUR_TLS_KEY": str(certs / f"{own}-key.pem"),
            "DOWNPOUR_TLS_CA": str(certs / "ca.pem"),
        }
        with subprocess.Popen(
            [*self.network.entrance, *COMMAND, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield Running(process)
            finally:
                process.kill()

    @contextmanager
    def worker(self, number: int, manager: str, name: int | None = None) -> Iterator[Running]:
        """Run a worker on a machine, saying all it can."""
        words = ["worker", "--verbose", "--manager", manager, "--shared", str(self.shared)]
        words += ["--host", self.network.addresses[number], "--name", f"worker-{number}"]
        with self.runs(number, *words, name=name) as running:
            yield running


@pytest.fixture
def cluster(tmp_path: Path, network: Network) -> Cluster:
    """Machines without anything running."""
    issue(network.addresses, tmp_path / "certs", days=2)
    (tmp_path / "shared").mkdir()
    return Cluster(network, tmp_path)


def secrets_of(cluster: Cluster) -> list[str]:
    """The token, and a line out of each key."""
    keys = [
        path.read_text().splitlines()[1] for path in (cluster.folder / "certs").glob("*-key.pem")
    ]
    return [(cluster.shared / "token").read_text().strip(), *keys]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_cluster_under_tls_trains_and_a_worker_that_is_none_harms_nobody(
    cluster: Cluster,
) -> None:
    """Digits are learned; a worker with another's certificate ends with one line and status 2.

    No secret is in what any of them says, in a command line, or in a file that they share.
    """
    host = cluster.network.addresses[0]
    manager_words = ["manager", "--verbose", "--make-token", "--host", host, "--port", "0"]
    with ExitStack() as stack:
        manager = stack.enter_context(
            cluster.runs(0, *manager_words, "--shared", str(cluster.shared))
        )
        address = manager.heard(rf"manager at ({re.escape(host)}:\d+), ")
        workers = [stack.enter_context(cluster.worker(number, address)) for number in (1, 2)]
        for number, worker in zip((1, 2), workers, strict=True):
            own = re.escape(cluster.network.addresses[number])
            worker.heard(rf"worker at ({own}:\d+), manager ")
        impostor = stack.enter_context(cluster.worker(3, address, name=1))
        assert impostor.ended() == 2
        (complaint,) = re.findall("^downpour: .*", impostor.said, re.MULTILINE)
        assert "advertise: the manager cannot call back at " in complaint
        assert "Traceback" not in impostor.said
        assert "IP address mismatch" in complaint
        words = ["submit", "--manager", address, "--watch", "--model", "digits-cnn"]
        words += ["--dataset", "digits", "--shards", "4", "--epochs", "3"]
        submitted = stack.enter_context(cluster.runs(3, *words))
        everybody = [manager, *workers, submitted]
        lines = [Path(f"/proc/{one.process.pid}/cmdline") for one in everybody]
        told = [line.read_bytes().decode() for line in lines if line.exists()]
        assert submitted.ended() == 0, submitted.said
        assert "finished in" in submitted.said
        for one in [*workers, manager]:
            one.process.send_signal(signal.SIGINT)
            assert one.ended() == 0, one.said
        told += [one.said for one in [*everybody, impostor]]
    files = [path for path in cluster.shared.rglob("*") if path.is_file() and path.name != "token"]
    assert any(path.name == "model.safetensors" for path in files)
    told += [path.read_text(errors="ignore") for path in files]
    secrets = secrets_of(cluster)
    assert len(secrets) == 6
    for secret in secrets:
        assert not [text for text in told if secret in text]
