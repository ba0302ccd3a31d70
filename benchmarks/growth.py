"""What a long experiment costs: its readers by rounds, and the scheduler by shards in a round.

A scheduler runs an experiment with eight workers in memory. Training takes no time, and the
package's own writers write the journal and the record. A record of more rounds than `--driven`
repeats these rounds. Each measurement has a process of its own:

- `json`: `json.loads` of each line of the record, and nothing else;
- `read`: `Result.read`;
- `results`: the command `downpour results`;
- `list`: what `downpour list` reads without a manager;
- `replay`: what a starting manager reads of a journal, in step (`sync`) and not (`downpour`);
- `task`: the scheduler's processor time for a task, by policy and shards.

`seconds` are processor time, and `mb` is the peak of the process's memory. `us_a_task` and
`bytes_a_task` are the differences to the case before, over the difference in tasks.
"""

from __future__ import annotations

import heapq
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from time import process_time
from typing import Any

from common import Row, command_line, folders, show

from downpour.base.states import Evaluation
from downpour.base.values import Progress, PublishedFile, SystemState, Update
from downpour.core.node.journal import Journaling
from downpour.core.scheduler import Observed, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.files.store.layout import RECORD_NAME
from downpour.record.journal import DiskSegments, Journal, read_journal, replay_each
from downpour.record.record import RecordReader, export_record
from downpour.record.record_lines import (
    PreparedLine,
    ResourcesUsedLine,
    Sample,
    WorkerJoinedLine,
)
from downpour.record.view import aggregating, observed
from downpour_lab.trials.plan import plain_spec

ONE = "one"
WORKERS = 8
SECONDS = 1.0
SYSTEM = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)
EVALUATION = Evaluation(
    loss=0.4,
    metrics={"accuracy": 0.875},
    class_accuracy=(0.875,) * 10,
    samples=1000,
    seconds=0.1,
)
_PEAK = """
import atexit, pathlib, re, sys
def note(file=sys.argv.pop()):
    status = pathlib.Path("/proc/self/status").read_text()
    pathlib.Path(file).write_text(re.search(r"VmHWM:\\s+(\\d+)", status)[1])
atexit.register(note)
"""
READERS = {
    "json": "import json\nfor line in open(folder + '/record.jsonl'): json.loads(line)",
    "read": "from downpour import Result\nResult.read(folder)",
    "results": (
        "from downpour.cli import main\n"
        "sys.argv[1:] = ['results', 'one', '--shared', folder + '/../..']\n"
        "main()"
    ),
    "list": (
        "from downpour.record.stored_experiments import experiments_in\n"
        "from pathlib import Path\n"
        "experiments_in(Path(folder).parent)"
    ),
    "replay": "import growth\ngrowth.replay(folder)",
}


