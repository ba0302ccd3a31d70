"""The same training in Downpour and in other systems, side by side: time, memory, lines, deaths.

Each peer is a script in `peers/`, in an environment of its own under `out/peers/`: a venv that
borrows torch of this one, and holds the packages that the peer needs beside it. Peers take turns in
an order that is shuffled for each repetition, so a busy machine slows all of them alike; the load
average is kept with every figure. What a peer prints (`peers/job.py`) is all that is looked at.

- `first_batch_seconds`: from the command to the first step that is done.
- `epoch_seconds`: of one epoch, from the first step on; two processes but for `plain`.
- `accuracy_percent`: after all epochs, on 2,000 test images.
- `round_ms`: a meeting of two processes that have trained nothing, 4.8 MB of parameters.
- `memory_mb`: the most that all processes held together, shared pages counted once each.
- `user_seconds`: that all processes computed, from the command to its end; up to a quarter of a
  second of each process is missed.
- `lines`: of the script, without comments, blank lines and what only says how far it is.
- `after_kill`: what a `kill -9` of one worker after the first epoch leads to.
- `after_coordinator_kill`: the same of the process that the command has started: a driver, a
  launcher, Downpour's manager with its caller. What is kept is said, not measured.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from common import Row, command_line, show
from matplotlib.figure import Figure
from peers.known import PEERS, SCRIPTS, Peer, environment_of

from downpour.reports.export import to_svg
from downpour.reports.style import LIGHT, WIDTH_INCHES, styled

FOLDER = Path(__file__).parent
ENVIRONMENTS = FOLDER / "out" / "peers"
PATIENCE_SECONDS = 150.0
"""After which a run hangs, and is ended."""
DEATH_EPOCHS = 4
"""Of a run in which a process is killed."""
_TELLING = ("say(", "job.first_batch()", "job.epoch_ends(", "known", "epochs", '"""')

Event = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A run of a peer: its events, its exit status, what it took, and the load as it began."""

    events: list[Event]
    status: int
    began: float
    ended: float
    memory_mb: float
    user_seconds: float
    load: float

    def first(self, event: str) -> float | None:
        """Return when an event was first said; None if it never was."""
        return next((one["at"] for one in self.events if one["event"] == event), None)


def run(
    peer: Peer, python: Path, *words: str, kill_after: int | None = None, first: bool = False
) -> Ran:
    """Run a peer to its end; `kill_after` so many epochs a worker is killed, or its first process.

    Where that is a worker too, as with `fabric`, both are the same.
    """
    began, load = time.time(), os.getloadavg()[0]
    events: list[Event] = []
    starting = subprocess.Popen(
        peer.command(python, *words),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=variables(peer, python),
        start_new_session=True,
    )
    with starting as process, watched(process) as took:
        for event in said(process.stdout or ()):
            events.append(event)
            epochs = sum(one["event"] == "epoch" for one in events)
            if event["event"] == "epoch" and epochs == kill_after:
                pid = process.pid if first else last_worker(events)
                events += [killed(pid)] if pid is not None else []
        process.wait()
    return Ran(
        events=events,
        status=process.returncode,
        began=began,
        ended=time.time(),
        memory_mb=took.memory / 1e6,
        user_seconds=sum(took.user.values()),
        load=load,
    )


def variables(peer: Peer, python: Path) -> dict[str, str]:
    """Return the environment variables of a run, as if the peer's environment were activated."""
    return {
        **os.environ,
        "PATH": os.pathsep.join((str(python.parent), os.environ.get("PATH", os.defpath))),
        "PYTHONPATH": str(FOLDER),
        "OMP_NUM_THREADS": "1",
        "RAY_AUTH_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0",
        **peer.environment,
    }


def said(lines: Iterable[str]) -> Iterator[Event]:
    """Yield the events among the lines of a peer, whatever stands around them.

    Processes that print at once may put several into one line.
    """
    decoder = json.JSONDecoder()
    for line in lines:
        place = line.find("{")
        while place >= 0:
            event, end = None, place + 1
            with suppress(ValueError):
                event, end = decoder.raw_decode(line, place)
            if isinstance(event, dict) and "event" in event:
                yield event
            place = line.find("{", end)


def last_worker(events: Sequence[Event]) -> int | None:
    """Return the process of the worker that was last heard of, if any was."""
    pids = [int(one["pid"]) for one in events if one["event"] == "worker"]
    return pids[-1] if pids else None


