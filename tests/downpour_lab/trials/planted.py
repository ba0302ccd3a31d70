"""The planted defects, each with the promise that it breaks: every promise has one at least."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from downpour.core.node.attempt import StepLoop
from downpour.core.node.worker import WorkerNode
from downpour.core.scheduler import Scheduler
from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.trials.faults import FaultKind
from downpour_lab.trials.promises import Promise
from tests.core.node import defects as worker_defects
from tests.core.node import loop_defects
from tests.downpour_lab.trials import async_defects, defects, promise_defects
from tests.downpour_lab.trials.seeds import seeds_with

Defect = type[SimulatedManager] | type[Scheduler] | type[WorkerNode[Any]] | type[StepLoop]


def with_core(core: type[Scheduler]) -> type[SimulatedManager]:
    """Return the class of a manager that decides with this core."""
    return type(core.__name__, (SimulatedManager,), {"core_class": core})


@dataclass(frozen=True, slots=True)
class Planted:
    """A defect, a part of the sentence that a run fails with, and the promise that is broken.

    It is looked for in seeds that can show it: with some kinds of `faults`, an `operation` of the
    directory that fails, and a mode or policy that is `named`. A `seed` that showed it comes first.
    """

    defect: Defect
    sentence: str
    promise: Promise | None
    faults: tuple[FaultKind, ...] = ()
    operation: str = ""
    named: str = ""
    seed: int | None = None

    def how(self) -> dict[str, Any]:
        """Return the arguments that plant it in a run."""
        if issubclass(self.defect, SimulatedManager):
            return {"manager_class": self.defect}
        if issubclass(self.defect, Scheduler):
            return {"manager_class": with_core(self.defect)}
        return {"step_loop" if issubclass(self.defect, StepLoop) else "worker_node": self.defect}

    def seeds(self, number: int) -> Iterable[int]:
        """Return seeds to look in."""
        first = () if self.seed is None else (self.seed,)
        others = seeds_with(*self.faults, operation=self.operation, named=self.named, number=number)
        return chain(first, others)

    def __str__(self) -> str:
        broken = self.promise.name if self.promise is not None else "none"
        return f"{broken}-{self.defect.__name__}"


PLANTED = (
    Planted(defects.NeverPublishes, "does not end", Promise.ENDS),
    Planted(worker_defects.StaysWithItsManager, "does not end", Promise.ENDS, seed=19),
    Planted(worker_defects.NeverRegistersAnew, "does not end", Promise.ENDS),
    Planted(defects.ActsBeforeItKeeps, "is running", Promise.FINISHES),
    Planted(defects.RunsAhead, "but something of it goes on", Promise.CONSISTENT),
    Planted(defects.ForgetsTheBusy, "which does not run it", Promise.CONSISTENT),
    Planted(async_defects.LosesPushes, "have arrived, its tasks say", Promise.CONSISTENT),
    Planted(
        async_defects.IgnoresTheBound,
        "open rounds, more than",
        Promise.CONSISTENT,
        named="ssp",
        seed=55,
    ),
    Planted(defects.ForgetsAssignments, "gives another state", Promise.REPLAYS),
    Planted(defects.ForgetsToKeep, "gives another state", Promise.REPLAYS),
    Planted(promise_defects.ForgetsToObserve, "tells of versions", Promise.RECORDS),
    Planted(
        defects.BuildsOnSand,
        "is forgotten",
        Promise.REMEMBERS,
        (FaultKind.MANAGER_MACHINE_DIES,),
        seed=9,
    ),
    Planted(defects.NeverResigns, "in the time of a later one", Promise.LEADS, seed=46),
    Planted(
        defects.ActsWithoutLeading,
        "in the time of a later one",
        Promise.LEADS,
        (FaultKind.LOCK_LOST,),
        seed=214,
    ),
    Planted(defects.CountsTheAbsentIn, "and is not registered", Promise.REGISTERED, seed=10),
    Planted(promise_defects.ForgetsNeeds, "which lacks", Promise.PLACES),
    Planted(defects.BlamesWhoComesBack, "costs a retry", Promise.BLAMELESS, seed=15),
    Planted(promise_defects.ForgetsProgress, " times of ", Promise.PROGRESS),
    Planted(promise_defects.TakesRequestsTwice, "was never submitted here", Promise.OWN, seed=13),
    Planted(defects.TakesASecondUpdate, "is one too many", Promise.ONCE),
    Planted(defects.FoldsInAnotherOrder, "folds", Promise.FOLDS),
    Planted(defects.FoldsWhatIsDropped, "folds", Promise.FOLDS),
    Planted(defects.TrainsFromAnOldModel, "is not what it should be", Promise.BYTES),
    Planted(defects.ForgetsTheOuterState, "is not what it should be", Promise.BYTES),
    Planted(
        async_defects.ForgetsTheBase,
        "is not what it should be",
        Promise.BYTES,
        named="downpour",
        seed=73,
    ),
    Planted(async_defects.ForgetsWithACheckpoint, "gives another state", Promise.REPLAYS, seed=62),
    Planted(async_defects.DecidesSharesAnew, "% of shard", Promise.BYTES, named="dylu", seed=53),
    Planted(
        async_defects.BeginsFromTheCentre,
        "is not what it should be",
        Promise.BYTES,
        named="easgd",
        seed=42,
    ),
    Planted(async_defects.CountsStaleAsFresh, "is not what it should be", Promise.BYTES),
    Planted(async_defects.HasNoGrace, "before its grace window is over", Promise.APART),
    Planted(async_defects.EndsRoundsEarly, "ends with 1 of", Promise.ONCE, named="k-sync", seed=35),
    Planted(
        defects.BlamesWorkers,
        "is whole, and refused",
        Promise.REFUSES,
        (FaultKind.DISK_REFUSES,),
        "read",
        seed=1992,
    ),
    Planted(worker_defects.NeverFree, "was not asked for last", Promise.TRAINS),
    Planted(loop_defects.FinishesEarly, "ends before its last step", Promise.TRAINS, seed=16),
    Planted(worker_defects.DropsReports, "held, and not mentioned", Promise.MENTIONS),
    Planted(worker_defects.MentionsWhatItBegan, "held, and not mentioned", Promise.MENTIONS),
    Planted(worker_defects.MentionsNothing, "held, and not mentioned", Promise.MENTIONS),
    Planted(worker_defects.NeverStops, "though it is to stop", Promise.STOPS),
    Planted(worker_defects.GoesOnUnwanted, "though it is to stop", Promise.STOPS, seed=21),
    Planted(worker_defects.BeginsAnew, "is stopped without being asked to", Promise.STOPS, seed=21),
    Planted(loop_defects.NeverStops, "is trained on, though it is to stop", Promise.STOPS),
    Planted(loop_defects.NeverHandsOver, "though it is to be saved", Promise.SAVES, seed=45),
    Planted(
        loop_defects.StopsWhatItShouldSave, "and its steps are not saved", Promise.SAVES, seed=45
    ),
    Planted(loop_defects.SavesWhatIsCancelled, "is saved, though it is to stop", Promise.SAVES),
    Planted(
        loop_defects.SavesBeforeItWasHeard,
        "saves a snapshot before its manager",
        Promise.SAVES,
        seed=49,
    ),
    Planted(
        defects.KeepsTheLastForTheBest, "another model than its best", Promise.RESULTS, seed=12
    ),
    Planted(defects.LeavesFiles, "are left over", Promise.TIDY, seed=39),
)
"""Found within seconds."""

RARE = (
    Planted(
        defects.BelievesItIsKept,
        ", and is forgotten",
        Promise.REMEMBERS,
        (FaultKind.DISK_REFUSES, FaultKind.MANAGER_DIES),
        seed=917,
    ),
    Planted(
        defects.EndsWithOneJournal,
        "does not end",
        Promise.ENDS,
        (FaultKind.DAMAGED_MEANWHILE,),
        seed=348,
    ),
    Planted(
        defects.FailsWithTheDirectory,
        "the directory refuses",
        Promise.FINISHES,
        (FaultKind.DISK_REFUSES,),
        seed=2617,
    ),
    Planted(defects.RefusesByPlace, "KeyError", None, (FaultKind.UPDATE_DAMAGED,), seed=338),
    Planted(defects.TakesCopies, "KeyError", None, (FaultKind.DAMAGED_MEANWHILE,), seed=39),
    Planted(
        defects.DecidesWhileItReads,
        "no step 'drop' from 'dropped'",
        None,
        (FaultKind.MANAGER_DIES, FaultKind.UPDATE_DAMAGED),
        seed=677,
    ),
)
"""Found within minutes. Where no promise is named, the manager fails before one is broken."""
