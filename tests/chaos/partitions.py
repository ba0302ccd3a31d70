"""Partitions of real clusters on the hosts of a lab: `python -m tests.chaos.partitions`.

Each seed draws a mode, what the hosts share, and what goes wrong with their links (`cuts.py`).
After each run an independent checker reads the journal and the folder (`history.py`); where shards
are in step, the model must have the bytes of an undisturbed run, and elsewhere a replay must agree.
A line is printed for each run.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from random import Random
from time import monotonic

from tests.chaos.cuts import CLIENT, Schedule, Trouble, drawn
from tests.chaos.field import Field
from tests.chaos.forked import model_of_run
from tests.chaos.history import done_in_vain, read_history, violations
from tests.chaos.skewed import can_skew
from tests.lab.lab import Lab, Shared

SPEC = ["--dataset", "digits", "--model", "mlp", "--shards", "3", "--seed", "3"]
SPEC += ["--epochs", "40", "--meet", "1", "--batch-size", "8"]
MODES: dict[str, tuple[str, ...]] = {
    "sync": (),
    "overlap": ("--overlap", "1"),
    "steps": ("--compression", "terngrad", "--model-compression", "int3"),
    "quorum": ("--mode", "quorum"),
    "downpour": ("--mode", "downpour"),
    "easgd": ("--mode", "easgd"),
}
IN_STEP = frozenset({"sync", "overlap", "steps"})
STORES: tuple[Shared, ...] = ("folder", "objects")
FIRST_AT = 2, 12
_NOT_OF_IT = "NoLab", "another model", "replay"
"""How reasons begin that the checker of the history did not find."""
DOWNPOUR = (sys.executable, "-m", "downpour")

say = partial(print, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run: all that happens follows from it, but for the moments at which processes act."""

    seed: int
    mode: str
    shared: Shared
    schedule: Schedule
    after: tuple[int, ...]

    @classmethod
    def of(
        cls,
        seed: int,
        modes: Sequence[str],
        stores: Sequence[Shared],
        times: int,
        *,
        only_takeovers: bool = False,
    ) -> Plan:
        """Draw it: seeds that follow each other go through all modes, then through all stores."""
        random = Random(seed)
        return cls(
            seed=seed,
            mode=modes[seed % len(modes)],
            shared=stores[seed // len(modes) % len(stores)],
            schedule=drawn(random, times=times, may_skew=can_skew(), only_takeovers=only_takeovers),
            after=tuple(random.randint(*FIRST_AT) for _ in range(times)),
        )

    def __str__(self) -> str:
        return f"seed {self.seed} {self.mode} {self.shared}: {self.schedule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How one run went; `wrong` is empty if all is as it must be."""

    plan: Plan
    wrong: tuple[str, ...]
    seconds: float
    healing: tuple[float, ...] = ()
    attempts: int = 0
    in_vain: int = 0
    terms: int = 0
    void: int = 0
    restarts: int = 0

    def line(self) -> str:
        """Say it in a line, and below it what was wrong."""
        healing = " ".join(f"{seconds:.1f}" for seconds in self.healing)
        words = "as it must be" if not self.wrong else f"{len(self.wrong)} WRONG"
        line = f"{self.plan}: {words}, {self.seconds:.0f} s; healed to progress {healing} s;"
        line += f" {self.in_vain} of {self.attempts} attempts in vain; {self.terms} terms,"
        line += f" {self.void} void lines, {self.restarts} restarts"
        return "\n".join([line, *(f"    {reason}" for reason in self.wrong)])


@cache
def undisturbed(mode: str) -> bytes:
    """Return the model of the same spec where nothing happens."""
    with tempfile.TemporaryDirectory() as folder:
        return model_of_run(Path(folder), *SPEC, *MODES[mode], "--workers", "3")


def play(
    plan: Plan, kept: Path, command: tuple[str, ...] = (), wait_seconds: float = 120.0
) -> Played:
    """Play one run; its shared files are copied to `kept`, which does not exist."""
    begun, healing = monotonic(), list[float]()
    with Lab("switch", hosts=int(CLIENT[2:]), shared=plan.shared) as lab:
        field = Field(lab, plan.shared, plan.schedule, command, wait_seconds)
        try:
            field.begin()
            field.submit(*SPEC, *MODES[plan.mode])
            for trouble, after in zip(plan.schedule.troubles, plan.after, strict=True):
                field.until_version(field.versions + after)
                healing.append(field.suffer(trouble))
            field.until_end()
            wrong = list[str]()
        except Exception as error:  # noqa: BLE001 - the next run is another matter
            wrong = [f"{type(error).__name__}: {error}"]
        finally:
            field.close()
        field.keep(kept)
        experiment, restarts = field.experiment, field.starts
    seconds = monotonic() - begun
    if not experiment:
        return Played(plan=plan, wrong=tuple(wrong), seconds=seconds)
    return _judged(plan, kept, experiment, wrong, healing, seconds, restarts)


def _judged(
    plan: Plan,
    kept: Path,
    experiment: str,
    wrong: list[str],
    healing: Sequence[float],
    seconds: float,
    restarts: int,
) -> Played:
    folder = kept / "experiments" / experiment
    wrong += violations(kept, experiment, terms_max=plan.schedule.terms_max)
    if not wrong and plan.mode in IN_STEP:
        model = (folder / "model.safetensors").read_bytes()
        wrong += ["another model"] if model != undisturbed(plan.mode) else []
    if not wrong and plan.mode not in IN_STEP:
        wrong += replayed(kept, experiment)
    attempts, in_vain = done_in_vain(folder)
    return Played(
        plan=plan,
        wrong=tuple(wrong),
        seconds=seconds,
        healing=tuple(healing),
        attempts=attempts,
        in_vain=in_vain,
        terms=len(list((kept / "terms").glob("[0-9]*"))),
        void=len(read_history(folder).void),
        restarts=restarts,
    )


_LONG = Trouble(kind="cut", who="leader", from_="worker", seconds=16)
_ISOLATED = Trouble(kind="cut", who="leader", seconds=22)
PLANTED: dict[str, tuple[str, Shared, Trouble]] = {
    "lease_not_renewed": ("sync", "objects", _LONG),
    "fence_not_checked": ("sync", "folder", _ISOLATED),
    "taken_twice": ("downpour", "folder", replace(_LONG, seconds=2)),
    "barrier_too_early": ("sync", "folder", replace(_LONG, seconds=2)),
    "older_base": ("sync", "folder", replace(_LONG, seconds=2)),
    "nothing_removed": ("sync", "folder", replace(_LONG, seconds=2)),
}
"""Each defect, and a run in which it does harm."""


def play_planted(defect: str, kept: Path) -> Played:
    """Play a run with a defect: its `wrong` must not be empty."""
    mode, shared, trouble = PLANTED[defect]
    schedule = Schedule(troubles=(trouble,), skewed={})
    plan = Plan(seed=0, mode=mode, shared=shared, schedule=schedule, after=(2,))
    return play(plan, kept, ("tests.chaos.planted", defect), wait_seconds=30.0)


def replayed(shared: Path, experiment: str) -> list[str]:
    """Return what a replay finds."""
    command = [*DOWNPOUR, "replay", experiment, "--shared", str(shared)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"replay: {(done.stdout + done.stderr).strip()}"]


def summary(several: Sequence[Played]) -> str:
    """Say in a few lines how all went."""
    healing = sorted(seconds for one in several for seconds in one.healing)
    right = sum(not one.wrong for one in several)
    lines = [f"{len(several)} runs, {right} as they must be"]
    if healing:
        middle, most = statistics.median(healing), healing[-1]
        lines += [f"from healing to the next version: median {middle:.1f} s, at most {most:.1f} s"]
    attempts, vain = sum(one.attempts for one in several), sum(one.in_vain for one in several)
    lines += [f"{vain} of {attempts} attempts in vain"]
    return "\n".join(lines)


def main() -> int:
    """Play all; 1 where something was wrong, whose files are kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=12, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--times", type=int, default=2, help="things that go wrong in each")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--stores", nargs="+", choices=STORES, default=list(STORES))
    parser.add_argument("--takeovers", action="store_true", help="only what may end a leader")
    parser.add_argument("--planted", nargs="*", choices=PLANTED, help="play planted defects")
    options = parser.parse_args()
    if options.planted is not None:
        return _play_planted(options.planted or list(PLANTED))
    several = list[Played]()
    for seed in range(options.first, options.first + options.seeds):
        plan = Plan.of(
            seed, options.modes, options.stores, options.times, only_takeovers=options.takeovers
        )
        kept = Path(tempfile.mkdtemp(prefix=f"partitions-{seed}-")) / "shared"
        several.append(play(plan, kept))
        say(several[-1].line())
        if several[-1].wrong:
            say(f"    its files: {kept}")
    say(summary(several))
    return int(any(one.wrong for one in several))


def _play_planted(defects: Sequence[str]) -> int:
    """Play runs with defects; 1 where one is not found."""
    missed = 0
    for defect in defects:
        with tempfile.TemporaryDirectory() as folder:
            wrong = play_planted(defect, Path(folder, "shared")).wrong
        found = [reason for reason in wrong if not reason.startswith(_NOT_OF_IT)]
        missed += not found
        say(f"{defect}: {f'found, {found[0]} ({len(found)})' if found else f'MISSED {wrong}'}")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