def killed(pid: int) -> Event:
    """Kill a process."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return {"event": "killed", "at": time.time(), "pid": pid}


@dataclass(slots=True)
class Took:
    """The most bytes that processes held together, and the seconds that each has computed."""

    memory: float = 0.0
    user: dict[psutil.Process, float] = field(default_factory=dict)

    def look(self, family: Iterable[psutil.Process]) -> None:
        """Look at processes as they are now; of one that has ended, the last look counts."""
        self.memory = max(self.memory, sum(map(_held, family)))
        for one in family:
            with suppress(psutil.Error):
                self.user[one] = one.cpu_times().user


@contextmanager
def watched(process: subprocess.Popen[str]) -> Iterator[Took]:
    """Look at what a process and its children take meanwhile; ends what is left of them."""
    took, over, root = Took(), threading.Event(), psutil.Process(process.pid)
    family = {root}

    def look() -> None:
        began = time.monotonic()
        while not over.wait(0.25):
            with suppress(psutil.Error):
                family.update(root.children(recursive=True))
            took.look(family)
            if time.monotonic() - began > PATIENCE_SECONDS:
                _end(family)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield took
    finally:
        over.set()
        watching.join()
        _end(family)


def _end(family: Iterable[psutil.Process]) -> None:
    for one in family:
        with suppress(psutil.Error):
            one.kill()


def _held(process: psutil.Process) -> float:
    try:
        return float(process.memory_full_info().pss)
    except (psutil.Error, AttributeError):
        return 0.0


def after_kill(ran: Ran, kept: str = "all is lost") -> str:
    """Say what the death of a process has led to; what has said every epoch has gone on."""
    at = ran.first("killed")
    if at is None:
        return "no worker is known"
    epochs = [one["at"] - at for one in ran.events if one["event"] == "epoch"]
    later = [seconds for seconds in epochs if seconds > 0]
    if later and (ran.status == 0 or len(epochs) >= DEATH_EPOCHS):
        return f"goes on by itself {_with_whom(ran, at)}: next epoch after {later[0]:.1f} s"
    if ran.ended - ran.began > PATIENCE_SECONDS:
        return "hangs"
    return f"ends after {ran.ended - at:.1f} s, {kept}"


def _with_whom(ran: Ran, at: float) -> str:
    """Say whether somebody has taken the place of the worker that was killed."""
    workers = [one for one in ran.events if one["event"] == "worker"]
    before = {one["pid"] for one in workers if one["at"] <= at}
    replaced = any(one["pid"] not in before for one in workers)
    return "with another worker" if replaced else "with those that are left"


def lines_of(peer: Peer) -> int:
    """Count the lines of a peer's script that a user would write."""
    text = (SCRIPTS / peer.script).read_text("utf-8")
    lines = (line.strip() for line in text.splitlines())
    return sum(
        bool(line) and not line.startswith("#") and not any(word in line for word in _TELLING)
        for line in lines
    )


@dataclass(slots=True)
class Runs:
    """A peer's runs: those that train, those that only meet, and two deaths, a worker's first."""

    trained: list[Ran] = field(default_factory=list)
    rounds: list[Ran] = field(default_factory=list)
    deaths: list[Ran] = field(default_factory=list)


def row(peer: Peer, runs: Runs) -> Row:
    """Return a peer's line: medians over the repetitions."""
    trained, rounds, deaths = runs.trained, runs.rounds, runs.deaths
    firsts = [ran.first("first") for ran in trained]
    epochs = [_epoch_seconds(ran) for ran in trained]
    ends = [one["accuracy"] for ran in trained for one in ran.events if "accuracy" in one][-1:]
    times = [e["milliseconds"] for ran in rounds for e in ran.events if e["event"] == "rounds"]
    loads = [ran.load for ran in (*trained, *rounds)]
    led = [after_kill(ran, peer.kept) for ran in deaths] or ["not tried"] * 2
    starts = [at - ran.began for at, ran in zip(firsts, trained, strict=True) if at is not None]
    return {
        "peer": peer.name,
        "first_batch_seconds": _median(starts),
        "epoch_seconds": _median([seconds for seconds in epochs if seconds is not None]),
        "accuracy_percent": 100 * ends[0] if ends else None,
        "round_ms": _median(times),
        "memory_mb": _median([ran.memory_mb for ran in trained]),
        "user_seconds": _median([ran.user_seconds for ran in trained]),
        "lines": lines_of(peer),
        **dict(zip(("after_kill", "after_coordinator_kill"), led, strict=True)),
        "load": f"{min(loads):.1f} to {max(loads):.1f}" if loads else "",
    }


def _epoch_seconds(ran: Ran) -> float | None:
    first = ran.first("first")
    ends = [one["at"] for one in ran.events if one["event"] == "epoch"]
    return (ends[-1] - first) / len(ends) if first is not None and ends else None


def _median(numbers: Sequence[float]) -> float | None:
    return round(statistics.median(numbers), 3) if numbers else None


