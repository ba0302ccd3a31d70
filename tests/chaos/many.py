"""Many schedules of kills, cuts and damage, one after the other: `python -m tests.chaos.many`.

Each is what the tests of this folder do for a few seeds: real processes, at whose end the model
must be the same, byte for byte, as where nothing happened. A line is printed for each, and in the
end how often what happened, and how long it took until work went on. With `--only kill_manager`
managers alone die, which costs no retry, however many `--workers` there are. With `--company`
others use the directory as well, and files change while no manager is there (`company.py`). Other
options are fields of the experiment, such as `--shards 51 --overlap 1`.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic
from typing import Any

from tests.chaos.company import Company, expected_in
from tests.chaos.forked import model_of_run
from tests.chaos.stage import FLAGS, Happening, Process, Stage, played
from tests.chaos.watching import Seen, Watcher, until_next_assignment, until_reassignment

say = partial(print, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one schedule went; `wrong` is empty where the model is the same."""

    seed: int
    wrong: str
    seconds: float
    happened: tuple[Happening, ...]
    story: tuple[Seen, ...]

    @property
    def manager_seconds(self) -> list[float]:
        """For each death of a manager whose successor lived: the seconds to the next assignment."""
        deaths = [one.at_seconds for one in self.happened if one.who == "manager"]
        costs = [(until_next_assignment(self.story, at), at) for at in deaths]
        following = [*deaths, inf][1:]
        return [
            cost
            for (cost, at), another in zip(costs, following, strict=True)
            if cost is not None and at + cost < another
        ]

    @property
    def worker_seconds(self) -> list[float]:
        """For each death of a worker that trained, how long until that was given out again."""
        deaths = [one for one in self.happened if one.what == "kill_worker"]
        costs = (until_reassignment(self.story, one.who, one.at_seconds) for one in deaths)
        return [found for found in costs if found is not None]

    def line(self) -> str:
        what = ", ".join(f"{one.what} ({one.who})" for one in self.happened)
        return f"seed {self.seed}: {self.wrong or 'same bytes'}, {self.seconds:.1f} s: {what}"


Made = Callable[[Path, int], Stage]


def play(made: Made, seed: int, shared: Path, times: int, expected: Any) -> Outcome:
    """Run one schedule."""
    began, stage = monotonic(), made(shared, seed)
    try:
        with Watcher(shared) as watcher:
            wrong = played(stage, times, expected)
    except Exception as error:  # noqa: BLE001 - the next schedule is another matter
        wrong = f"{type(error).__name__}: {error}"
    finally:
        stage.close()
    return Outcome(
        seed=seed,
        wrong=wrong,
        seconds=monotonic() - began,
        happened=tuple(stage.story),
        story=tuple(watcher.story),
    )


def summary(outcomes: Sequence[Outcome]) -> str:
    """Say how often what happened, and what it cost."""
    same = sum(not one.wrong for one in outcomes)
    often = Counter(thing.what.split()[0].strip(":") for one in outcomes for thing in one.happened)
    lines = [f"{len(outcomes)} schedules, {same} with the same bytes"]
    lines += [f"{times:5} × {what}" for what, times in often.most_common()]
    managers = [seconds for one in outcomes for seconds in one.manager_seconds]
    workers = [seconds for one in outcomes for seconds in one.worker_seconds]
    lines.append(f"from a manager's death to the next assignment: {spread(managers)}")
    lines.append(f"from a worker's death to its task's next attempt: {spread(workers)}")
    return "\n".join(lines)


def spread(seconds: Sequence[float]) -> str:
    """Say the median, the ninth decile and the largest."""
    if len(seconds) < 2:
        return f"{len(seconds)} times"
    ninth = statistics.quantiles(seconds, n=10, method="inclusive")[8]
    middle, most = statistics.median(seconds), max(seconds)
    return f"{middle:.2f} s, 90 % within {ninth:.2f} s, at most {most:.2f} s, {len(seconds)} times"


def main() -> int:
    """Run all; 1 where one went wrong, whose shared directory is kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many schedules")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--times", type=int, default=5, help="things that happen in each, at most")
    parser.add_argument("--company", action="store_true", help="in a directory others use as well")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=sorted({*Stage.happens}), help="what happens")
    options, fields = parser.parse_known_args()
    Process.imports = True
    with tempfile.TemporaryDirectory() as folder:
        if not options.company:
            flags = [*FLAGS, *fields]
            Stage.happens = options.only or Stage.happens
            made = partial(Stage, workers=options.workers, flags=flags)
            expected = model_of_run(Path(folder), *flags, "--workers", "2")
            return _play_all(options, made, expected)
        others = expected_in(Path(folder))
        return _play_all(options, partial(Company, foreign=others.foreign), others)


def _play_all(options: argparse.Namespace, made: Made, expected: Any) -> int:
    outcomes: list[Outcome] = []
    for seed in range(options.first, options.first + options.seeds):
        shared = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-"))
        outcomes.append(play(made, seed, shared, options.times, expected))
        say(outcomes[-1].line())
        if outcomes[-1].wrong:
            say(f"  its shared directory: {shared}")
        else:
            shutil.rmtree(shared)
    say(summary(outcomes))
    return int(any(one.wrong for one in outcomes))


if __name__ == "__main__":
    sys.exit(main())
