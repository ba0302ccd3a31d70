"""What many finished experiments in a directory cost: a start of the manager, a list, a submission.

One experiment is finished by a real manager. The others are copies of its folder: hard links, with
journals of their own that name each folder. `journals` starts a manager that must read every
journal, as where the list of ended experiments was lost; `start` is any later one.

`first_answer_seconds` is from the command to the first answered call, `cpu_seconds` the processor
time of the manager until then. `rss_mb` is its resident memory after a list was asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from common import Row, command_line, folders, show
from load import Sleeper, experiment, manager_process, sleeping_worker

import downpour
from downpour.files.store import SharedDirectory
from downpour.record.journal import seal, whole_lines


def finish_one(folder: Path, shared: Path) -> Path:
    """Finish an experiment of one round with a real manager; returns its folder."""
    with manager_process(shared) as (_, address), downpour.Client(address) as client:
        sleeper = Sleeper(SharedDirectory.open(shared, create=False), 0.0)
        spec = experiment(folder, 11).replace(epochs=1)
        with sleeping_worker("sleeper", address, sleeper.run, shared):
            name = client.submit(spec)
            client.wait(name)
    return shared / "experiments" / name


def copy(original: Path, copies: int) -> None:
    """Make copies of a finished experiment beside it, each submitted after the one before."""
    journals = {path: path.read_bytes() for path in original.glob("journal-*.jsonl")}
    linked = [path for path in original.iterdir() if path not in journals]
    for number in range(1, copies + 1):
        folder = original.with_name(f"{original.name[:-8]}{number:08x}")
        folder.mkdir()
        for path in linked:
            os.link(path, folder / path.name)
        for path, content in journals.items():
            lines = (
                _moved(text, original.name, folder.name, number) for text in whole_lines(content)
            )
            (folder / path.name).write_bytes(b"".join(lines))


def _moved(text: bytes, former: str, name: str, number: int) -> bytes:
    body = json.loads(text.replace(former.encode(), name.encode()))
    # Far more than the entries of one experiment, so that each is in the place of its number.
    body["order"] += 1000 * number
    return seal(json.dumps(body, separators=(",", ":")).encode())


def timed(call: Callable[[], object]) -> float:
    """Return how many seconds a call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


def measure(phase: str, shared: Path, spec: downpour.Spec) -> Row:
    """Start a manager, list, submit; returns a row."""
    began = time.monotonic()
    with manager_process(shared) as (process, address), downpour.Client(address) as client:
        client.status()
        answered, times = time.monotonic() - began, process.cpu_times()
        command = [sys.executable, "-m", "downpour", "list", "--manager", address]
        listed = timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=False))
        submitted = timed(lambda: client.cancel(client.submit(spec)))
        return {
            "phase": phase,
            "experiments": sum(1 for _ in os.scandir(shared / "experiments")) - 1,
            "first_answer_seconds": answered,
            "cpu_seconds": times.user + times.system,
            "list_seconds": listed,
            "submit_seconds": submitted,
            "rss_mb": process.memory_info().rss / 1e6,
        }


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--experiments", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=folders()["disk"]) as folder:
        show(rows(options, Path(folder)), as_json=options.json)


def rows(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Measure with one finished experiment, and with all of them."""
    shared, spec = folder / "shared", experiment(folder, 11).replace(epochs=1)
    original = finish_one(folder, shared)
    measured = [measure("start", shared, spec)]
    copy(original, options.experiments - 1)
    for path in shared.glob("ended-*.jsonl"):
        path.unlink()
    return [*measured, measure("journals", shared, spec), measure("start", shared, spec)]


if __name__ == "__main__":
    main()