def measure(peers: Sequence[Peer], repetitions: int, examples: int) -> Iterator[list[Row]]:
    """Measure peers in turns; one that cannot be installed gets a line that says why.

    Yields:
        All lines as they are by then, after each turn and each death.
    """
    pythons: dict[str, Path] = {}
    skipped: list[Row] = []
    for peer in peers:
        try:
            pythons[peer.name] = environment_of(peer, ENVIRONMENTS)
        except LookupError as error:
            skipped.append({"peer": peer.name, "after_kill": f"skipped: {error}"})
    there = [peer for peer in peers if peer.name in pythons]
    of = {peer.name: Runs() for peer in there}
    for turn in range(repetitions):
        for peer in random.Random(turn).sample(there, len(there)):
            runs, python = of[peer.name], pythons[peer.name]
            runs.trained.append(run(peer, python, "--examples", str(examples)))
            runs.rounds.append(run(peer, python, "--rounds", "30"))
            print(f"{peer.name}: turn {turn + 1} of {repetitions}", file=sys.stderr)
        yield [*(row(peer, of[peer.name]) for peer in there), *skipped]
    words = ("--examples", str(examples), "--epochs", str(DEATH_EPOCHS))
    for peer in (peer for peer in there if peer.name != "plain"):
        of[peer.name].deaths = [
            run(peer, pythons[peer.name], *words, kill_after=1, first=first)
            for first in (False, True)
        ]
        print(f"{peer.name}: killed", file=sys.stderr)
        yield [*(row(peer, of[peer.name]) for peer in there), *skipped]


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Draw what the peers took, each relative to the least."""
    columns = {
        "first_batch_seconds": "to the first batch, s",
        "epoch_seconds": "an epoch, s",
        "round_ms": "an empty meeting, ms",
        "memory_mb": "memory, MB",
    }
    measured = [one for one in rows if one.get("epoch_seconds")][::-1]
    with styled(path.stem):
        figure = Figure(figsize=(WIDTH_INCHES, WIDTH_INCHES), layout="constrained")
        axes = figure.subplots(2, 2, sharey=True)
        for axis, (column, label) in zip(axes.flat, columns.items(), strict=True):
            names = [str(one["peer"]) for one in measured]
            values = [float(one.get(column) or 0) for one in measured]
            axis.barh(names, values, color=LIGHT["ink"], height=0.5)
            for place, value in enumerate(values):
                where = (value, place)
                axis.annotate(_cell(value), where, xytext=(3, -3), textcoords="offset points")
            axis.set_xlabel(label)
            axis.margins(x=0.35)
    path.write_text(to_svg(figure, path.stem), "utf-8")


COLUMNS = {
    "peer": "",
    "first_batch_seconds": "first batch, s",
    "epoch_seconds": "an epoch, s",
    "accuracy_percent": "accuracy, %",
    "round_ms": "empty meeting, ms",
    "memory_mb": "memory, MB",
    "user_seconds": "processor, s",
    "lines": "lines",
    "after_kill": "a worker is killed",
    "after_coordinator_kill": "what the command started is killed",
}


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as a page's table; a peer that was skipped says why in a row of its own."""
    lines = [" | ".join(COLUMNS.values()), " | ".join(["---"] + ["--:"] * 7 + ["---"] * 2)]
    lines += [" | ".join(_cell(row.get(column)) for column in COLUMNS) for row in rows]
    return "".join(f"| {line} |\n" for line in lines)


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def versions() -> dict[str, str]:
    """Return the versions of what was compared."""
    names = ("torch", "ray", "downpour-sgd")
    found = {name: importlib.metadata.version(name) for name in names}
    pins = [re.split(r"(?:\[.*])?==", pin) for peer in PEERS for pin in peer.requirements]
    return {**found, **dict(pins)}


def main() -> int:
    """Measure, or draw what was kept."""
    parser = command_line(__doc__)
    names = [peer.name for peer in PEERS]
    parser.add_argument("peers", nargs="*", help=f"only these of {', '.join(names)}")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--examples", type=int, default=6000)
    parser.add_argument("--keep", type=Path, help="write the figures into this file of JSON")
    parser.add_argument("--figure", type=Path, help="only draw what --keep has written")
    parser.add_argument("--table", action="store_true", help="only print it as Markdown")
    options = parser.parse_args()
    if unknown := set(options.peers) - set(names):
        parser.error(f"peers = {min(unknown)!r}: must be one of {', '.join(names)}")
    if options.figure is not None or options.table:
        kept = json.loads(options.keep.read_text("utf-8"))["rows"]
        if options.figure is not None:
            draw(kept, options.figure)
        if options.table:
            sys.stdout.write(markdown(kept))
        return 0
    if "DOWNPOUR_DATA" not in os.environ:
        parser.error("DOWNPOUR_DATA must name a folder that has MNIST")
    chosen = [peer for peer in PEERS if not options.peers or peer.name in options.peers]
    rows: list[Row] = []
    for rows in measure(chosen, options.repetitions, options.examples):
        if options.keep is not None:
            about = {"versions": versions(), "examples": options.examples, "rows": rows}
            options.keep.write_text(json.dumps(about, indent=1) + "\n", "utf-8")
    show(rows, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
