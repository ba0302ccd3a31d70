"""Our side of Slurm: the batch script, and requests to test, submit, list and cancel.

The script is text that follows from options alone. Each worker is a task of a job array, so that it
comes and goes separately. The script replaces its shell with the worker, which gets Slurm's signals
itself. A trap that passed them on would send each signal a second time.

We don't use accounting (`sacct`), because many sites lack it, or `scontrol`: containers lack that.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path

from downpour.base.errors import LaunchError, SpecError
from downpour.base.names import checked_calls
from downpour.base.options import checked_seconds, option
from downpour.base.values import merged
from downpour.cluster.launchers import checked_place, manager_host, place
from downpour.cluster.options import WorkerOptions
from downpour.host.paths import without_credentials

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
        checked_place(self.place)
        for given in self.sbatch if self.place else ():
            if given.startswith("--constraint="):
                accepted = "conflicts with place, because sbatch takes only one constraint"
                raise SpecError("sbatch", given, accepted)
        least = int(match[2]) + EARLY_SECONDS
        if self.time and seconds_of(self.time) <= least:
            accepted = f"must be above {least} s: {self.signal} may come {EARLY_SECONDS} s early"
            raise SpecError("time", self.time, accepted)

    def lines(self) -> list[str]:
        """Return the options that are set, as options of sbatch."""
        named = ("partition", "account", "time", "gres")
        given = [f"--{name}={value}" for name in named if (value := getattr(self, name))]
        features = [one.partition("=")[2] for one in self.place]
        constraint = [f"--constraint={'&'.join(features)}"] if features else []
        return [f"--signal=B:{self.signal}", *given, *constraint, *self.sbatch]


def seconds_of(time: str) -> int:
    """Return a time limit in seconds: MIN, MIN:SEC, H:MIN:SEC, or D-H, D-H:MIN, D-H:MIN:SEC."""
    match = _TIME.fullmatch(time)
    if match is None:
        raise SpecError("time", time, "must be MINUTES, H:MM:SS or D-HH:MM:SS")
    days, *rest = match.groups()
    numbers = [int(number) for number in rest if number is not None]
    if days is None and len(numbers) < 3:  # minutes come first
        numbers = [0, *numbers]
    hours, minutes, seconds = (*numbers, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def script(
    workers: Sequence[WorkerOptions],
    options: SlurmOptions,
    environment: Mapping[str, str],
    run: str,
    python: str = sys.executable,
) -> str:
    """Return the batch script of an array with a task for each of these workers of one kind.

    They differ only in their names and places; the number at the end of a worker's name is its
    task's index. The `environment` has no secrets, because Slurm keeps the script. All jobs of one
    `run` have that comment. On the nodes, the interpreter `python` has Downpour installed.
    """
    kind, prefix = workers[0], workers[0].name.rpartition("-")[0]
    numbers = sorted(number_of(worker.name) for worker in workers)
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
    words = [python, "-m", "downpour", *started.arguments()]
    # Slurm may leave all cards of a node visible; a task with its own card takes that one.
    index = f'--name "{prefix}-$SLURM_ARRAY_TASK_ID" --place "$SLURM_ARRAY_TASK_ID"'
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
    unusual = {_VARIABLES[option] for option in options if option in _VARIABLES}
    return usual | unusual | {"SBATCH_NO_REQUEUE", "SBATCH_TEST_ONLY", "SBATCH_WAIT"}


def number_of(name: str) -> int:
    """Return the number at the end of a worker's name."""
    return int(name.rpartition("-")[2])


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
        accepted = "cannot be set here, because Downpour sets it for each worker"
        raise SpecError("sbatch", option, accepted)


