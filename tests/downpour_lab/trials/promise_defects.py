"""Managers with one defect each, which break a promise that no other defect breaks."""

from __future__ import annotations

from dataclasses import replace

from downpour.core.scheduler import Entry, Journaled, Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec
from downpour_lab.simulated.environment import labels_of
from downpour_lab.simulated.manager import SimulatedManager, SimulatedService, SimulatedSink


class _LeavesOutAggregations(SimulatedSink):
    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        others: list[out.Command] = []
        others += (each for each in output.commands if not isinstance(each, out.Aggregate))
        return super().keep(core, event, replace(output, commands=others))


class ForgetsToObserve(SimulatedManager):
    """Journals no line of the record when an aggregation begins."""

    sink_class = _LeavesOutAggregations


class _GivesAnotherName(SimulatedService):
    def submit(self, experiment: str, spec: ResolvedSpec) -> None:
        again = experiment in self._manager.core.state.experiments
        super().submit(f"{experiment}-again" if again else experiment, spec)


class TakesRequestsTwice(SimulatedManager):
    """Takes a request that is repeated because its answer was lost for another one."""

    service_class = _GivesAnotherName


class ForgetsNeeds(Scheduler):
    """Takes every worker for one that has the labels of the first."""

    def handle(self, event: on.Event) -> Output:
        if isinstance(event, on.WorkerJoined):
            event = replace(event, labels=labels_of("worker-1"))
        return super().handle(event)


class ForgetsProgress(Scheduler):
    """Holds every failed attempt against its task, however far it came."""

    def handle(self, event: on.Event) -> Output:
        self._forget()
        return super().handle(event)

    def replay(self, at_seconds: float, entry: Journaled) -> None:
        self._forget()
        super().replay(at_seconds, entry)

    def _forget(self) -> None:
        for experiment in self.state.experiments.values():
            for task in experiment.open_tasks():
                task.furthered.clear()
