"""Writes the batch script for Slurm as text, from options alone, without a cluster.

Each worker is a task of a job array, so that it comes and goes separately. The script replaces its
shell with the worker, which gets Slurm's signals itself. A trap that passed them on would send each
signal a second time.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from downpour.base.arguments import checked_calls
from downpour.base.errors import SpecError
from downpour.base.labels import merged
from downpour.cluster.launchers.kinds import checked_place, manager_host, option, place
from downpour.cluster.worker.options import WorkerOptions
from downpour.network.discovery.waiting import checked_seconds

JOB_NAME = "downpour"
SIGNALS = ("TERM", "USR1", "USR2")
"""The signals at which a worker leaves."""
EARLY_SECONDS = 60
"""How much too early Slurm may send a signal: it checks time limits once a minute."""
_OURS = {
    "array",
    "comment",
    "error",
    "job-name",
    "no-requeue",
    "ntasks",
    "open-mode",
    "output",
    "parsable",
    "requeue",
    "signal",
    "test-only",
    "wait",
    "wrap",
}
_OPTION = re.compile(r"--([a-z][a-z-]*)(=.+)?")
_SIGNAL = re.compile(rf"({'|'.join(SIGNALS)})@([0-9]{{1,5}})")
_TIME = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_VARIABLES = {"time": "SBATCH_TIMELIMIT", "array": "SBATCH_ARRAY_INX", "requeue": "SBATCH_REQUEUE"}


@checked_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmOptions:
    """The request to Slurm, in sbatch's own terms; an empty value stands for the cluster's default.

    `signal` names a signal, and how many seconds before a worker's time limit Slurm sends it. The
    worker may then take `drain_seconds` to finish its task. `sbatch` holds further options, such as
    `--qos=low`. `place` holds a KEY=VALUE for each required feature: workers run only on nodes that
    have all the values as features. `manager_host` is this machine's address as the nodes reach it.

    Raises:
        SpecError: an option is invalid; names it and the accepted values.
    """

    partition: str = option("", "The partition.", "NAME", default="the cluster's own")
    account: str = option("", "The account.", "NAME", default="your own")
    time: str = option(
        "",
        "A worker's time limit: MINUTES, H:MM:SS or D-HH:MM:SS. Another worker then "
        "takes its place.",
        "LIMIT",
        default="the partition's",
    )
    gres: str = option("", "A worker's generic resources, such as gpu:1.", "GRES", default=False)
    sbatch: tuple[str, ...] = option(
        (),
        "A further option of sbatch, such as --sbatch=--mem=4G. Repeatable.",
        "OPTION",
        default=False,
    )
    signal: str = option(
        "USR2@120",
        "The signal that tells a worker to leave, and how long before its time limit it comes.",
        "NAME@SECONDS",
    )
    drain_seconds: float = option(
        0.0,
        "How long a leaving worker may take to finish its task. It saves an unfinished "
        "one, and another worker continues it. Less than the cluster's KillWait, 30 by "
        "default.",
        "X",
    )
    manager_host: str = manager_host()
    place: tuple[str, ...] = place()

    def __post_init__(self) -> None:
        """Check them."""
        for name in ("partition", "account", "time", "gres", "manager_host"):
            value = getattr(self, name)
            if not isinstance(value, str) or value.startswith("-") or not value.isprintable():
                raise SpecError(name, value, "must be one word that sbatch accepts")
        checked_seconds("drain_seconds", self.drain_seconds)
        match = _SIGNAL.fullmatch(self.signal)
        if match is None:
            raise SpecError("signal", self.signal, f"must be {'|'.join(SIGNALS)}@SECONDS")
        for given in self.sbatch:
            _check_option(given)
        self._check_place()
        least = int(match[2]) + EARLY_SECONDS
        if self.time and seconds_of(self.time) <= least:
            accepted = f"must be above {least} s: {self.signal} may come {EARLY_SECONDS} s early"
            raise SpecError("time", self.time, accepted)

    def lines(self) -> list[str]:
        """Return the options that are set, as options of sbatch."""
        named = ("partition", "account", "time", "gres")
        given = [f"--{name}={value}" for name in named if (value := getattr(self, name))]
        return [f"--signal=B:{self.signal}", *given, *self._constraint(), *self.sbatch]

    def _constraint(self) -> list[str]:
        features = [one.partition("=")[2] for one in self.place]
        return [f"--constraint={'&'.join(features)}"] if features else []

    def _check_place(self) -> None:
        checked_place(self.place)
        for given in self.sbatch if self.place else ():
            if given.startswith("--constraint="):
                accepted = "conflicts with place, because sbatch takes only one constraint"
                raise SpecError("sbatch", given, accepted)


def seconds_of(time: str) -> int:
    """Return a time limit in seconds: MIN, MIN:SEC, H:MIN:SEC, or D-H, D-H:MIN, D-H:MIN:SEC.

    Raises:
        SpecError: it has another form.
    """
    match = _TIME.fullmatch(time)
    if match is None:
        raise SpecError("time", time, "must be MINUTES, H:MM:SS or D-HH:MM:SS")
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is not None:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, (minutes, seconds) = 0, (*numbers, 0)[:2]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def script(
    workers: Sequence[WorkerOptions],
    options: SlurmOptions,
    environment: Mapping[str, str],
    run: str,
    python: str = sys.executable,
) -> str:
    """Return the batch script of an array with a task for each of these workers of one kind.

    The number at the end of a worker's name is its task's index.

    Args:
        workers: the workers to start; they differ only in their names and places.
        options: the request to Slurm.
        environment: variables to set; no secrets, because Slurm keeps the script.
        run: the comment that all jobs of one run share.
        python: the interpreter, which has Downpour installed on the nodes.
    """
    kind, numbers = _kind(workers)
    labels = merged(kind.labels, options.place)
    started = replace(kind, name="", place=0, drain_seconds=options.drain_seconds, labels=labels)
    logs = str(Path(kind.shared) / "logs" / "slurm").replace("%", "%%")
    asked = [
        f"--job-name={JOB_NAME}",
        f"--comment={run}",
        f"--array={_indices(numbers)}",
        "--ntasks=1",
        f"--cpus-per-task={environment.get('OMP_NUM_THREADS', '1')}",
        f"--output={logs}-%A_%a.out",
        "--open-mode=append",
        "--requeue",
        *options.lines(),
    ]
    words = [python, "-m", "downpour.cli", *started.arguments()]
    # Slurm may leave all cards of a node visible; a task that got one of its own takes that one.
    index = f'--name "{kind.name}-$SLURM_ARRAY_TASK_ID" --place "$SLURM_ARRAY_TASK_ID"'
    lines = [
        "#!/bin/sh",
        *(f"#SBATCH {shlex.quote(option)}" for option in asked),
        *(f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())),
        f"exec {shlex.join(words)} {index}",
    ]
    return "\n".join(lines) + "\n"


def overriding(script_text: str) -> set[str]:
    """Return the environment variables with which sbatch would override a script's options."""
    options = re.findall(r"^#SBATCH '?--([a-z-]+)", script_text, re.MULTILINE)
    usual = {f"SBATCH_{option.upper().replace('-', '_')}" for option in options}
    return (
        usual
        | {_VARIABLES[option] for option in options if option in _VARIABLES}
        | {
            "SBATCH_NO_REQUEUE",
            "SBATCH_TEST_ONLY",
            "SBATCH_WAIT",
        }
    )


def number_of(name: str) -> int:
    """Return the number at the end of a worker's name."""
    return int(name.rpartition("-")[2])


def _kind(workers: Sequence[WorkerOptions]) -> tuple[WorkerOptions, list[int]]:
    """Return the workers' common options, with a name that lacks a number, and their numbers."""
    prefix = workers[0].name.rpartition("-")[0]
    return replace(workers[0], name=prefix), sorted(number_of(worker.name) for worker in workers)


def _indices(numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 1 and last - first + 1 == len(numbers):
        return f"{first}-{last}"
    return ",".join(map(str, numbers))


def _check_option(option: str) -> None:
    match = _OPTION.fullmatch(option) if option.isprintable() else None
    if match is None:
        raise SpecError("sbatch", option, "must be an option of sbatch, such as --qos=low")
    if match[1] in _OURS:
        raise SpecError(
            "sbatch", option, "cannot be set here, because Downpour sets it for each worker"
        )