@dataclass
class Cluster:
    """A scheduler and its workers, which take a second for a task, more or less."""

    mode: str = "sync"
    policy: str = "handoff"
    shards: int = WORKERS
    rounds: int = 1
    seconds: float = math.inf
    """How long all may take, in processor time of the scheduler."""
    journaling: Journaling | None = None
    scheduler: Scheduler = field(default_factory=Scheduler)
    spent: float = 0.0
    tasks: int = 0
    _coming: list[tuple[float, int, on.Event, Observed | None]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)

    def run(self) -> None:
        """Run that many rounds of an experiment with more."""
        spec = plain_spec(
            shards=self.shards, epochs=10**6, mode=self.mode, policy=self.policy, retries=1000
        )
        self._happen(on.ExperimentSubmitted(at_seconds=0.0, experiment=ONE, spec=spec), None)
        for number in range(WORKERS):
            name = f"worker-{number}"
            joined = WorkerJoinedLine(worker=name, address="h:1", numeric_class="x86 on cpu (1)")
            self._happen(on.WorkerJoined(at_seconds=0.0, worker=name), observed(ONE, joined))
        one = self.scheduler.state.experiments[ONE]
        while one.rounds_done < self.rounds and self.spent < self.seconds:
            _, _, event, line = heapq.heappop(self._coming)
            self._happen(event, line)

    def _happen(self, event: on.Event, line: Observed | None) -> None:
        began = process_time()
        output = self.scheduler.handle(event)
        self.spent += process_time() - began
        if self.journaling is not None:
            story = [*([line] if line else []), event, *output.facts]
            self.journaling.keep(self.scheduler, event, story)
            self.journaling.commit()
        for command in output.commands:
            self._carry_out(event.at_seconds, command)

    def _later(self, event: on.Event, line: Observed | None = None) -> None:
        heapq.heappush(self._coming, (event.at_seconds, next(self._numbers), event, line))

    def _carry_out(self, at: float, command: out.Command) -> None:
        match command:
            case out.Prepare():
                self._prepare(at)
            case out.Assign(assigned):
                self._train(at, assigned)
            case out.Aggregate():
                made = on.Aggregated(
                    at_seconds=at + 0.01,
                    experiment=ONE,
                    round=command.round,
                    model=_file(f"model-{command.round}"),
                    parts=command.parts,
                )
                self._later(made, aggregating(command))
            case out.Evaluate():
                measured = on.Evaluated(
                    at_seconds=at + 0.02,
                    experiment=ONE,
                    round=command.round,
                    evaluation=EVALUATION,
                )
                self._later(measured)
            case _:
                pass

    def _prepare(self, at: float) -> None:
        sizes = (1000,) * self.shards
        line = PreparedLine(
            train_samples=sum(sizes),
            test_samples=1000,
            classes=10,
            shard_samples=sizes,
            prepare_seconds=1.0,
            split_seconds=0.1,
            bytes=4_800_000,
            parameters=1_200_000,
            numeric_class="x86 on cpu (1)",
            dataset="digits",
            checksum="0123456789abcdef",
        )
        prepared = on.Prepared(
            at_seconds=at, experiment=ONE, dataset="digits", shard_samples=sizes, model=_file("m")
        )
        self._later(prepared, observed(ONE, line))

    def _train(self, at: float, assigned: out.Assigned) -> None:
        self.tasks += 1
        key, worker = assigned.attempt, assigned.worker
        # No two tasks take equally long, and no worker is slow.
        seconds = SECONDS + 0.02 * (hash((key.round, key.shard)) % 11) + 0.001 * int(worker[7:])
        half = Progress(attempt=key, steps_done=50, steps_total=100, elapsed_seconds=seconds / 2)
        self._later(
            on.HeartbeatReceived(
                at_seconds=at + seconds / 2, worker=worker, running=(half,), system=SYSTEM
            )
        )
        update = Update(
            file=_file(f"update-{key.round}-{key.shard}-{key.attempt}"),
            samples=1000,
            steps=100,
            loss=0.123456789 + 1 / (1 + key.round),
            load_seconds=0.0123456789,
            train_seconds=seconds - 0.0234567891,
            publish_seconds=0.0111111102,
        )
        used = tuple(
            Sample(at + seconds * part, 0.98765, 123_456_789, 11, 0.01234) for part in (0.5, 1.0)
        )
        line = ResourcesUsedLine(
            round=key.round, shard=key.shard, attempt=key.attempt, worker=worker, samples=used
        )
        published = on.UpdatePublished(
            at_seconds=at + seconds, worker=worker, attempt=key, update=update
        )
        self._later(published, observed(ONE, line))


def _file(name: str) -> PublishedFile:
    return PublishedFile(
        name=f"{name}-0123456789", size_bytes=4_800_123, checksum="fedcba9876543210"
    )


def drive(folder: Path, rounds: int, shards: int, mode: str) -> int:
    """Write the journal of an experiment, as a manager does; return how many tasks it has."""
    folder.mkdir(parents=True)
    journal = Journal(folder, 1, files=DiskSegments(folder, syncs=False))
    cluster = Cluster(mode, shards=shards, rounds=rounds)
    cluster.journaling = Journaling({ONE: journal}.get)
    cluster.run()
    journal.close()
    return cluster.tasks


def replay(folder: str) -> None:
    """Read a journal, and replay it, as a starting manager does."""
    journal = read_journal(Path(folder))
    [_] = replay_each({ONE: journal}, 1.0).experiments


def lengthen(record: Path, longer: Path, rounds: int, times: int) -> None:
    """Write a record whose rounds are the first ones of another record, again and again."""
    changing = r'(?<="at": )[0-9.e-]+|(?<="round": )[0-9]+|(?<="version": )[0-9]+'
    lines = record.read_text().splitlines()
    begin = next(n for n, line in enumerate(lines) if '"kind": "assigned"' in line)
    parts = [re.split(f"({changing})", line) for line in lines[begin:]]
    parts = [line for line in parts if int(line[3]) < rounds]
    seconds = float(parts[-1][1])
    with longer.open("w") as file:
        file.writelines(f"{line}\n" for line in lines[:begin])
        for repeat in range(times):
            for line in parts:
                text = [*line]
                text[1] = repr(float(line[1]) + repeat * seconds)
                text[3::2] = [str(int(number) + repeat * rounds) for number in line[3::2]]
                file.write("".join(text) + "\n")


