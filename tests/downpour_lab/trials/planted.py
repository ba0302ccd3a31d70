"""The planted defects, each with the promise that it breaks: every promise has one at least."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from downpour.core.node.attempt import StepLoop
from downpour.core.node.worker import WorkerNode
from downpour_lab.checks.promises import Promise
from downpour_lab.faults.faults import FaultKind
from downpour_lab.simulated.manager import SimulatedManager
from tests.core.node import defects as worker_defects
from tests.core.node import loop_defects
from tests.downpour_lab.trials import async_defects, defects, promise_defects

Defect = type[SimulatedManager] | type[WorkerNode[Any]] | type[StepLoop]


@dataclass(frozen=True, slots=True)
class Planted:
    """A defect, a part of the sentence that a run fails with, and the promise that is broken.

    It is looked for in seeds that can show it: with some kinds of `faults`, an `operation` of the
    directory that fails, and a mode or policy that is `named`.
    """

    defect: Defect
    sentence: str
    promise: Promise | None
    faults: tuple[FaultKind, ...] = ()
    operation: str = ""
    named: str = ""

    def how(self) -> dict[str, Any]:
        """Return the arguments that plant it in a run."""
        if issubclass(self.defect, SimulatedManager):
            return {"manager_class": self.defect}
        return {"step_loop" if issubclass(self.defect, StepLoop) else "worker_node": self.defect}

    def __str__(self) -> str:
        broken = self.promise.name if self.promise is not None else "none"
        return f"{broken}-{self.defect.__name__}"


PLANTED = (
    Planted(defects.NeverPublishes, "does not end", Promise.ENDS),
    Planted(worker_defects.StaysWithItsManager, "does not end", Promise.ENDS),
    Planted(worker_defects.NeverRegistersAnew, "does not end", Promise.ENDS),
    Planted(defects.ActsBeforeItKeeps, "is running", Promise.FINISHES),
    Planted(defects.RunsAhead, "but something of it goes on", Promise.CONSISTENT),
    Planted(defects.ForgetsTheBusy, "which does not run it", Promise.CONSISTENT),
    Planted(async_defects.LosesPushes, "have arrived, its tasks say", Promise.CONSISTENT),
    Planted(
        async_defects.IgnoresTheBound, "open rounds, more than", Promise.CONSISTENT, named="ssp"
    ),
    Planted(defects.ForgetsAssignments, "gives another state", Promise.REPLAYS),
    Planted(defects.ForgetsToKeep, "gives another state", Promise.REPLAYS),
    Planted(promise_defects.ForgetsToObserve, "tells of versions", Promise.RECORDS),
    Planted(
        defects.BuildsOnSand,
        "is forgotten",
        Promise.REMEMBERS,
        (FaultKind.MANAGER_MACHINE_DIES,),
    ),
    Planted(defects.NeverResigns, "in the time of a later one", Promise.LEADS),
    Planted(
        defects.ActsWithoutLeading,
        "in the time of a later one",
        Promise.LEADS,
        (FaultKind.LOCK_LOST,),
    ),
    Planted(defects.CountsTheAbsentIn, "and is not registered", Promise.REGISTERED),
    Planted(promise_defects.ForgetsNeeds, "which lacks", Promise.PLACES),
    Planted(defects.BlamesWhoComesBack, "costs a retry", Promise.BLAMELESS),
    Planted(promise_defects.ForgetsProgress, " times of ", Promise.PROGRESS),
    Planted(promise_defects.TakesRequestsTwice, "was never submitted here", Promise.OWN),
    Planted(defects.TakesASecondUpdate, "is one too many", Promise.ONCE),
    Planted(defects.FoldsInAnotherOrder, "folds", Promise.FOLDS),
    Planted(defects.FoldsWhatIsDropped, "folds", Promise.FOLDS),
    Planted(defects.TrainsFromAnOldModel, "is not what it should be", Promise.BYTES),
    Planted(defects.ForgetsTheOuterState, "is another one", Promise.BYTES),
    Planted(
        async_defects.ForgetsTheBase, "is not what it should be", Promise.BYTES, named="downpour"
    ),
    Planted(async_defects.DecidesSharesAnew, "% of shard", Promise.BYTES, named="dylu"),
    Planted(
        async_defects.BeginsFromTheCentre, "is not what it should be", Promise.BYTES, named="easgd"
    ),
    Planted(async_defects.CountsStaleAsFresh, "is not what it should be", Promise.BYTES),
    Planted(async_defects.HasNoGrace, "before its grace window is over", Promise.APART),
    Planted(async_defects.EndsRoundsEarly, "ends with 1 of", Promise.ONCE, named="k-sync"),
    Planted(
        defects.BlamesWorkers,
        "is whole, and refused",
        Promise.REFUSES,
        (FaultKind.DISK_REFUSES,),
        "read",
    ),
    Planted(worker_defects.NeverFree, "was not asked for last", Promise.TRAINS),
    Planted(loop_defects.FinishesEarly, "ends before its last step", Promise.TRAINS),
    Planted(worker_defects.DropsReports, "held, and not mentioned", Promise.MENTIONS),
    Planted(worker_defects.MentionsWhatItBegan, "held, and not mentioned", Promise.MENTIONS),
    Planted(worker_defects.MentionsNothing, "held, and not mentioned", Promise.MENTIONS),
    Planted(worker_defects.NeverStops, "though it is to stop", Promise.STOPS),
    Planted(worker_defects.GoesOnUnwanted, "though it is to stop", Promise.STOPS),
    Planted(worker_defects.BeginsAnew, "is stopped without being asked to", Promise.STOPS),
    Planted(loop_defects.NeverStops, "is trained on, though it is to stop", Promise.STOPS),
    Planted(loop_defects.NeverHandsOver, "though it is to be saved", Promise.SAVES),
    Planted(loop_defects.StopsWhatItShouldSave, "and its steps are not saved", Promise.SAVES),
    Planted(loop_defects.SavesWhatIsCancelled, "is saved, though it is to stop", Promise.SAVES),
    Planted(
        loop_defects.SavesBeforeItWasHeard, "saves a snapshot before its manager", Promise.SAVES
    ),
    Planted(defects.KeepsTheLastForTheBest, "another model than its best", Promise.RESULTS),
    Planted(defects.LeavesFiles, "are left over", Promise.TIDY),
)
"""Found within seconds."""

RARE = (
    Planted(
        defects.BelievesItIsKept,
        ", and is forgotten",
        Promise.REMEMBERS,
        (FaultKind.DISK_REFUSES, FaultKind.MANAGER_DIES),
    ),
    Planted(
        defects.EndsWithOneJournal, "does not end", Promise.ENDS, (FaultKind.DAMAGED_MEANWHILE,)
    ),
    Planted(
        defects.FailsWithTheDirectory,
        "the directory refuses",
        Promise.FINISHES,
        (FaultKind.DISK_REFUSES,),
    ),
    Planted(defects.RefusesByPlace, "KeyError", None, (FaultKind.UPDATE_DAMAGED,)),
    Planted(defects.TakesCopies, "KeyError", None, (FaultKind.DAMAGED_MEANWHILE,)),
    Planted(
        defects.DecidesWhileItReads,
        "no step 'drop' from 'dropped'",
        None,
        (FaultKind.MANAGER_DIES, FaultKind.UPDATE_DAMAGED),
    ),
)
"""Found within minutes. Where no promise is named, the manager fails before one is broken."""
