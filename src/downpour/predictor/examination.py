"""The table of all predictors: each is scored on jobs that it was not fitted on.

What comes from a file is scored as it is. What is fitted (trees always, the rest where it is
trained anew) is fitted once a fold, on the jobs of all other folds; jobs that share machines are in
one fold. A fold may be all jobs of a kind, to see what a predictor is worth where it has seen
nothing like it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from downpour.errors import SpecError
from downpour.predictor import Predictor, make
from downpour.predictor.files import Trained
from downpour.predictor.recipe import Course, Step, prepare, train
from downpour.predictor.scoring import Outcome, Score, folds, judge, live
from downpour.predictor.traces import Traces
from downpour.predictor.trees import fit_trees

if TYPE_CHECKING:
    from downpour.predictor.training import Settings

TREES = "trees"
_ENSEMBLES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What is to be scored: which predictors, in how many folds; `settings` to train anew.

    `by` is a label of jobs, for a score of each group that it makes; `held_out` is one whose groups
    are the folds.
    """

    names: Sequence[str]
    trained: Trained
    folds: int
    settings: Settings | None = None
    by: str = ""
    held_out: str = ""

    @property
    def fits(self) -> bool:
        """Whether anything is fitted."""
        return self.settings is not None or TREES in self.names

    def parts(self, traces: Traces) -> list[list[int]]:
        """Return the folds: what is scored in one is fitted on the others.

        Raises:
            SpecError: they would not be two, or machines would be in both.
        """
        if not self.fits:
            return [[job.number for job in traces.jobs]]
        if self.held_out:
            parts = list(traces.groups(self.held_out).values())
            seen = [{traces.families[number] for number in part} for part in parts]
            if sum(map(len, seen)) > len(set().union(*seen)):
                raise SpecError("hold-out", self.held_out, "must not part jobs on equal machines")
        else:
            parts = folds(traces, self.folds)
        if len(parts) < 2:
            raise SpecError("folds", len(parts), "must be 2 or more, of jobs on other machines")
        return parts

    def steps(self, traces: Traces) -> int:
        """Return how often `examine` calls its `step`."""
        steps = len(self.names) * len(traces.jobs)
        parts = len(self.parts(traces)) if self.fits else 0
        steps += 2 * len(traces.jobs) if self.fits else 0
        steps += parts * _ENSEMBLES if TREES in self.names else 0
        return steps + (parts * self.settings.nets * self.settings.epochs if self.settings else 0)


def examine(traces: Traces, examination: Examination, step: Step = lambda _: None) -> list[Score]:
    """Return the scores, group by group, predictor by predictor and stage by stage.

    Raises:
        SpecError: there are not enough jobs on different machines to fit on some and score on
            others, or a predictor or a label is unknown.
    """
    by = examination.by
    groups = traces.groups(by) if by else {"": [job.number for job in traces.jobs]}
    parts = examination.parts(traces)
    course = prepare(traces, step=step) if examination.fits else None
    lived: dict[str, dict[int, dict[str, Outcome]]] = {name: {} for name in examination.names}
    for part in parts:
        rest = [job.number for job in traces.jobs if job.number not in part]
        trained = _fitted(examination, course, rest, step)
        for name, outcomes in lived.items():
            for job in (job for job in traces.jobs if job.number in part):
                outcomes[job.number] = live(_maker(name, trained), traces, job)
                step(f"scoring {name}")
    return [
        score
        for group, numbers in groups.items()
        for name, outcomes in lived.items()
        for score in judge(name, [outcomes[number] for number in numbers], group)
    ]


def _maker(name: str, trained: Trained) -> Callable[[], Predictor]:
    return lambda: make(name, trained)


def _fitted(
    examination: Examination, course: Course | None, jobs: Sequence[int], step: Step
) -> Trained:
    trained = examination.trained
    if course is None:
        return trained
    if examination.settings is not None:
        trained = train(course, jobs, examination.settings, step)
    if TREES in examination.names:
        trees = fit_trees(course.plain.of(jobs), step=lambda: step("fitting trees"))
        trained = replace(trained, trees=trees)
    return trained
