"""How honest quantiles are: the share of outcomes below each quantile, by worker and by time.

Of all tasks, 90 % should stay below their 90 % quantile. The same should hold for the tasks of each
worker, of a worker that has just joined, and of one whose pace has just changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from downpour.predictor.base import LEVELS, Array
from downpour.predictor.fitting.scoring import StageOutcomes, pinball

_OFF = 0.05
_Q90 = LEVELS.index(0.9)
# Tasks, by how many tasks their worker had done since it joined, or since its pace changed.
PERIODS = {"all": (-np.inf, np.inf), "1st": (0, 1), "2nd–5th": (1, 5), "6th–20th": (5, 20),
           "21st–60th": (20, 60)}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How honest one predictor is at one stage, for some of a worker's tasks.

    Shares are from 0 to 1. `below` is the share of tasks that stayed below each quantile. `width`
    is the mean log of the ratio of the 90 % to the 10 % quantile. `pinball` is as in `Score`. `off`
    is the share of workers whose tasks stayed below their 90 % quantile more than 5 points too
    often or too seldom.
    """

    predictor: str
    stage: str
    group: str
    tasks: str
    count: int
    below: tuple[float, ...]
    width: float
    pinball: float
    off: float


def coverages(
    predictor: str, replayed: Sequence[Mapping[str, StageOutcomes]], group: str = ""
) -> Iterator[Coverage]:
    """Yield the coverage of a predictor over replayed jobs: by stage, then by period."""
    for stage in replayed[0]:
        outcomes = [job[stage] for job in replayed]
        predicted = np.log(np.concatenate([outcome.predicted for outcome in outcomes]))
        times = np.log(np.concatenate([outcome.seconds for outcome in outcomes]))
        since = np.concatenate([outcome.since for outcome in outcomes])
        below = times[:, None] <= predicted
        for tasks, (first, end) in PERIODS.items():
            here = np.ones(len(times), bool) if tasks == "all" else (since >= first) & (since < end)
            if here.any():
                yield Coverage(
                    predictor=predictor,
                    stage=stage,
                    group=group,
                    tasks=tasks,
                    count=int(here.sum()),
                    below=tuple(below[here].mean(axis=0).tolist()),
                    width=float((predicted[here, _Q90] - predicted[here, 0]).mean()),
                    pinball=pinball(times[here], predicted[here]),
                    off=_off(outcomes, below[:, _Q90]) if tasks == "all" else float("nan"),
                )


def _off(outcomes: Sequence[StageOutcomes], below: Array) -> float:
    """Return the share of workers, each in its job, whose coverage is off."""
    parts = [np.unique(outcome.workers, return_inverse=True)[1] for outcome in outcomes]
    starts = np.cumsum([0, *(part.max() + 1 for part in parts)])
    worker = np.concatenate([part + start for part, start in zip(parts, starts, strict=False)])
    share = np.bincount(worker, below) / np.bincount(worker)
    return float(np.mean(np.abs(share - LEVELS[_Q90]) > _OFF))
