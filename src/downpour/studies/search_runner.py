"""Runs the trials of a search one after the other, and keeps each as soon as it has ended.

Whether a trial is pruned follows from its accuracies alone, epoch by epoch, not from how soon the
news of them arrive: an epoch that was trained beyond is not counted. A trial that fails because of
its values, as one that diverges, counts as one that learned nothing, and is not run again. But
where the very first fails because of its spec, a mistake in the file is likelier, and ends the
search. A trial that failed by bad luck, because workers died, say, costs only itself and is run
again the next time, as is one that somebody else has cancelled.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Protocol

from downpour.errors import ExperimentFailed
from downpour.reports import Result
from downpour.reports.tuned import Trial, Tuned, best_of
from downpour.rpc.messages import Status
from downpour.studies.grid import Cell
from downpour.studies.grid_runner import OnKept
from downpour.studies.lock import held
from downpour.studies.sampler import Sampler, Values, judged
from downpour.studies.search_backends import Train, Trainer
from downpour.studies.search_folder import Folder
from downpour.studies.summary import Summary


class Watcher(Protocol):
    """Whoever shows how far a search is."""

    def begins(self, number: int, cell: Cell) -> None:
        """A trial begins."""

    def shows(self, status: Status) -> None:
        """The trial goes on."""

    def ends(self, trial: Trial) -> None:
        """A trial has ended."""


def run_search(
    folder: Folder, trainer: Trainer, watcher: Watcher, on_kept: OnKept | None = None
) -> Tuned:
    """Run every trial that has not ended; returns all that have.

    Raises:
        SpecError: the folder or the search cannot be; nothing was changed.
        ExperimentFailed: the first trial's spec cannot be, or somebody cancelled a trial.
        DownpourError: training cannot go on; what has ended is kept.
    """
    trainer.check(folder.search)
    folder.check()
    folder.make()
    with held(folder.path):
        folder.begin()
        sampler, before = Sampler(folder.search), folder.tuned().trials
        repeated = {trial.number: trial.values for trial in before if trial.to_repeat}
        trials = [trial for trial in before if not trial.to_repeat]
        for trial in trials:
            sampler.relive(trial)
        if best := best_of(trials):
            folder.crown(best)
        if missing := folder.missing():
            with trainer.start(folder.search) as train:
                for number in missing:
                    former = repeated.get(number)
                    values = sampler.repeat(former) if former else sampler.propose(number)
                    trial = _run(number, values, folder, sampler, train, watcher)
                    trials = sorted([*trials, trial], key=lambda trial: trial.number)
                    if on_kept is not None:
                        on_kept(folder.record(number))
                    if best_of(trials) is trial:
                        folder.crown(trial)
        return folder.tuned()


def _run(
    number: int,
    values: Values,
    folder: Folder,
    sampler: Sampler,
    train: Train,
    watcher: Watcher,
) -> Trial:
    """Run a trial and keep it."""
    cell = folder.search.cell(values)
    judge = _Judge(sampler, cell.spec.epochs)
    watcher.begins(number, cell)
    began = time.monotonic()
    record = train(cell, watcher.shows, judge.hears)
    result = Result.from_lines(record.decode().splitlines())
    summary = judge.sum_up(Summary.of(result, cell.workers, time.monotonic() - began))
    if summary.state == "failed" and summary.asked_wrongly and not folder.tuned().trials:
        raise ExperimentFailed(summary.experiment, summary.reason or "", asked_wrongly=True)
    if summary.state == "cancelled" and judge.ended_at is None:
        raise ExperimentFailed(summary.experiment, summary.reason or "it was cancelled")
    trial = folder.keep(number, cell, record, summary)
    sampler.learn(trial)
    watcher.ends(trial)
    return trial


@dataclass
class _Judge:
    """Hears the accuracies of a trial in order, and decides once at which epoch it ends."""

    sampler: Sampler
    epochs: int
    heard: int = 0
    ended_at: int | None = None

    def hears(self, epoch: int, accuracy: float) -> bool:
        """Hear of an epoch, which may be heard of twice; says whether the trial has ended."""
        if self.ended_at is None and epoch > self.heard:
            self.heard = epoch
            if self.sampler.is_hopeless(epoch, accuracy) and epoch < self.epochs:
                self.ended_at = epoch
        return self.ended_at is not None

    def sum_up(self, summary: Summary) -> Summary:
        """Hear what is left, and leave out what came after the trial's end."""
        for epoch, accuracy in judged(summary.epoch_accuracy):
            self.hears(epoch, accuracy)
        if self.ended_at is None:
            return summary
        counted = summary.epoch_accuracy[: self.ended_at]
        return replace(
            summary,
            state="cancelled",
            reason=f"pruned after epoch {self.ended_at} of {self.epochs}",
            asked_wrongly=False,
            epoch_accuracy=counted,
            accuracy=counted[-1],
        )
