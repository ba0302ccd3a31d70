"""The table of all predictors: scores on jobs that a predictor was not fitted on.

Models from a file are scored as they are. The others (always the trees, and the rest if we retrain
them) are fitted once per fold, on the jobs of all other folds. Jobs that share machines go into one
fold. Otherwise we would score a predictor on machines that it has seen. A fold may be all jobs of
one kind, which shows how good a predictor is on kinds that it was not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from downpour.base.errors import SpecError
from downpour.predictor import MODELS, Predictor, make
from downpour.predictor.fitting.recipe import train
from downpour.predictor.fitting.scoring import Score, StageOutcomes, folds, replay_job, scores
from downpour.predictor.fitting.stress import stressed
from downpour.predictor.fitting.traces import Traces
from downpour.predictor.fitting.training_data import Step, TrainingSet, prepare
from downpour.predictor.fitting.trees import Ensembles, Trees, fit_trees
from downpour.predictor.model_file import Trained
from downpour.predictor.online import Online

if TYPE_CHECKING:
    from downpour.predictor.fitting.lstm_training import TrainingSettings

TREES = "trees"
NAMES = (*MODELS, TREES)
"""Every predictor that we can score: the ones in a model file, and trees."""

Replayed: TypeAlias = Mapping[str, StageOutcomes]
"""The outcomes of one job, by stage."""

_ENSEMBLES = 8
_Judged = TypeVar("_Judged")


@dataclass(frozen=True, slots=True)
class Fitted:
    """The result of fitting on a fold: a model file's arrays, and trees, which no file holds."""

    trained: Trained
    trees: Ensembles | None = None

    def predictor(self, name: str) -> Predictor:
        """Return a new predictor.

        Raises:
            SpecError: no predictor has this name.
        """
        if name == TREES and self.trees is not None:
            return Online(Trees(self.trees))
        return make(name, self.trained)


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossValidation:
    """Which predictors to score, and in how many folds; if `settings` is given, we retrain them.

    `by` is a label of jobs: each of its groups gets separate scores. `held_out` is a label whose
    groups are the folds. With `stress`, we score on harder traces (`stress.STRESSES`), but fit on
    the traces as they are.
    """

    names: Sequence[str]
    trained: Trained
    folds: int
    settings: TrainingSettings | None = None
    by: str = ""
    held_out: str = ""
    stress: str = ""

    @property
    def fits(self) -> bool:
        """Whether we fit any predictor."""
        return self.settings is not None or TREES in self.names

    def parts(self, traces: Traces) -> list[list[int]]:
        """Return the folds, as job numbers; a model scored on one fold is fitted on the others.

        Raises:
            SpecError: there would be fewer than two folds, or two would share machines.
        """
        if not self.fits:
            return [[job.number for job in traces.jobs]]
        if self.held_out:
            parts = list(traces.groups(self.held_out).values())
            families = [{traces.families[number] for number in part} for part in parts]
            if sum(map(len, families)) > len(set().union(*families)):  # a family is in two folds
                raise SpecError(
                    "hold-out", self.held_out, "must not separate jobs on equal machines"
                )
        else:
            parts = folds(traces, self.folds)
        if len(parts) < 2:
            raise SpecError(
                "folds", len(parts), "must be 2 or more, with jobs on different machines"
            )
        return parts

    def steps(self, traces: Traces) -> int:
        """Return how often `cross_validate` calls its `step`, for a progress bar."""
        steps = len(self.names) * len(traces.jobs)
        parts = len(self.parts(traces)) if self.fits else 0
        steps += 2 * len(traces.jobs) if self.fits else 0
        steps += parts * _ENSEMBLES if TREES in self.names else 0
        return steps + (parts * self.settings.nets * self.settings.epochs if self.settings else 0)


def cross_validate(
    traces: Traces, validation: CrossValidation, step: Step = lambda _: None
) -> list[Score]:
    """Return the scores, group by group, predictor by predictor and stage by stage.

    Raises:
        SpecError: as `judge_all` does.
    """
    return judge_all(traces, validation, scores, step)


def judge_all(
    traces: Traces,
    validation: CrossValidation,
    judge: Callable[[str, Sequence[Replayed], str], Iterable[_Judged]],
    step: Step = lambda _: None,
) -> list[_Judged]:
    """Replay all jobs in their folds, and collect what `judge` returns per predictor and group.

    Raises:
        SpecError: there are too few jobs on different machines to fit on some and score on the
            others, or a predictor, a label or a stress is unknown.
    """
    by = validation.by
    groups = traces.groups(by) if by else {"": [job.number for job in traces.jobs]}
    harder = stressed(traces, validation.stress)
    parts = validation.parts(traces)
    training_set = prepare(traces, step=step) if validation.fits else None
    outcomes: dict[str, dict[int, Replayed]] = {n: {} for n in validation.names}
    for part in parts:
        rest = [job.number for job in traces.jobs if job.number not in part]
        fitted = _fitted(validation, training_set, rest, step)
        for name, by_job in outcomes.items():
            for job in (job for job in harder.jobs if job.number in part):
                by_job[job.number] = replay_job(partial(fitted.predictor, name), harder, job)
                step(f"scoring {name}")
    return [
        judged
        for group, numbers in groups.items()
        for name, by_job in outcomes.items()
        for judged in judge(name, [by_job[number] for number in numbers], group)
    ]


def _fitted(
    validation: CrossValidation, training_set: TrainingSet | None, jobs: Sequence[int], step: Step
) -> Fitted:
    trained, trees = validation.trained, None
    if training_set is None:
        return Fitted(trained)
    if validation.settings is not None:
        trained = train(training_set, jobs, validation.settings, step)
    if TREES in validation.names:
        trees = fit_trees(training_set.plain.of(jobs), step=lambda: step("fitting trees"))
    return Fitted(trained, trees)