def process(reader: str, folder: Path) -> tuple[float, float]:
    """Return the processor time of a reader's process, and the peak of its memory in megabytes."""
    code = f"folder = {str(folder)!r}\n{_PEAK}\n{READERS[reader]}"
    with tempfile.NamedTemporaryFile("r") as peak:
        child = subprocess.Popen(
            [sys.executable, "-c", code, peak.name],
            stdout=subprocess.DEVNULL,
            cwd=Path(__file__).parent,
        )
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{reader} has failed")
        return used.ru_utime + used.ru_stime, float(peak.read()) / 1024


def laws(rows: list[dict[str, Any]]) -> list[Row]:
    """Add what a task more costs, from the case before."""
    for former, row in pairwise(rows):
        tasks = row["tasks"] - former["tasks"]
        row["us_a_task"] = 1e6 * (row["seconds"] - former["seconds"]) / tasks
        row["bytes_a_task"] = 2**20 * (row["mb"] - former["mb"]) / tasks
    return rows


def reading(folder: Path, rounds: Sequence[int], driven: int) -> list[Row]:
    """Measure the readers of a record."""
    original = folder / "sync" / "experiments" / ONE
    driven = min(driven, *rounds)
    drive(original, driven, WORKERS, "sync")
    whole = folder / "whole"
    whole.mkdir()
    export_record(whole, RecordReader(original).all_lines())
    rows: list[Row] = []
    for reader in ("json", "read", "results", "list"):
        measured = []
        for number in rounds:
            place = folder / str(number) / "experiments" / ONE
            if not place.exists():
                place.mkdir(parents=True)
                lengthen(whole / RECORD_NAME, place / RECORD_NAME, driven, number // driven)
            measured.append(row(reader, place, number * WORKERS))
        rows += laws(measured)
    return rows


def row(reader: str, folder: Path, tasks: int, mode: str = "sync") -> Row:
    """Measure one reader."""
    seconds, mb = process(reader, folder)
    return {"what": reader, "mode": mode, "tasks": tasks, "seconds": seconds, "mb": mb}


def replaying(folder: Path, rounds: Sequence[int]) -> list[Row]:
    """Measure replays of journals that have not ended."""
    rows: list[Row] = []
    for mode in ("sync", "downpour"):
        measured = []
        for number in rounds:
            place = folder / "replayed" / mode / str(number)
            measured.append(row("replay", place, drive(place, number, WORKERS, mode), mode))
        rows += laws(measured)
    return rows


def tasks(shards: Sequence[int]) -> list[Row]:
    """Measure the scheduler."""
    rows: list[Row] = []
    for policy in ("wait", "handoff"):
        for number in shards:
            cluster = Cluster("sync", policy, number, rounds=2, seconds=60.0)
            cluster.run()
            rows.append(
                {
                    "what": "task",
                    "mode": policy,
                    "shards": number,
                    "tasks": cluster.tasks,
                    "ms_a_task": 1e3 * cluster.spent / cluster.tasks,
                }
            )
    return rows


def numbers(text: str) -> list[int]:
    """Return the numbers in a list with commas; none if it is empty."""
    return [int(number) for number in text.split(",") if number]


def main() -> None:
    """Measure and print."""
    parser = command_line(__doc__)
    parser.add_argument("--rounds", type=numbers, default=[1_000, 10_000], metavar="N,...")
    parser.add_argument("--driven", type=int, default=1_000, metavar="N")
    parser.add_argument("--replayed", type=numbers, default=[200, 1_000], metavar="N,...")
    parser.add_argument("--shards", type=numbers, default=[100, 1_000, 10_000], metavar="N,...")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=folders()["disk"]) as folder:
        rows = reading(Path(folder), options.rounds, options.driven) if options.rounds else []
        rows += replaying(Path(folder), options.replayed)
        rows += tasks(options.shards)
        show(rows, as_json=options.json)


if __name__ == "__main__":
    main()
