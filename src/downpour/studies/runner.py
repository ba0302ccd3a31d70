"""Runs a study, run by run, and keeps each as soon as it has ended.

A run that fails costs only itself. But where the very first of a study fails because of its spec, a
mistake in the file is likelier than one setting that is invalid: that ends the study before hours
of the same, and nothing is kept, so the file can be mended.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from downpour.errors import ExperimentFailed
from downpour.reports import Result
from downpour.rpc.messages import Status
from downpour.studies.backends import Backend, Train
from downpour.studies.folder import StudyFolder
from downpour.studies.lock import held
from downpour.studies.plan import StudyPlan, StudyProgress
from downpour.studies.plans import plan_of
from downpour.studies.study import EndedRun, Run, Study
from downpour.studies.summary import RunSummary

OnKept = Callable[[Path], None]
"""Takes the record of a run that has ended and was kept, in a folder of the run's name."""


class Watcher(Protocol):
    """Shows how far a study is."""

    def begins(self, run: Run, progress: StudyProgress) -> None:
        """A run begins."""

    def shows(self, status: Status) -> None:
        """The run goes on."""

    def ends(self, line: str, progress: StudyProgress) -> None:
        """A run has ended and was kept; `line` tells of it."""


def run_study(
    folder: StudyFolder[Study], backend: Backend, watcher: Watcher, on_kept: OnKept | None = None
) -> StudyProgress:
    """Run what is missing of a study; returns how far it is then.

    Raises:
        SpecError: the folder cannot be used or the study cannot be run; nothing was changed.
        ExperimentFailed: the first run's spec is invalid, or a run of a search was cancelled.
        DownpourError: training cannot go on; what has ended is kept.
    """
    backend.check(folder.study)
    folder.check()
    folder.make()
    with held(folder.path):
        folder.begin()
        ended = folder.ended()
        plan = plan_of(folder.study, ended)
        if plan.best is not None:
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
    """Run one run, and keep it."""
    began = time.monotonic()
    record = train(run, watcher.shows, plan.on_epoch)
    result = Result.from_lines(record.decode().splitlines())
    summary = plan.judge(RunSummary.of(result, run.workers, time.monotonic() - began))
    if is_first and summary.asked_wrongly:
        raise ExperimentFailed(summary.experiment, summary.reason or "", asked_wrongly=True)
    folder.keep(run, record, summary)
    ended, before = EndedRun(run, summary), plan.best
    plan.learn(ended)
    if plan.best is not None and plan.best != before:
        folder.write_best(plan.best)
    watcher.ends(plan.line(ended), plan.progress)
