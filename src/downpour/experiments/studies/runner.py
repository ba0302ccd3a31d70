"""Runs a study, run by run, and saves each run's files as soon as it ends.

If a run fails, the study continues. Only if the first run fails because of its spec, the study
ends. A mistake in the file is then more likely than one invalid setting, and all later runs would
fail as well. The study keeps nothing of that run, so that the user can correct the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from downpour.base.errors import ExperimentFailed
from downpour.experiments.reading import Result
from downpour.experiments.studies.backends import Backend, Train
from downpour.experiments.studies.lock import held
from downpour.experiments.studies.plan import StudyPlan, StudyProgress
from downpour.experiments.studies.plans import plan_of
from downpour.experiments.studies.study import EndedRun, Run, Study
from downpour.experiments.studies.study_folder import StudyFolder
from downpour.experiments.studies.summary import RunSummary
from downpour.network.rpc.messages import Status

OnKept = Callable[[Path], None]
"""Called once a run is saved, with the path of its record, in a folder of the run's name."""


class Watcher(Protocol):
    """Shows how far a study is."""

    def begins(self, run: Run, progress: StudyProgress) -> None:
        """Called when a run begins."""

    def shows(self, status: Status) -> None:
        """Called with each new status of the run."""

    def ends(self, line: str, progress: StudyProgress) -> None:
        """Called when a run has ended and its files are saved, with a line about it."""


def run_study(
    folder: StudyFolder[Study], backend: Backend, watcher: Watcher, on_kept: OnKept | None = None
) -> StudyProgress:
    """Run the missing runs of a study; return its progress at the end.

    Raises:
        SpecError: the folder cannot be used or the study cannot run; nothing was changed.
        ExperimentFailed: the first run's spec is invalid, or someone cancelled a run of a search.
        DownpourError: training cannot continue; the ended runs are saved.
    """
    backend.check(folder.study)
    folder.check()
    folder.make()
    with held(folder.path):
        folder.begin()
        ended = folder.ended()
        plan = plan_of(folder.study, ended)
        if plan.best is not None:  # a killed process may have saved a run, but not this
            folder.write_best(plan.best)
        if plan.progress.left:
            with backend.start(folder.study) as train:
                is_first = not ended
                while run := plan.next():
                    watcher.begins(run, plan.progress)
                    _run(run, plan, folder, train, watcher, is_first=is_first)
                    if on_kept is not None:
                        on_kept(folder.record(run.name))
                    is_first = False
        return plan.progress


def _run(
    run: Run,
    plan: StudyPlan,
    folder: StudyFolder[Study],
    train: Train,
    watcher: Watcher,
    *,
    is_first: bool,
) -> None:
    """Train one run, and save its files."""
    began = time.monotonic()
    record = train(run, watcher.shows, plan.on_epoch)
    result = Result.from_lines(record.decode().splitlines())
    summary = plan.judge(RunSummary.of(result, run.workers, time.monotonic() - began))
    if is_first and summary.asked_wrongly:
        raise ExperimentFailed(summary.experiment, summary.reason or "", asked_wrongly=True)
    # We save it before the plan learns, because a plan knows only what the folder holds.
    folder.keep(run, record, summary)
    ended, before = EndedRun(run, summary), plan.best
    plan.learn(ended)
    if plan.best is not None and plan.best != before:
        folder.write_best(plan.best)
    watcher.ends(plan.line(ended), plan.progress)
