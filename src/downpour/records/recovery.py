"""What an earlier manager's journals come to; pure, the same for all drivers.

Each experiment's story is told by itself, to a core that hears nothing else: so one that cannot be
told leaves out that experiment, with a reason, and has touched no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from downpour.errors import FileCorrupt
from downpour.node.journal import Line
from downpour.scheduler import Scheduler, SchedulerOptions
from downpour.scheduler import events as on
from downpour.scheduler.experiment import Experiment
from downpour.values import ExperimentState


@dataclass(frozen=True, slots=True)
class Told:
    """The experiments that can be taken up, in the order of submission, and why others cannot."""

    experiments: dict[str, Experiment]
    left_out: dict[str, str]


def told(stories: Mapping[str, Sequence[Line]], options: SchedulerOptions) -> Told:
    """Tell each story by itself.

    Of several experiments that have begun and not ended, the one goes on that went on last: the
    others had been left out until now, and wait until a manager starts when it has ended.
    """
    found: dict[str, Experiment] = {}
    left_out: dict[str, str] = {}
    for name in sorted(stories, key=lambda name: _place(stories[name])):
        try:
            found[name] = tell(stories[name], options)
        except FileCorrupt as error:
            left_out[name] = str(error)
    begun = [name for name, one in found.items() if one.life.state is ExperimentState.RUNNING]
    begun.sort(key=lambda name: stories[name][-1].order)
    for name in begun[:-1]:
        del found[name]
        left_out[name] = f"{begun[-1]} has begun since: start the manager anew when that has ended"
    return Told(found, left_out)


def tell(story: Sequence[Line], options: SchedulerOptions) -> Experiment:
    """Return the experiment that a journal comes to.

    Raises:
        FileCorrupt: it begins with no submission, or tells what cannot be.
    """
    if not story or not isinstance(story[0].entry, on.ExperimentSubmitted):
        raise FileCorrupt("journal", "does not begin with a submission")
    core = Scheduler(options)
    try:
        for line in story:
            core.replay(line.at_seconds, line.entry)
        [experiment] = core.state.experiments.values()
    except Exception as error:
        reason = f"tells what cannot be ({type(error).__name__}: {error})"
        raise FileCorrupt("journal", reason) from error
    return experiment


def replay(core: Scheduler, stories: Mapping[str, Sequence[Line]]) -> dict[str, str]:
    """Take up what the journals come to; returns the experiments that cannot be, and why."""
    known = told(stories, core.state.options)
    take_in(core, known, stories)
    return known.left_out


def take_in(core: Scheduler, known: Told, stories: Mapping[str, Sequence[Line]]) -> None:
    """Let an empty core have the experiments; its time goes on where the latest of them stood."""
    at_seconds = max((stories[name][-1].at_seconds for name in known.experiments), default=0.0)
    core.take_in(known.experiments.values(), at_seconds)


def belongs_elsewhere(story: Sequence[Line], folder: str, cluster: str) -> str | None:
    """Say why a story is not that of the folder it lies in, under this cluster; None where it is.

    A folder that was copied, out of a backup or from another cluster, brings its journal along.
    """
    first = story[0]
    if first.cluster not in {"", cluster}:
        return f"another cluster's ({first.cluster}; this one is {cluster})"
    if isinstance(first.entry, on.ExperimentSubmitted) and first.entry.experiment != folder:
        return f"a copy of {first.entry.experiment}"
    return None


def next_order(stories: Mapping[str, Sequence[Line]]) -> int:
    """Return the place of the next entry among those of all experiments."""
    return max((line.order for story in stories.values() for line in story), default=0) + 1


def _place(story: Sequence[Line]) -> int:
    return story[0].order if story else 0
