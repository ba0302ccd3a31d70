"""The four requests to Slurm: test a script, submit it, list its tasks, cancel them.

We use neither accounting (`sacct`) nor `scontrol`, because many sites lack the former and many
containers lack the latter.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from downpour.base.errors import LaunchError, SpecError
from downpour.cluster.launchers.slurm_script import JOB_NAME, overriding
from downpour.host.credentials import without_credentials

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
    """Ask whether Slurm accepts a script, without submitting it.

    Raises:
        LaunchError: Slurm refuses it, in its own words; or it does not answer.
    """
    _ask(["sbatch", "--test-only"], script, _environment(script))


def submit(script: str, secrets: Mapping[str, str]) -> int:
    """Submit a script; return the job's ID.

    Args:
        script: the text.
        secrets: environment variables that must not be in the script.

    Raises:
        LaunchError: Slurm refuses it, in its own words; or it does not answer.
    """
    said = _ask(["sbatch", "--parsable"], script, {**_environment(script), **secrets})
    job = said.strip().rpartition("\n")[2].partition(";")[0]
    if not job.isdigit():
        raise LaunchError(f"sbatch: {_in_one_line(said) or 'said nothing'}")
    return int(job)


def tasks() -> list[ArrayTask]:
    """Return this user's tasks from Downpour, including ones that have just ended.

    Raises:
        LaunchError: Slurm does not answer.
    """
    columns = ",".join(f"{name}:{width}" for name, width in _COLUMNS.items())
    whose = [f"--user={os.getuid()}", f"--name={JOB_NAME}"]
    form = ["--noheader", "--array", "--states=all", f"--Format={columns}"]
    return parse(_ask(["squeue", *whose, *form]))


def parse(said: str) -> list[ArrayTask]:
    """Read squeue's output; skips lines of another shape."""
    found = []
    for line in said.splitlines():
        job, index, state, code, reason, comment = _cells(line)
        if job.isdigit() and index.isdigit():
            found.append(
                ArrayTask(int(job), int(index), state, _exit_status(code), reason, comment)
            )
    return found


def cancel(jobs: Iterable[str]) -> None:
    """Cancel jobs, or tasks of them as JOB_INDEX; ignores jobs and tasks that have ended.

    Raises:
        LaunchError: Slurm does not answer.
    """
    if named := list(jobs):
        _ask(["scancel", "--quiet", *named])


def cancelling(comment: str) -> str:
    """Return a shell command that cancels this user's jobs with this comment."""
    listed = f"squeue --noheader --user={os.getuid()} --name={JOB_NAME} --format='%A %k'"
    return f'{listed} | while read job said; do [ "$said" = {comment} ] && scancel "$job"; done'


def _cells(line: str) -> list[str]:
    """Cut a line by the widths of its columns, because reasons may contain spaces."""
    cells, begin = [], 0
    for width in _COLUMNS.values():
        cells.append(line[begin : begin + width].strip())
        begin += width
    return cells


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
        raise SpecError(
            "on", "slurm", f"{program} is missing here; log in to one of the cluster's machines"
        ) from None
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{program}: no answer within {ASK_SECONDS:g} s") from None
    if done.returncode:
        reason = _in_one_line(done.stderr or done.stdout) or f"exit status {done.returncode}"
        if _NO_CLUSTER in reason.lower():
            accepted = (
                f"{program} finds no cluster: no slurm.conf on this machine, and no "
                "controller in DNS"
            )
            raise SpecError("on", "slurm", accepted)
        passing = any(word in reason.lower() for word in _PASSING)
        raise LaunchError(f"{program}: {reason}", asked_wrongly=not passing)
    return done.stdout


def _in_one_line(said: str) -> str:
    """Return the output of a Slurm program, without its name before every line."""
    lines = [line.partition("error: ")[2] or line for line in said.splitlines() if line.strip()]
    return "; ".join(line.strip() for line in lines)
