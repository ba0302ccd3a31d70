"""Runs a study, run by run, with or without a terminal.

The process reads the folder's own copy of the study's file, so later edits of the user's file have
no effect on it.

If a run fails, the study continues. Only if the first run fails because of its spec, the study
ends. A mistake in the file is then more likely than one invalid setting, and all later runs would
fail as well. The study keeps nothing of that run, so that the user can correct the file.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from rich.console import Console

from downpour.base.errors import ExperimentFailed, LaunchError
from downpour.experiments.studies.backends import Backend, Train
from downpour.experiments.studies.folder import BEST_NAME, LOG_NAME, StudyFolder, held, holder
from downpour.experiments.studies.study import (
    EndedRun,
    Run,
    RunSummary,
    Study,
    StudyPlan,
    StudyProgress,
    about,
)
from downpour.host.child import Child
from downpour.network.rpc.messages import Status
from downpour.record import Result
from downpour.show.tables.live import ProgressDisplay


class StudyDisplay:
    """A context manager that shows a study's progress; it draws bars only on a terminal."""

    def __init__(self, console: Console, say: Callable[[str], None]) -> None:
        self._display = ProgressDisplay(console)
        self._say = say
        self._bar = self._display.bars.add_task("runs", total=None, count="", left="")
        self._seconds_left: float | None = None
        self._since = 0.0

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.__exit__()

    def begins(self, run: Run, progress: StudyProgress) -> None:
        """Show a run's own bars from the start."""
        self._display.again(run.title)
        self._draw(progress)

    def shows(self, status: Status) -> None:
        """Draw the current state of the run."""
        self._display.show(status)
        self._count_down()

    def ends(self, line: str, progress: StudyProgress) -> None:
        """Print the line of a run that has ended."""
        self._say(line)
        self._draw(progress)

    def _draw(self, progress: StudyProgress) -> None:
        self._seconds_left, self._since = progress.seconds_left, time.monotonic()
        self._display.bars.update(
            self._bar,
            description=progress.headline,
            completed=progress.total - progress.left,
            total=progress.total,
            count=progress.count,
        )
        self._count_down()

    def _count_down(self) -> None:
        # The estimate changes only when a run ends; between runs it decreases with the clock.
        left = self._seconds_left
        if left is not None:
            left = max(0.0, left - (time.monotonic() - self._since))
        self._display.bars.update(self._bar, left=about(left))


# A busy machine takes seconds to import what a study needs. After this long we assume that the
# process runs; `--status` says whether it does.
_START_SECONDS = 60.0
_LOOK_SECONDS = 0.05


def detach(command: str, folder: StudyFolder[Study], options: Sequence[str]) -> int:
    """Start a process that runs a study; return its ID once it holds the folder's lock.

    `command` is the subcommand of `downpour`, which takes a file and `--out`.
    """
    folder.check()
    folder.make()
    with held(folder.path):  # released again, because the new process takes the lock itself
        folder.begin()
    log = folder.path / LOG_NAME
    words = [str(folder.study_file), "--out", str(folder.path), *options]
    study = Child("downpour.cli", [command, *words], log=log)
    study.tell(b"", is_last=True)
    deadline = time.monotonic() + _START_SECONDS
    while holder(folder.path) is None and time.monotonic() < deadline:
        if (status := study.process.poll()) is not None:
            if status == 0:  # all runs had finished before
                break
            last = study.last_words or f"ended at once; see {log}"
            raise LaunchError(last, asked_wrongly=status == 2)
        time.sleep(_LOOK_SECONDS)
    return study.process.pid


OnKept = Callable[[Path], None]
"""Called once a run is saved, with the path of its record, in a folder of the run's name."""


def run_study(
    folder: StudyFolder[Study],
    backend: Backend,
    display: StudyDisplay,
    on_kept: OnKept | None = None,
) -> StudyProgress:
    """Run the missing runs of a study; return its progress at the end."""
    backend.check(folder.study)
    folder.check()
    folder.make()
    with held(folder.path):
        folder.begin()
        ended = folder.ended()
        plan = folder.study.plan(ended)
        _write_best(plan, folder)  # a killed process may have saved a run, but not this
        if plan.progress.left:
            with backend.start(folder.study) as train:
                is_first = not ended
                while run := plan.next():
                    display.begins(run, plan.progress)
                    _run(run, plan, folder, train, display, is_first=is_first)
                    if on_kept is not None:
                        on_kept(folder.record(run.name))
                    is_first = False
        return plan.progress


def _run(
    run: Run,
    plan: StudyPlan,
    folder: StudyFolder[Study],
    train: Train,
    display: StudyDisplay,
    *,
    is_first: bool,
) -> None:
    """Train one run, and save its files."""
    began = time.monotonic()
    record = train(run, display.shows, plan.on_epoch)
    result = Result.from_lines(record.decode().splitlines())
    summary = plan.judge(RunSummary.of(result, run.workers, time.monotonic() - began))
    if is_first and summary.asked_wrongly:
        raise ExperimentFailed(summary.experiment, summary.reason or "", asked_wrongly=True)
    # We save it before the plan learns, because a plan knows only what the folder holds.
    folder.keep(run, record, summary)
    ended, best_before = EndedRun(run, summary), plan.best
    plan.learn(ended)
    if plan.best != best_before:
        _write_best(plan, folder)
    display.ends(plan.line(ended), plan.progress)


def _write_best(plan: StudyPlan, folder: StudyFolder[Study]) -> None:
    if plan.best is not None:
        folder.write(BEST_NAME, plan.best.spec.to_toml().encode())
