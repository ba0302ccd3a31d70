"""Managers with one defect each, which break a promise that no other defect breaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from downpour.core.scheduler import Entry, Journaled, Output, Scheduler
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.spec import ResolvedSpec
from downpour_lab.simulated.machines import labels_of
from downpour_lab.simulated.manager import SimulatedManager
from downpour_lab.simulated.network import Answer


class ForgetsToObserve(SimulatedManager):
    """Journals no line of the record when an aggregation begins."""

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> Sequence[Entry]:
        """Leave out aggregations."""
        others: list[do.Command] = []
        others += (each for each in output.commands if not isinstance(each, do.Aggregate))
        return super().keep(core, event, replace(output, commands=others))


class TakesRequestsTwice(SimulatedManager):
    """Takes a request that is repeated because its answer was lost for another one."""

    def submit(self, answer: Answer, experiment: str, spec: ResolvedSpec) -> None:
        """Give a repeated request another name."""
        again = experiment in self.core.state.experiments
        super().submit(answer, f"{experiment}-again" if again else experiment, spec)


class _TakesAllForFit(Scheduler):
    def handle(self, event: on.Event) -> Output:
        if isinstance(event, on.WorkerJoined):
            event = replace(event, labels=labels_of("worker-1"))
        return super().handle(event)


class ForgetsNeeds(SimulatedManager):
    """Takes every worker for one that has the labels of the first."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _TakesAllForFit(policies=self.environment.policies)


class _BlamesForAll(Scheduler):
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


class ForgetsProgress(SimulatedManager):
    """Holds every failed attempt against its task, however far it came."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _BlamesForAll(policies=self.environment.policies)
