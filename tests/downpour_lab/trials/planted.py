"""The planted defects, each with the promise that it breaks: every promise has one at least."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, count, islice
from typing import Any

from downpour.core.modes import OVERLAPPING
from downpour.core.node.attempt import StepLoop
from downpour.core.node.journal import JournalWriter
from downpour.core.node.worker import WorkerNode
from downpour.core.scheduler import Scheduler
from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.trials.faults import FaultKind
from downpour_lab.trials.plan import Plan, plan_of
from downpour_lab.trials.promises import Promise
from tests.core.node import defects as worker_defects
from tests.core.node import loop_defects
from tests.core.node.journal_defects import WritesOnAfterAFailure
from tests.downpour_lab.trials import defects, mode_defects

Defect = (
    type[SimulatedManager]
    | type[Scheduler]
    | type[JournalWriter]
    | type[WorkerNode[Any]]
    | type[StepLoop]
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A defect, a part of the sentence that a run fails with, and the promise that is broken.

    It is looked for in seeds whose plans have `faults` of all these kinds: to make a plan takes a
    hundredth of the time of a run. A `seed` that showed it comes first. `plan` makes the plans.
    """

    defect: Defect
    sentence: str
    promise: Promise | None
    faults: tuple[FaultKind, ...] = ()
    seed: int | None = None
    plan: Callable[[int], Plan] = plan_of

    def how(self) -> dict[str, Any]:
        """Return the arguments that plant it in a run."""
        if issubclass(self.defect, SimulatedManager):
            return {"manager_class": self.defect}
        for kind, name in ((Scheduler, "core_class"), (JournalWriter, "journal_class")):
            if issubclass(self.defect, kind):
                made = type(self.defect.__name__, (SimulatedManager,), {name: self.defect})
                return {"manager_class": made}
        return {"step_loop" if issubclass(self.defect, StepLoop) else "worker_node": self.defect}

    def plans(self, number: int) -> Iterator[Plan]:
        """Return plans to look in."""
        kinds, plans = set(self.faults), map(self.plan, count())
        fitting = (plan for plan in plans if kinds <= {fault.kind for fault in plan.faults})
        first = [] if self.seed is None else [self.plan(self.seed)]
        return chain(first, islice(fitting, number))

    def __str__(self) -> str:
        broken = self.promise.name if self.promise is not None else "none"
        return f"{broken}-{self.defect.__name__}-{self.plan.__name__}"


def overlapping(seed: int) -> Plan:
    """Return the plan of a seed with every experiment's rounds overlapping; few plans have any."""
    plan = plan_of(seed)
    policy = OVERLAPPING[seed % len(OVERLAPPING)]
    fields: dict[str, Any] = {"mode": "sync", "policy": policy, "standbys": 0, "overlap": 1}
    fields |= {"stop_if_wrong": False}
    fields |= {"mode_options": {}, "policy_options": {}, "stop_after": None}
    return replace(plan, specs=tuple((name, spec.replace(**fields)) for name, spec in plan.specs))


def stepping(seed: int) -> Plan:
    """Return the plan of a seed with every experiment's versions published as steps."""
    plan = plan_of(seed)
    return replace(
        plan,
        specs=tuple(
            (name, spec.replace(model_compression="int3") if spec.mode != "easgd" else spec)
            for name, spec in plan.specs
        ),
    )


WRONG = "is not what it should be"

PLANTED = (
    Planted(defects.NeverPublishes, "does not end", Promise.ENDS),
    Planted(worker_defects.StaysWithItsManager, "does not end", Promise.ENDS, seed=19),
    Planted(worker_defects.NeverRegistersAnew, "does not end", Promise.ENDS),
    Planted(defects.ActsBeforeItKeeps, "is running", Promise.FINISHES),
    Planted(defects.RunsAhead, "but something of it goes on", Promise.CONSISTENT),
    Planted(defects.ForgetsTheBusy, "which does not run it", Promise.CONSISTENT),
    Planted(mode_defects.LosesPushes, "have arrived, its tasks say", Promise.CONSISTENT),
    Planted(mode_defects.IgnoresTheBound, "open rounds, more than", Promise.CONSISTENT, seed=55),
    Planted(defects.ForgetsAssignments, "gives another state", Promise.REPLAYS),
    Planted(defects.ForgetsToKeep, "gives another state", Promise.REPLAYS),
    Planted(defects.ForgetsToObserve, "tells of versions", Promise.RECORDS),
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
    Planted(defects.CountsTheAbsentIn, "and is not registered", Promise.REGISTERED, seed=33),
    Planted(defects.ForgetsNeeds, "which lacks", Promise.PLACES),
    Planted(defects.BlamesWhoComesBack, "costs a retry", Promise.BLAMELESS, seed=15),
    Planted(defects.ForgetsProgress, " times of ", Promise.PROGRESS),
    Planted(defects.TakesRequestsTwice, "was never submitted here", Promise.OWN, seed=13),
    Planted(defects.TakesASecondUpdate, "is one too many", Promise.ONCE),
    Planted(defects.FoldsInAnotherOrder, "folds", Promise.FOLDS),
    Planted(defects.FoldsWhatIsDropped, "folds", Promise.FOLDS),
    Planted(defects.TrainsFromAnOldModel, WRONG, Promise.BYTES),
    Planted(defects.ForgetsTheOuterState, WRONG, Promise.BYTES),
    Planted(mode_defects.ForgetsTheBase, WRONG, Promise.BYTES, seed=73),
    Planted(mode_defects.ForgetsWithACheckpoint, "gives another state", Promise.REPLAYS, seed=62),
    Planted(mode_defects.DecidesSharesAnew, "% of shard", Promise.BYTES, seed=44),
    Planted(mode_defects.BeginsFromTheCentre, WRONG, Promise.BYTES, seed=42),
    Planted(mode_defects.CountsStaleAsFresh, WRONG, Promise.BYTES),
    Planted(mode_defects.HasNoGrace, "before its grace window is over", Promise.APART),
    Planted(mode_defects.EndsRoundsEarly, "ends with 1 of", Promise.ONCE, seed=35),
    Planted(
        defects.BelievesARepetition,
        "computes right",
        Promise.AUDITS,
        (FaultKind.WORKER_WRONG,),
    ),
    Planted(
        defects.BlamesWorkers,
        "is whole, and refused",
        Promise.REFUSES,
        (FaultKind.DISK_REFUSES,),
        seed=2581,
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
    Planted(mode_defects.BeginsFromTheNewest, WRONG, Promise.BYTES, plan=overlapping),
    Planted(mode_defects.GoesOnFromWhatCounts, WRONG, Promise.BYTES, plan=overlapping),
    Planted(
        mode_defects.GoesOnFromWhatWasRefused,
        WRONG,
        Promise.BYTES,
        (FaultKind.UPDATE_DAMAGED,),
        plan=overlapping,
    ),
    Planted(mode_defects.NamesTooFew, "does not end", Promise.ENDS, plan=stepping),
    Planted(mode_defects.TakesStepsForWhole, "does not end", Promise.ENDS, plan=stepping),
    Planted(mode_defects.KeepsNothingLinked, "been kept", Promise.RESULTS, plan=stepping),
)
"""Found within seconds."""

RARE = (
    Planted(
        WritesOnAfterAFailure,
        ", and is forgotten",
        Promise.REMEMBERS,
        (FaultKind.DISK_REFUSES_ONCE, FaultKind.MANAGER_DIES),
        seed=12962,
    ),
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
        seed=449,
    ),
)
"""Found within minutes. Where no promise is named, the manager fails before one is broken."""
