"""The two kinds of studies and their plans; the only module that tells the kinds apart."""

from __future__ import annotations

from collections.abc import Iterable

from downpour.studies.grid import Grid
from downpour.studies.grid_plan import GridPlan
from downpour.studies.plan import StudyPlan
from downpour.studies.search import Search
from downpour.studies.search_plan import SearchPlan
from downpour.studies.study import EndedRun, Study


def plan_of(study: Study, ended: Iterable[EndedRun]) -> StudyPlan:
    """Make the plan of a study of which these runs have ended.

    Raises:
        TypeError: it is neither a grid nor a search.
    """
    match study:
        case Grid():
            return GridPlan(study, ended)
        case Search():
            return SearchPlan(study, ended)
    raise TypeError(study)
