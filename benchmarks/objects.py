"""What a round costs where files are objects of a bucket, beside the same round in a folder.

The tasks train nothing (`idle.py`), so a round is the writing and reading of files, and messages.
Manager and workers are processes, each with a machine's own folder, so every file that one wrote is
fetched by the others. `raw_ms` is one connection that creates and fetches the same objects, one
after the other, and `ratio` the round over that.

By default the store is `moto` on loopback, which keeps objects in memory and answers from one
process: a real store has the time of the network beside it, and more hands. `--url` names a place
in a bucket instead, found as always by the provider's own variables.
"""

from __future__ import annotations

import itertools
import logging
import os
import secrets
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import obstore
from common import Row, command_line, show
from moto.server import ThreadedMotoServer
from obstore.store import from_url
from recovery import Child

import downpour
from downpour.learning.allowlist import VARIABLE
from downpour.record.record import parse_lines
from downpour.record.record_lines import AggregatedLine

_FIRST = 2
"""Rounds that are left out: connections are made in them."""
_TURNS = 5


@contextmanager
def server() -> Iterator[str]:
    """Serve objects on loopback; yields the URL of a bucket."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    os.environ |= {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "benchmark",
        "AWS_SECRET_ACCESS_KEY": "benchmark",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    made = urllib.request.Request(f"http://{host}:{port}/rounds", method="PUT")
    urllib.request.urlopen(made).close()  # noqa: S310 - loopback
    try:
        yield "s3://rounds/"
    finally:
        moto.stop()


def rounds(shared: str, folder: Path, workers: int, count: int) -> tuple[float, int]:
    """Run rounds; returns the seconds of the median one, and the bytes of a model."""
    with ExitStack() as ending:

        def start(name: str, *words: str) -> Child:
            own = {
                **os.environ,
                VARIABLE: "idle",
                "PYTHONPATH": str(Path(__file__).parent),
                "DOWNPOUR_LOCAL": str(folder / name),
            }
            child = Child(folder / f"{name}.log", *words, "--shared", shared, environment=own)
            ending.callback(child.end)
            return child

        address = start("manager", "manager", "--port", "0").says(r"manager at (\S+),")
        for number in range(workers):
            name = f"worker-{number}"
            start(name, "worker", "--manager", address, "--name", name).says(r"worker at (\S+)")
        with downpour.Client(address) as client:
            experiment = client.submit(spec(workers, count))
            for _ in client.watch(experiment):
                pass
            facts = parse_lines(client.record(experiment))
    made = [(at, fact) for at, fact in facts if isinstance(fact, AggregatedLine)]
    times = [at for at, _ in made[_FIRST:]]
    return statistics.median(b - a for a, b in itertools.pairwise(times)), made[0][1].bytes


def spec(workers: int, count: int) -> downpour.Spec:
    """Make a spec whose tasks train nothing."""
    return downpour.Spec(
        name="objects",
        task="idle:Idle",
        task_options={"network": "mnist-cnn", "shards": workers},
        shards=workers,
        epochs=count,
        batch_size=1,
        momentum=0.0,
        evaluate_every=0,
        policy="wait",
    )


def raw(url: str, size_bytes: int, workers: int) -> float:
    """Return the seconds in which one connection moves the objects of a round (median of 5).

    The model is created, and fetched by each worker; so is each worker's update, by the manager.
    """
    store, blob, seconds = from_url(url), os.urandom(size_bytes), []
    for _ in range(_TURNS):
        began = time.perf_counter()
        for fetched in (workers, *[1] * workers):
            name = secrets.token_hex(8)
            obstore.put(store, name, blob, mode="create")
            for _ in range(fetched):
                obstore.get(store, name).bytes()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def main() -> None:
    """Measure in a folder and in a bucket, and print a line for each."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, default=2, help="and as many shards")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each run")
    parser.add_argument("--url", help="a place in a bucket; what is put there stays")
    options = parser.parse_args()
    rows: list[Row] = []
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory()))
        place = options.url or ending.enter_context(server())
        url = f"{place.rstrip('/')}/{secrets.token_hex(4)}"
        for where, shared in (("folder", str(folder / "shared")), ("objects", url)):
            logs = folder / where
            logs.mkdir()
            seconds, size = rounds(shared, logs, options.workers, options.rounds)
            row: Row = {
                "where": where,
                "workers": options.workers,
                "model_mb": size / 1e6,
                "round_ms": 1000 * seconds,
            }
            if where == "objects":
                took = raw(url, size, options.workers)
                row |= {"raw_ms": 1000 * took, "ratio": seconds / took}
            rows.append(row)
    show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
