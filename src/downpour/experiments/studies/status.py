"""The progress of a study, read from its folder alone, no matter which process runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from downpour.experiments.studies.durations import about
from downpour.experiments.studies.lock import holder
from downpour.experiments.studies.plan import StudyProgress
from downpour.experiments.studies.plans import plan_of
from downpour.experiments.studies.study import Study
from downpour.experiments.studies.study_folder import StudyFolder


@dataclass(frozen=True, slots=True)
class StudyStatus:
    """A study's progress, and the process that runs the study now, in words, if any."""

    progress: StudyProgress
    running: str | None

    def to_dict(self) -> dict[str, Any]:
        """Return the status as JSON values."""
        now = {"running": self.running, "seconds_left": self.progress.seconds_left}
        return {**self.progress.fields, **now}

    def __str__(self) -> str:
        if not self.progress.left:
            return self.progress.text
        runs_it = f"{self.running} runs it" if self.running else "no process runs it now"
        return f"{self.progress.text}, {about(self.progress.seconds_left)} left, {runs_it}"


def status_of(folder: StudyFolder[Study]) -> StudyStatus:
    """Read how far a study is."""
    return StudyStatus(plan_of(folder.study, folder.ended()).progress, holder(folder.path))
