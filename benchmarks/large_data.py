"""Training on data that fit no machine, in the lab: a bucket of 100 GB, hosts with a cache each.

A host of its own serves files of tokens that exist nowhere (`sparse_store.py`), over the lab's
links. Each of the other hosts runs a worker, and the first one the manager as well. A step takes a
fixed time, most of it waiting, so that the hosts do not compete for the cores of this machine.

- `first_batch_seconds`: from `downpour submit` to the first batch of the last worker to have one.
- `fetched`: bytes that the store sent, over the bytes of the blocks that the steps touched on each
  host. `twice` counts the blocks that a host fetched again.
- `waited`: the share of the time from a worker's first batch to its last one, rounds included, in
  which a step waited for the bytes of blocks from its store, cache or disk; the worst worker.
  `read_ms` is the median time in which a batch's examples are made of blocks in memory.
- `link`: the share of the store's link that the sent bytes take, over the time of the training.
- `memory_growth_mb`: a worker's memory of its own [MB] at the end, less that after a quarter; the
  most of any worker.
- `checksum`: of the trained model.

With `--disturb`, a worker is killed after a quarter of the steps, the manager after half, and the
store for 30 s after three quarters; both processes start again. Needs root.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from operator import truediv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from common import Row, command_line, show
from token_task import LENGTH, NOTES, STEP_SECONDS, URL

if TYPE_CHECKING:
    from tests.lab.hosts import HostProcess, LabHost
    from tests.lab.lab import Lab

HERE = Path(__file__).parent
DOWNPOUR = (sys.executable, "-m", "downpour")
PORT = 9100
STORE_AWAY_SECONDS = 30.0
_LOOK_SECONDS = 2.0
_BLOCK_BYTES = 2048 * LENGTH * 2 + 2


@dataclass(slots=True)
class Cluster:
    """The processes of a training, started as a user starts them."""

    lab: Lab
    options: argparse.Namespace
    started: dict[str, HostProcess] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """What every command needs."""
        return ["--shared", str(self.lab.folder), "--token-file", str(self.lab.path / "token")]

    def start(self) -> None:
        """Start the store, the manager and the workers."""
        for host in self.lab:
            notes = self.lab.path / f"notes-{host.name}"
            notes.mkdir()
            host.environment |= {
                "AWS_ACCESS_KEY_ID": "any",
                "AWS_SECRET_ACCESS_KEY": "any",
                "AWS_ENDPOINT_URL": f"http://{self.lab['store'].address}:{PORT}",
                "AWS_ALLOW_HTTP": "true",
                "AWS_REGION": "us-east-1",
                "PYTHONPATH": f"{HERE}:{HERE.parent}",
                "DOWNPOUR_LOCAL": str(host.home / "local"),
                "DOWNPOUR_ALLOW": "token_task",
                URL: "s3://sparse/tokens",
                STEP_SECONDS: str(self.options.step_seconds),
            }
        self.start_store()
        self.start_manager()
        for host in self.lab:
            self.start_worker(host)

    def start_store(self) -> None:
        """Start the store."""
        words = [sys.executable, HERE / "sparse_store.py", PORT, self.lab.path / "sent"]
        self._run("store", self.lab["store"], *words, 100, self.options.gigabytes)

    def start_manager(self) -> None:
        """Start the manager."""
        host = self.lab["pc1"]
        words = [*DOWNPOUR, "manager", "--host", host.address, *self.words, "--make-token"]
        self._run("manager", host, *words)

    def start_worker(self, host: LabHost) -> None:
        """Start a worker, which notes what it reads."""
        notes = {NOTES: str(self.lab.path / f"notes-{host.name}")}
        words = [*DOWNPOUR, "worker", *self.words, "--cache", f"{self.options.cache_gigabytes:g}G"]
        self._run(host.name, host, *words, **notes)

    def _run(self, name: str, host: LabHost, *words: object, **variables: str) -> None:
        with (self.lab.path / f"log-{name}").open("a") as log:
            self.started[name] = host.start(*words, environment=variables, output=log, errors=log)

    def kill(self, name: str) -> None:
        """Kill a process and its children."""
        self.started[name].send_signal(signal.SIGKILL)
        self.started[name].wait()


def notes(lab: Lab) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each reading process of each host has noted."""
    for host in lab:
        for path in sorted((lab.path / f"notes-{host.name}").glob("*.json")):
            yield host.name, json.loads(path.read_text())


def memory_mb(process: HostProcess) -> float:
    """Return the memory of a process and its children that nothing else shares."""
    with_children = [psutil.Process(process.pid)]
    with_children += with_children[0].children(recursive=True)
    return float(sum(one.memory_full_info().uss for one in with_children) / 1e6)


