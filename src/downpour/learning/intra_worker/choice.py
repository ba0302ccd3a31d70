"""Chooses how a worker trains inside its machine, if a spec leaves it open.

The arrangements that a machine's cores allow are measured in a separate process (`timing.py`), so
that the caller never imports torch.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError
from downpour.core.families import ARRANGEMENTS
from downpour.core.spec import Spec
from downpour.host.child import JsonLine
from downpour.host.machine import usable_cores
from downpour.learning.devices import devices_for

log = logging.getLogger(__name__)

GAIN_MIN = 1.1
"""A worker leaves its single process only for a step that is at least this many times as fast.
Steps of two processes that did nothing else differed by 7 % (two cores, the report's network, eight
turns)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An arrangement that may be chosen: threads of a process, processes, and what each has."""

    threads: int = 1
    processes: int = 1
    how: str = "data"

    def __str__(self) -> str:
        if self.processes == 1:
            return "one process" + f" with {self.threads} threads" * (self.threads > 1)
        return f"{self.processes} processes ({self.how})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured(JsonLine):
    """A candidate's step: its seconds, how many times as fast as one process, or why it cannot."""

    candidate: Candidate
    step_seconds: float = 0.0
    times_as_fast: float = 0.0
    refused: str = ""

    def __str__(self) -> str:
        if self.refused:
            return f"{self.candidate}: not possible: {self.refused}"
        ratio = f"{self.times_as_fast:.2f} times as fast"
        return f"{self.candidate}: {1000 * self.step_seconds:.3g} ms a step, {ratio}"


def closed(spec: Spec, chosen: Candidate) -> Spec:
    """Return a spec with the chosen arrangement."""
    inside = {"processes": chosen.processes, "how": chosen.how}
    return spec.replace(threads=chosen.threads, inside=inside)


def candidates(spec: Spec, cores: int) -> list[Candidate]:
    """Return what can be chosen on so many cores; the first is a single process."""
    threads = spec.threads
    found = [Candidate(threads=threads)]
    if (processes := cores // threads) > 1:
        found.append(Candidate(threads=cores))
        found += [Candidate(threads=threads, processes=processes, how=how) for how in ARRANGEMENTS]
    return found


def chosen_of(measured: Sequence[Measured]) -> Measured:
    """Return the fastest; the first, a single process, unless another one is clearly faster."""
    fastest = max(measured, key=lambda one: one.times_as_fast)
    return fastest if fastest.times_as_fast >= GAIN_MIN else measured[0]


def settled(
    spec: Spec,
    workers: int,
    datasets: Path,
    data_dir: Path | None = None,
    tell: Callable[[str], object] = log.info,
) -> Spec:
    """Return a spec that says how a worker trains inside its machine, measured if it was open.

    Data that are not in `datasets` yet are prepared there. `tell` is called with a line for each
    candidate that was measured, and one for the choice.
    """
    if spec.inside.how != "auto":
        return spec
    cores = usable_cores()
    if devices_for(spec.device).cards(spec.device):
        tell("inside: one process, because workers train on accelerators")
        return closed(spec, Candidate())
    choices = candidates(spec, cores // workers)
    if len(choices) == 1:
        tell(f"inside: {choices[0]}, because {workers} workers share {cores} cores")
        return closed(spec, choices[0])
    found = []
    for one in measured(spec, choices, datasets, data_dir):
        tell(f"inside: {one}")
        found.append(one)
    chosen = chosen_of(found).candidate
    tell(f"inside: chose {chosen}{', because no other is clearly faster' * (chosen == choices[0])}")
    return closed(spec, chosen)


def measured(
    spec: Spec, choices: Sequence[Candidate], datasets: Path, data_dir: Path | None = None
) -> Iterator[Measured]:
    """Measure some steps of each candidate; yields each as soon as it has been."""
    work = {
        "spec": closed(spec, choices[0]).replace(meet=1).to_toml(),  # meet may be open, too
        "candidates": [asdict(one) for one in choices],
        "datasets": str(datasets),
        "data_dir": str(data_dir) if data_dir is not None else None,
    }
    with subprocess.Popen(  # noqa: S603 - this package's own module
        [sys.executable, "-m", "downpour.learning.intra_worker.timing", json.dumps(work)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            for line in process.stdout or ():
                yield _said(line)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise SpecError("inside.how", "auto", "could not be measured on this machine")


def _said(line: str) -> Measured:
    said: Mapping[str, Any] = json.loads(line)
    if "accepted" in said:
        raise SpecError(said["field"], said["value"], said["accepted"])
    return Measured.of(line)
