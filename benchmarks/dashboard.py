"""What the live page costs: to open a long record, to watch a cluster, and the manager.

`opening`: a record of `--workers` and `--rounds` that has ended, opened by one viewer. Seconds to
the first frame and to the last one, compressed bytes on the wire, processor seconds and resident
memory of the page's process. The first frame should come within a second.

`watching`: a manager of its own, with workers that sleep (`load.py`), and a page with one viewer
and with ten. `page_cores` and `manager_cores` are processor time over elapsed time, `kb_a_viewer`
what a viewer gets in a second, compressed (limit: 20). `manager_ratio` is the manager's time beside
the mean of the phases without a page before and after: about 1, because the page asks nothing of
the manager.
"""

from __future__ import annotations

import argparse
import http.client
import logging
import re
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

import psutil
from common import Row, command_line, folders, show
from load import cores, experiment, manager_process, sleeping_workers

import downpour

ROOT = Path(__file__).parents[1]


class Viewer:
    """A browser that reads events and draws nothing."""

    def __init__(self, port: int, name: str) -> None:
        self.bytes_read = 0
        self.line = 0
        self.first_seconds: float | None = None
        self._began = time.monotonic()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        path = f"/api/experiments/{name}/events"
        self._connection.request("GET", path, headers={"accept-encoding": "gzip"})
        self._response = self._connection.getresponse()
        self._inflating = zlib.decompressobj(zlib.MAX_WBITS | 16)

    def read(self, upto: int | None = None) -> None:
        """Read to a line; None: to the end of the stream."""
        while upto is None or self.line < upto:
            try:
                content = self._response.read1(1 << 16)
            except (OSError, http.client.HTTPException):
                return  # the page has ended
            if not content:
                return
            self.bytes_read += len(content)
            told = self._inflating.decompress(content)
            if told and self.first_seconds is None:
                self.first_seconds = time.monotonic() - self._began
            for number in re.findall(rb"^id: (\d+)$", told, re.MULTILINE):
                self.line = int(number)


@contextmanager
def page_process(folder: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Run `downpour dashboard` in a process of its own; yields it and its port."""
    command = [sys.executable, "-m", "downpour", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = re.search(r":(\d+)/", process.stderr.readline())
            assert found
            yield psutil.Process(process.pid), int(found[1])
        finally:
            process.kill()


def opening(options: argparse.Namespace, folder: Path) -> Row:
    """Open a long record."""
    sys.path.insert(0, str(ROOT))
    from tests.show.dashboard.records import write_large

    record = write_large(folder / "large", options.workers, options.rounds)
    with record.open("rb") as file:
        lines = sum(1 for _ in file)
    with page_process(folder) as (process, port):
        began, before = time.monotonic(), process.cpu_times()
        viewer = Viewer(port, "large")
        viewer.read(lines)
        took, after = time.monotonic() - began, process.cpu_times()
        return {
            "phase": "opening",
            "workers": options.workers,
            "viewers": 1,
            "lines": lines,
            "record_mb": record.stat().st_size / 1e6,
            "first_seconds": viewer.first_seconds,
            "all_seconds": took,
            "cpu_seconds": after.user + after.system - before.user - before.system,
            "wire_mb": viewer.bytes_read / 1e6,
            "page_rss_mb": process.memory_info().rss / 1e6,
        }


def watching(options: argparse.Namespace, folder: Path) -> list[Row]:
    """Watch a cluster; returns a row for each number of viewers, none among them."""
    shared = folder / "shared"
    with ExitStack() as stack:
        manager, address = stack.enter_context(manager_process(shared))
        client = stack.enter_context(downpour.Client(address))
        stack.enter_context(sleeping_workers(options, address, shared))
        name = client.submit(experiment(folder, options.workers))
        while not client.results(name).rounds:
            time.sleep(0.5)
        alone = [cores(manager, options.seconds)]
        rows: list[Row] = []
        for count in (1, 10):
            with page_process(shared) as (page, port):
                viewers = [Viewer(port, name) for _ in range(count)]
                for viewer in viewers:
                    Thread(target=viewer.read, daemon=True).start()
                time.sleep(3.0)
                read = sum(viewer.bytes_read for viewer in viewers)
                began = time.monotonic()
                page_began, took = page.cpu_times(), cores(manager, options.seconds)
                elapsed, page_ended = time.monotonic() - began, page.cpu_times()
                used = page_ended.user + page_ended.system - page_began.user - page_began.system
                got = sum(viewer.bytes_read for viewer in viewers) - read
                row: Row = {
                    "phase": "watching",
                    "workers": options.workers,
                    "viewers": count,
                    "manager_cores": took,
                    "page_cores": used / elapsed,
                    "kb_a_viewer": got / 1e3 / elapsed / count,
                    "page_rss_mb": page.memory_info().rss / 1e6,
                }
            alone.append(cores(manager, options.seconds))
            row["manager_ratio"] = 2 * took / (alone[-2] + alone[-1])
            rows.append(row)
        client.cancel(name)
    return rows


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=100, help="of the record that is opened")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each phase")
    parser.add_argument("--task-seconds", type=float, default=8.0, help="how long a task sleeps")
    parser.add_argument("--together", type=int, default=250, help="workers in a process")
    options = parser.parse_args()
    logging.getLogger("downpour").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(dir=folders().get("memory")) as folder:
        rows = [opening(options, Path(folder) / "records")]
        rows += watching(options, Path(folder))
        show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