def disturbances(cluster: Cluster) -> list[tuple[float, Callable[[], None]]]:
    """Return what happens after which share of the steps."""

    def worker() -> None:
        cluster.kill("pc2")
        cluster.start_worker(cluster.lab["pc2"])

    def manager() -> None:
        cluster.kill("manager")
        cluster.start_manager()

    def store() -> None:
        cluster.kill("store")
        time.sleep(STORE_AWAY_SECONDS)
        cluster.start_store()

    return [(0.25, worker), (0.5, manager), (0.75, store)]


def watched(cluster: Cluster, submit: HostProcess) -> float:
    """Disturb the training where that is asked for; returns how far memory grew [MB]."""
    options, lab = cluster.options, cluster.lab
    steps = options.hosts * options.steps * options.epochs
    left = disturbances(cluster) if options.disturb else []
    grown = dict.fromkeys((host.name for host in lab), 0.0)
    quarter: dict[str, float] = {}
    while submit.poll() is None:
        time.sleep(_LOOK_SECONDS)
        done = sum(len(noted["waits"]) for _, noted in notes(lab)) / steps
        if left and done >= left[0][0]:
            left.pop(0)[1]()
        for name in grown if done >= 0.25 and not options.disturb else ():
            used = memory_mb(cluster.started[name])
            grown[name] = used - quarter.setdefault(name, used)
    return max(grown.values())


def measured(lab: Lab, options: argparse.Namespace) -> Row:
    """Train once."""
    cluster = Cluster(lab, options)
    cluster.start()
    time.sleep(options.settle_seconds)
    shutil.copy(HERE / "token_task.py", lab.path)
    spec = lab.path / "large.toml"
    spec.write_text(
        'task = "token_task:TokenTask"\n'
        f"shards = {options.hosts}\n"
        f"epochs = {options.epochs}\nlocal_steps = {options.steps}\n"
        f"batch_size = {options.batch}\nlearning_rate = 0.01\nseed = 1\n"
    )
    began = time.time()
    submit = lab["pc1"].start(*DOWNPOUR, "submit", spec, "--watch", *cluster.words)
    grown = watched(cluster, submit)
    said, errors = submit.communicate()
    if submit.returncode:
        logs = [path.read_text()[-2000:] for path in sorted(lab.path.glob("log-*"))]
        sys.exit("\n".join([said, errors, *logs]))
    found = list(notes(lab))
    sent = [line.split()[1:] for line in (lab.path / "sent").read_text().splitlines()]
    ranges = Counter((client, *rest) for client, *rest in sent if rest[0] != "tokens/test.bin")
    touched = {host.name: set[int]() for host in lab}
    for name, noted in found:
        touched[name].update(noted["touched"])
    least = sum(map(len, touched.values())) * _BLOCK_BYTES
    sent_bytes = sum((int(end) - int(begin)) * n for (*_, begin, end), n in ranges.items())
    firsts = {name: min(o["first"] for n, o in found if n == name) for name in touched}
    spans = [max(o["last"] for n, o in found if n == name) - firsts[name] for name in firsts]
    waited = [sum(sum(o["waits"][1:]) for n, o in found if n == name) for name in firsts]
    reads = [read for _, noted in found for read in noted["reads"][1:]]
    model = next(lab.export.glob("experiments/*/model.safetensors"))
    link = lab.profile.bits_per_second / 8
    return {
        "gigabytes": options.gigabytes,
        "disturbed": "yes" if options.disturb else "no",
        "first_batch_seconds": max(firsts.values()) - began,
        "touched_gb": least / 1e9,
        "fetched": sent_bytes / least,
        "twice": sum(n > 1 for n in ranges.values()),
        "waited": max(map(truediv, waited, spans)),
        "longest_wait_seconds": max(max(noted["waits"][1:], default=0.0) for _, noted in found),
        "read_ms": statistics.median(reads) * 1e3,
        "link": sent_bytes / max(spans) / link,
        "memory_growth_mb": grown,
        "checksum": _checksum(model),
    }


def _checksum(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:8]


def main() -> None:
    """Measure, and show the rows."""
    parser = command_line(__doc__)
    parser.add_argument("--gigabytes", type=float, default=100.0)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--cache-gigabytes", type=float, default=2.0)
    parser.add_argument("--profile", default="switch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=2500, help="of a shard in an epoch")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--step-seconds", type=float, default=0.025)
    parser.add_argument("--settle-seconds", type=float, default=20.0, help="before the command")
    parser.add_argument("--disturb", action="store_true")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    from tests.lab.lab import Lab

    with Lab(options.profile, hosts=options.hosts, shared="folder") as lab:
        row = measured(lab, options)
    show([row], as_json=options.json)


if __name__ == "__main__":
    main()
