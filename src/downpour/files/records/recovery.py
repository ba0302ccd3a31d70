"""Replays the journals of earlier managers; pure, the same for all drivers.

We replay each journal into a separate core. If we cannot replay a journal, we leave out its
experiment, with a reason, and no other is affected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from downpour.base.errors import FileCorrupt
from downpour.base.states import ExperimentState
from downpour.core.node.journal import Line
from downpour.core.scheduler import Scheduler, SchedulerOptions
from downpour.core.scheduler import events as on
from downpour.core.scheduler.experiment import Experiment


@dataclass(frozen=True, slots=True)
class ReplayedJournals:
    """The experiments that can continue, in the order of submission, and why others cannot."""

    experiments: dict[str, Experiment]
    left_out: dict[str, str]


def replay_each(
    journals: Mapping[str, Sequence[Line]], options: SchedulerOptions
) -> ReplayedJournals:
    """Replay each journal into a separate core.

    One experiment runs at a time. If several have begun and not ended, the one with the latest
    entry continues. An earlier manager had left out the others; a manager that starts after that
    one has ended continues them.
    """
    replayed: dict[str, Experiment] = {}
    left_out: dict[str, str] = {}
    for name in sorted(journals, key=lambda name: _place(journals[name])):
        try:
            replayed[name] = replay_one(journals[name], options)
        except FileCorrupt as error:
            left_out[name] = str(error)
    begun = [name for name, one in replayed.items() if one.life.state is ExperimentState.RUNNING]
    begun.sort(key=lambda name: journals[name][-1].order)
    for name in begun[:-1]:
        del replayed[name]
        left_out[name] = f"{begun[-1]} has begun since: restart the manager after its end"
    return ReplayedJournals(replayed, left_out)


def replay_one(journal: Sequence[Line], options: SchedulerOptions) -> Experiment:
    """Return the experiment that results from a journal.

    Raises:
        FileCorrupt: it does not begin with a submission, or its entries contradict each other.
    """
    if not journal or not isinstance(journal[0].entry, on.ExperimentSubmitted):
        raise FileCorrupt("journal", "does not begin with a submission")
    core = Scheduler(options)
    try:
        for line in journal:
            core.replay(line.at_seconds, line.entry)
        [experiment] = core.state.experiments.values()
    # We catch every kind, because a damaged journal may make the core do anything. That core serves
    # only this experiment, and we drop it.
    except Exception as error:
        reason = f"cannot be replayed ({type(error).__name__}: {error})"
        raise FileCorrupt("journal", reason) from error
    return experiment


def replay(core: Scheduler, journals: Mapping[str, Sequence[Line]]) -> dict[str, str]:
    """Continue experiments in an empty core; return those left out, each with the reason."""
    known = replay_each(journals, core.state.options)
    take_in(core, known, journals)
    return known.left_out


def take_in(
    core: Scheduler, known: ReplayedJournals, journals: Mapping[str, Sequence[Line]]
) -> None:
    """Put the experiments into an empty core; its time continues from the latest entry."""
    at_seconds = max((journals[name][-1].at_seconds for name in known.experiments), default=0.0)
    core.take_in(known.experiments.values(), at_seconds)


def belongs_elsewhere(journal: Sequence[Line], folder: str, cluster: str) -> str | None:
    """Return why a journal does not belong to this folder and cluster; None if it does.

    A folder copied from a backup or from another cluster brings its journal along. Without this
    check, we would train its experiment a second time.
    """
    first = journal[0]
    # Earlier versions named no cluster.
    if first.cluster not in {"", cluster}:
        return f"another cluster's ({first.cluster}; this one is {cluster})"
    if isinstance(first.entry, on.ExperimentSubmitted) and first.entry.experiment != folder:
        return f"a copy of {first.entry.experiment}"
    return None


def next_order(journals: Mapping[str, Sequence[Line]]) -> int:
    """Return the number of the next entry, counted over all experiments."""
    return max((line.order for journal in journals.values() for line in journal), default=0) + 1


def _place(journal: Sequence[Line]) -> int:
    return journal[0].order if journal else 0
