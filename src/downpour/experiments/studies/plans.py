"""The plan of each kind of study; the only module that distinguishes the kinds."""

from __future__ import annotations

from collections.abc import Iterable

from downpour.experiments.studies.grid import Grid
from downpour.experiments.studies.grid_plan import GridPlan
from downpour.experiments.studies.plan import StudyPlan
from downpour.experiments.studies.search import Search
from downpour.experiments.studies.search_plan import SearchPlan
from downpour.experiments.studies.study import EndedRun, Study


def plan_of(study: Study, ended: Iterable[EndedRun]) -> StudyPlan:
    """Make the plan of a study; `ended` are the runs that ended before.

    Raises:
        TypeError: the study is neither a grid nor a search.
    """
    match study:
        case Grid():
            return GridPlan(study, ended)
        case Search():
            return SearchPlan(study, ended)
    raise TypeError(study)
