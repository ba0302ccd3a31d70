"""Downpour beside DDP and local SGD on the hosts of the lab, behind slow links.

All train the network of the ECE751 report on 10,000 images of MNIST, one process a host, until
2,000 test images are recognized as well as wanted. `target_seconds` is from the command to that
accuracy, `first_batch_seconds` to the first step; `sent_mb` is what all hosts have sent by then,
the store of Downpour's folder included, and every byte that one sends another one receives.
`store_in_mb` and `store_out_mb` are the store's part of it.

Downpour has its defaults: a shard and a worker a host, one meeting an epoch. Its command is one, as
its user types it, and reaches the hosts by ssh; the others' command is typed on every host at once.
The others read the images from a local disk, and Downpour's workers from the shared folder, over
their links. A peer's run has a lab of its own. They take turns in an order that is shuffled for
each repetition. All hosts share the processors of this machine, so training is not faster with
more of them: look at what the links cost.

Needs root, and MNIST in the folder DOWNPOUR_DATA; see docs/lab.md.
"""

from __future__ import annotations

import itertools
import os
import random
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING

from common import Row, command_line, show
from peers.running import Event, said

if TYPE_CHECKING:
    from tests.lab.hosts import HostProcess
    from tests.lab.lab import Lab, Shared

PEERS: Mapping[str, str] = {
    "ddp": "ddp.py",
    "local-sgd": "local_sgd.py",
    "downpour": "downpour_lab.py",
}
EPOCHS = 15
_HERE = Path(__file__).parent
_PORT = 29_500


def commands(peer: str, lab: Lab, words: Sequence[str]) -> Iterator[list[str]]:
    """Yield what is typed on the first host, on the second, and so on."""
    script = str(_HERE / "peers" / PEERS[peer])
    hosts = list(lab)
    if peer == "downpour":
        yield [sys.executable, script, *words]
        return
    for rank, _ in enumerate(hosts):
        start = [sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts))]
        start += ["--node-rank", str(rank), "--nproc-per-node", "1"]
        start += ["--master-addr", hosts[0].address, "--master-port", str(_PORT)]
        yield [*start, script, *words]


def started(peer: str, lab: Lab, words: Sequence[str]) -> HostProcess:
    """Start a peer; returns the process that says how far it is."""
    variables = {"PYTHONPATH": str(_HERE), "OMP_NUM_THREADS": "1"}
    if peer == "downpour":
        variables |= {"LAB_HOSTS": str(lab.hosts_file), "LAB_SHARED": str(lab.folder)}
    processes: list[HostProcess] = []
    for host, command in zip(lab, commands(peer, lab, words), strict=False):
        with (lab.path / f"{host.name}.log").open("w") as log:
            output = log if processes else subprocess.PIPE
            processes.append(host.start(*command, environment=variables, output=output, errors=log))
    return processes[0]


def train(peer: str, profile: str, hosts: int, *, target: float, patience_seconds: float) -> Row:
    """Let a peer train in a lab of its own, until it is as good as wanted."""
    from tests.lab.lab import Lab

    words = ["--examples", "10000", "--epochs", str(EPOCHS), "--look", "--workers", str(hosts)]
    shared: Shared = "folder" if peer == "downpour" else "nothing"
    with Lab(profile, hosts=hosts, shared=shared) as lab:
        before, store = lab.traffic(), lab["store"].traffic()
        began, load = time.time(), os.getloadavg()[0]
        process = started(peer, lab, words)
        ending = Timer(patience_seconds, lab["pc1"].kill)
        ending.start()
        events: list[Event] = []
        for event in said(process.stdout or ()):
            events.append(event)
            if event.get("accuracy", 0) >= target:
                break
        ending.cancel()
        sent, stored = lab.traffic() - before, lab["store"].traffic() - store
        if not events:
            lines = deque((lab.path / "pc1.log").read_text().splitlines(), 3)
            print(f"{peer}: it has trained nothing: {' '.join(lines)}", file=sys.stderr)
    return {
        "target_seconds": _first(events, began, target),
        "first_batch_seconds": next(
            (e["at"] - began for e in events if e["event"] == "first"), None
        ),
        "accuracy": max((one["accuracy"] for one in events if "accuracy" in one), default=0.0),
        "sent_mb": sent.sent_bytes / 1e6,
        "store_in_mb": stored.received_bytes / 1e6,
        "store_out_mb": stored.sent_bytes / 1e6,
        "load": load,
    }


def _first(events: Sequence[Event], began: float, target: float) -> float | None:
    """Return when an accuracy was reached; None if it never was."""
    good = (one["at"] for one in events if one.get("accuracy", 0) >= target)
    return next((at - began for at in good), None)


def medians(runs: Sequence[Row]) -> Row:
    """Return the median of each column, of the runs that have it; the load is the highest."""
    row: Row = {}
    for column in runs[0]:
        values = [value for run in runs if isinstance(value := run[column], float)]
        some = max(values) if column == "load" else statistics.median(values) if values else "never"
        row[column] = some
    return row


def main() -> int:
    """Measure what is asked for."""
    sys.path.append(str(_HERE.parent))
    from tests.lab.failing import NoLab
    from tests.lab.links import PROFILES

    parser = command_line(__doc__)
    parser.add_argument("--profiles", nargs="+", choices=PROFILES, default=list(PROFILES))
    parser.add_argument("--hosts", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--target", type=float, default=0.97)
    parser.add_argument("--patience-seconds", type=float, default=900.0)
    options = parser.parse_args()
    if "DOWNPOUR_DATA" not in os.environ:
        parser.error("DOWNPOUR_DATA must name a folder that has MNIST")
    rows: list[Row] = []
    for profile, hosts in itertools.product(options.profiles, options.hosts):
        runs: dict[str, list[Row]] = {peer: [] for peer in options.peers}
        limits = {"target": options.target, "patience_seconds": options.patience_seconds}
        for turn in range(options.repetitions):
            for peer in random.Random(turn).sample(options.peers, len(options.peers)):
                try:
                    runs[peer].append(train(peer, profile, hosts, **limits))
                except NoLab as error:
                    parser.error(str(error))
                print(f"{profile}, {hosts} hosts, {peer}: turn {turn + 1}", file=sys.stderr)
        where = {"profile": profile, "hosts": hosts}
        rows += [{**where, "peer": peer, **medians(some)} for peer, some in runs.items()]
    show(rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