ASK_SECONDS = 30.0
"""A busy controller answers late; squeue itself gives up after 10 s or so, by default."""
_COLUMNS = {
    "ArrayJobID": 24,
    "ArrayTaskID": 12,
    "State": 24,
    "exit_code": 12,
    "Reason": 40,
    "Comment": 80,
}
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "REVOKED",
    "TIMEOUT",
}
_NO_CLUSTER = "could not establish a configuration source"
"""Slurm's last words on a machine that has only its commands, after several about DNS."""
_PASSING = ("contact slurm controller", "timed out", "temporarily", "try again")
"""Phrases that Slurm uses when its controller does not answer, as opposed to a refusal."""


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """A task of a job array; `status` is its exit status, if a process has ended on its own."""

    job: int
    index: int
    state: str
    status: int | None
    reason: str
    comment: str

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and Slurm will not start it again."""
        return self.state in _ENDED


def test(script: str) -> None:
    """Ask whether Slurm accepts a script, without submitting it."""
    _ask(["sbatch", "--test-only"], script, _environment(script))


def submit(script: str, secrets: Mapping[str, str]) -> int:
    """Submit a script, with `secrets` as variables that must not be in it; return the job's ID."""
    said = _ask(["sbatch", "--parsable"], script, {**_environment(script), **secrets})
    job = said.strip().rpartition("\n")[2].partition(";")[0]
    if not job.isdigit():
        raise LaunchError(f"sbatch: {_in_one_line(said) or 'said nothing'}")
    return int(job)


def tasks() -> list[ArrayTask]:
    """Return this user's tasks from Downpour, including ones that have just ended."""
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    whose = [f"--user={os.getuid()}", f"--name={JOB_NAME}"]
    form = ["--noheader", "--array", "--states=all", f"--Format={columns}"]
    return parse(_ask(["squeue", *whose, *form]))


def parse(said: str) -> list[ArrayTask]:
    """Read squeue's output; skips lines of another shape."""
    return [
        ArrayTask(int(job), int(index), state, _exit_status(code), reason, comment)
        for job, index, state, code, reason, comment in map(_cells, said.splitlines())
        if job.isdigit() and index.isdigit()
    ]


def cancel(jobs: Iterable[str]) -> None:
    """Cancel jobs, or tasks of them as JOB_INDEX; ignores jobs and tasks that have ended."""
    if named := list(jobs):
        _ask(["scancel", "--quiet", *named])


def cancelling(comment: str) -> str:
    """Return a shell command that cancels this user's jobs with this comment."""
    listed = f"squeue --noheader --user={os.getuid()} --name={JOB_NAME} --format='%A %k'"
    return f'{listed} | while read job said; do [ "$said" = {comment} ] && scancel "$job"; done'


def _cells(line: str) -> list[str]:
    """Cut a line by the widths of its columns, because reasons may contain spaces."""
    ends = list(accumulate(_COLUMNS.values(), initial=0))
    return [line[begin:end].strip() for begin, end in pairwise(ends)]


def _exit_status(code: str) -> int | None:
    """Read STATUS:SIGNAL, or the number that wait() returns; None if a signal has ended it."""
    status, colon, killed = code.partition(":")
    if not status.isdigit():
        return None
    if colon:
        return int(status) if killed in {"", "0"} else None
    number = int(status)
    return os.WEXITSTATUS(number) if os.WIFEXITED(number) else None


def _environment(script: str) -> dict[str, str]:
    """Return this process's environment, without variables that would override the script."""
    override, usual = overriding(script), without_credentials(os.environ)
    return {name: value for name, value in usual.items() if name not in override}


def _ask(words: list[str], script: str = "", environment: Mapping[str, str] | None = None) -> str:
    program = words[0]
    try:
        done = subprocess.run(  # noqa: S603 - words of this module
            words,
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        accepted = f"{program} is missing here; log in to one of the cluster's machines"
        raise SpecError("on", "slurm", accepted) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{program}: no answer within {ASK_SECONDS:g} s") from None
    if done.returncode:
        reason = _in_one_line(done.stderr or done.stdout) or f"exit status {done.returncode}"
        if _NO_CLUSTER in reason.lower():
            lacks = "no slurm.conf on this machine, and no controller in DNS"
            raise SpecError("on", "slurm", f"{program} finds no cluster: {lacks}")
        passing = any(word in reason.lower() for word in _PASSING)
        raise LaunchError(f"{program}: {reason}", asked_wrongly=not passing)
    return done.stdout


def _in_one_line(said: str) -> str:
    """Return the output of a Slurm program, without its name before every line."""
    lines = [line.partition("error: ")[2] or line for line in said.splitlines() if line.strip()]
    return "; ".join(line.strip() for line in lines)
