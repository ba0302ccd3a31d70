"""The findings of `downpour doctor --hosts` for each host, and each problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from downpour.cluster.launchers.hosts import Host
from downpour.cluster.launchers.ssh_probe import Look, look_at
from downpour.cluster.launchers.ssh_script import SshOptions
from downpour.cluster.operations.finding import Finding, Verdict, bad, doubtful
from downpour.cluster.operations.probes import SKEW_WARN_SECONDS

MEMORY_PER_WORKER_BYTES = 400 * 2**20
"""A worker with torch and a small model takes 300 MiB or so."""


@dataclass(frozen=True, slots=True)
class HostReport:
    """A look at a host, and its problems."""

    look: Look
    problems: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst of its problems."""
        verdicts = {problem.verdict for problem in self.problems}
        return next((v for v in (Verdict.FAILED, Verdict.WARNING) if v in verdicts), Verdict.GOOD)


def examine(hosts: Sequence[Host], options: SshOptions, shared: Path) -> list[HostReport]:
    """Look at all hosts at once; returns a report on each, in order.

    Raises:
        LaunchError: ssh is not installed.
    """
    return judge(look_at(hosts, options, shared, numerics=True))


def judge(looks: Sequence[Look]) -> list[HostReport]:
    """List the problems that the looks at hosts have shown."""
    classes = Counter(look.numerics for look in looks if look.numerics)
    usual = max(classes, key=lambda numerics: classes[numerics], default="")
    return [HostReport(look, tuple(_problems(look, usual))) for look in looks]


def _problems(look: Look, usual: str) -> Iterator[Finding]:
    if look.obstacle:
        yield bad(look.obstacle, "")
        return
    if abs(look.ahead_seconds) > SKEW_WARN_SECONDS:
        way = "ahead" if look.ahead_seconds > 0 else "behind"
        seen = f"its clock is {abs(look.ahead_seconds):.1f} s {way}"
        yield doubtful(seen, "times of files and logs will not agree")
    if not look.numerics:
        yield doubtful("it has no torch", "install it there")
    elif look.numerics != usual:
        meaning = (
            "its models will have different bytes than those of the other hosts, which have "
            f"{usual}"
        )
        yield doubtful(look.numerics, meaning)
    slots = look.host.slots
    if slots > look.cores:
        yield doubtful(
            f"{slots} slots on {look.cores} cores", "its workers will slow each other down"
        )
    if look.memory_bytes < slots * MEMORY_PER_WORKER_BYTES:
        seen = f"{slots} slots with {look.memory_bytes / 2**30:.1f} GiB of memory free"
        yield doubtful(seen, "a worker needs at least 0.4 GiB")
