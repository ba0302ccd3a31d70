"""One training of one system in a lab of its own: what it says, and what it has sent by then."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from common import Row
from padded import SECONDS

from peers.lab_faults import AFTER_LOOKS, DISTURBANCES, LATE_SECONDS
from peers.lab_record import followed
from peers.lab_starts import SYSTEMS, Starter, Typed
from peers.running import Event, said

if TYPE_CHECKING:
    from tests.lab.hosts import HostProcess
    from tests.lab.lab import Lab, Shared

_BENCHMARKS = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One system on the hosts of one profile, for how long it trains, and what disturbs it.

    `whole` trains all epochs; otherwise it ends at the target.
    """

    system: str
    profile: str
    hosts: int
    epochs: int
    examples: int
    target: float
    whole: bool
    patience_seconds: float
    example_seconds: float
    disturbance: str = "none"
    seed: int = 0

    @property
    def words(self) -> list[str]:
        """The options that every system's script takes."""
        words = ["--examples", str(self.examples), "--epochs", str(self.epochs)]
        return [*words, "--workers", str(self.hosts), "--seed", str(self.seed)]


@dataclass(slots=True)
class Running:
    """The processes of a system, and what all of them have said so far."""

    lab: Lab
    trial: Trial
    began: float = field(default_factory=time.time)
    events: list[Event] = field(default_factory=list)
    _said: queue.Queue[Event | None] = field(default_factory=queue.Queue)
    _readers: int = 0
    _logs: int = 0

    def start(self) -> None:
        """Type the commands of the system's documentation; a late host gets its own later."""
        starter = SYSTEMS[self.trial.system]
        typed = list(starter.typed(self.lab, starter.python, self.trial.words))
        late = DISTURBANCES[self.trial.disturbance].late and not starter.one_command
        last = list(self.lab)[-1]
        self._type([one for one in typed if not (late and one[0] is last)])
        if starter.is_downpour:
            self._readers += 1
            threading.Thread(target=self._follow, daemon=True).start()
        if late:
            rest = [one for one in typed if one[0] is last]
            timer = threading.Timer(LATE_SECONDS, self._type, [rest])
            timer.daemon = True
            timer.start()

    def until_over(self) -> Iterator[Event]:
        """Yield events until the training ends, every process has ended, or time is up."""
        end = self.began + self.trial.patience_seconds
        while (left := end - time.time()) > 0:
            try:
                event = self._said.get(timeout=left)
            except queue.Empty:
                return
            if event is None:
                self._readers -= 1
                if not self._readers:
                    return
                continue
            self.events.append(event)
            yield event
            if event["event"] == "end":
                return

    def last_words(self) -> str:
        """Return the last lines of each log."""
        logs = sorted(self.lab.path.glob("log-*"))
        some = (deque(log.read_text(errors="replace").splitlines(), 3) for log in logs)
        return "\n".join(
            f"{log.name}: {' | '.join(lines)}" for log, lines in zip(logs, some, strict=True)
        )

    def _type(self, typed: list[Typed]) -> None:
        variables = variables_of(SYSTEMS[self.trial.system])
        self._readers += len(typed)
        for host, command in typed:
            self._logs += 1
            with (self.lab.path / f"log-{self._logs}-{host.name}").open("w") as log:
                process = host.start(*command, environment=variables, errors=log)
            threading.Thread(target=self._read, args=[process], daemon=True).start()

    def _follow(self) -> None:
        """Pass on the lines of the record, until every process that could write one has ended."""
        alone = False
        for event in followed(self.lab):
            if event is not None:
                self._said.put(event)
            elif alone:
                break
            else:
                alone = self._readers == 1
        self._said.put(None)

    def _read(self, process: HostProcess) -> None:
        with suppress(ValueError):  # the lab has ended and closed the pipe
            for event in said(process.stdout or ()):
                self._said.put(event)
        self._said.put(None)


def variables_of(starter: Starter) -> dict[str, str]:
    """Return the environment of a system's processes."""
    path = os.pathsep.join((str(Path(starter.python).parent), os.environ.get("PATH", os.defpath)))
    return {
        "PATH": path,
        "RAY_AUTH_MODE": "disabled",
        "RAY_DEDUP_LOGS": "0",
        "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    }


def train(trial: Trial) -> Row:
    """Let a system train in a lab of its own."""
    from tests.lab.lab import Lab
    from tests.lab.ssh import hosts_file

    starter = SYSTEMS[trial.system]
    disturbance = DISTURBANCES[trial.disturbance]
    _ = starter.python  # it may have to be installed first
    shared: Shared = "folder" if starter.is_downpour else "nothing"
    with Lab(trial.profile, hosts=trial.hosts, shared=shared) as lab:
        for host in lab:
            host.environment |= _of_every_host(trial)
        disturbance.before(lab)
        hosts_file(lab.path, lab)
        before, store = lab.traffic(), lab["store"].traffic()
        running, load = Running(lab, trial), os.getloadavg()[0]
        running.start()
        looks = 0
        for event in running.until_over():
            looks += event["event"] == "accuracy"
            if event["event"] == "accuracy" and looks == AFTER_LOOKS:
                disturbance.during(lab)
            if not trial.whole and event.get("accuracy", 0) >= trial.target:
                break
        sent, stored = lab.traffic() - before, lab["store"].traffic() - store
        row = told(running)
        if row["end_seconds"] is None and row["target_seconds"] is None:
            row["said"] = running.last_words()
    return row | {
        "sent_mb": sent.sent_bytes / 1e6,
        "store_in_mb": stored.received_bytes / 1e6,
        "store_out_mb": stored.sent_bytes / 1e6,
        "load": load,
    }


def told(running: Running) -> Row:
    """Return what a system's own events tell."""
    events, began, target = running.events, running.began, running.trial.target
    good = (one["at"] for one in events if one.get("accuracy", 0) >= target)
    looks = [one for one in events if one["event"] == "accuracy"]
    ends = [one for one in events if one["event"] == "end"]
    return {
        "target_seconds": next((at - began for at in good), None),
        "first_batch_seconds": next(
            (one["at"] - began for one in events if one["event"] == "first"), None
        ),
        "end_seconds": ends[0]["at"] - began if ends else None,
        "checksum": ends[0]["checksum"] if ends else None,
        "looks": len(looks),
        "accuracy": max((one["accuracy"] for one in looks), default=0.0),
    }


def _of_every_host(trial: Trial) -> dict[str, str]:
    return {
        SECONDS: str(trial.example_seconds),
        "PYTHONPATH": str(_BENCHMARKS),
        "OMP_NUM_THREADS": "1",
        "DOWNPOUR_ALLOW": "padded,lenet",
    }
