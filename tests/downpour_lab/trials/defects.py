"""Managers with one defect each, for the simulator to find."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

from downpour.base.errors import SharedDirectoryError
from downpour.base.states import ExperimentState, FailureKind
from downpour.base.values import PublishedFile
from downpour.core.node.journal import since_checkpoint
from downpour.core.scheduler import (
    Entry,
    Output,
    Scheduler,
    SchedulerOptions,
    dispatch,
    facts,
    liveness,
)
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler.commands import Command
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.state import SchedulerState
from downpour.core.stragglers import POLICIES, Policy
from downpour_lab.simulated import fake_files
from downpour_lab.simulated.command_runner import SimulatedCommandRunner
from downpour_lab.simulated.directory_work import Done
from downpour_lab.simulated.environment import Environment, Stories
from downpour_lab.simulated.manager import SimulatedManager
from tests.core.node import manager_defects


class ActsBeforeItKeeps(SimulatedManager):
    """Answers and calls workers before the journal is durable."""

    def commit(self, then: Callable[[], None]) -> None:
        """Act first."""
        then()
        super().commit(lambda: None)


class ForgetsAssignments(SimulatedManager):
    """Journals everything except assignments."""

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> Sequence[Entry]:
        """Leave out assignments."""
        kept: list[facts.Fact] = []
        kept += (fact for fact in output.facts if not isinstance(fact, facts.Assigned))
        return super().keep(core, event, replace(output, facts=kept))


class ForgetsToKeep(SimulatedManager):
    """Has a node that does not journal what some events have led to."""

    node_class = manager_defects.ForgetsToKeep


class ActsWithoutLeading(SimulatedManager):
    """Has a node that does not check whether another manager has taken over."""

    node_class = manager_defects.ActsWithoutLeading


class BuildsOnSand(SimulatedManager):
    """Goes on from lines that were never synced, and does not write them itself."""

    def read_journals(self) -> Stories:
        """Read, and sync nothing."""
        return self.environment.disk.stories()

    def begin_journals(self) -> None:
        """Write nothing."""
        for journal in filter(None, self.persistence._journals.values()):
            journal._unwritten = []


class NeverResigns(SimulatedManager):
    """Does not check whether another manager leads by now."""

    def leads(self) -> bool:
        """Take it for the leader."""
        return True


class _Asking(SchedulerState):
    """A state whose output differs from what its functions add."""

    def do(self, command: Command) -> None:
        """Add what `instead` makes of a command, if anything."""
        other = self.instead(command)
        if other is not None:
            super().do(other)

    def instead(self, command: Command) -> Command | None:
        """Return the commands."""
        return command


class _AsksOtherwise(Scheduler):
    """Has a state of another class."""

    kind: type[SchedulerState] = SchedulerState

    def __init__(
        self,
        options: SchedulerOptions | None = None,
        *,
        policies: Mapping[str, Policy] = POLICIES,
    ) -> None:
        super().__init__(options, policies=policies)
        self.state = self.kind(options, policies)


class _DoesOtherwise(Scheduler):
    """Has one function replaced; other schedulers of the same run keep theirs."""

    module: ModuleType
    name: str

    def instead(self, *args: Any, **options: Any) -> Any:
        """Run the event."""

    def handle(self, event: on.Event) -> Output:
        """Handle an event with that function."""
        with patch.object(self.module, self.name, self.instead):
            return super().handle(event)


class _TakesASecondUpdate(Scheduler):
    def handle(self, event: on.Event) -> Output:
        before = None
        if isinstance(event, on.UpdatePublished):
            context = self.state.find(event.attempt)
            before = context.task.update if context else None
        output = super().handle(event)
        if isinstance(event, on.UpdatePublished) and before is not None:
            accept = facts.Accepted(
                cause=self.state.cause,
                worker=event.worker,
                attempt=event.attempt,
                update=event.update,
                completion_seconds=0.0,
            )
            output.facts.append(accept)
        return output


class _Reversing(_Asking):
    def instead(self, command: Command) -> Command:
        if isinstance(command, do.Aggregate):
            turned = zip(command.pushes, reversed(command.updates), strict=True)
            pushes = tuple(replace(push, update=update) for push, update in turned)
            return replace(command, pushes=pushes)
        return command


class _FoldsInAnotherOrder(_AsksOtherwise):
    kind = _Reversing


class _Outdated(_Asking):
    def instead(self, command: Command) -> Command:
        if isinstance(command, do.Assign):
            models = self.experiments[command.assigned.attempt.experiment].models
            return replace(command, assigned=replace(command.assigned, model=models[0]))
        return command


class _TrainsFromAnOldModel(_AsksOtherwise):
    kind = _Outdated


class _Unpublished(_Asking):
    def instead(self, command: Command) -> Command | None:
        return None if isinstance(command, do.Publish) else command


class _NeverPublishes(_AsksOtherwise):
    kind = _Unpublished


class _ForgetsTheBusy(_DoesOtherwise):
    module, name = liveness, "gone"

    def instead(
        self, state: SchedulerState, name: str, failure: FailureKind, reason: str, *, lost: bool
    ) -> None:
        del failure, lost
        if state.workers.remove(name) is not None:
            state.note(facts.Dismissed(cause=state.cause, worker=name, reason=reason))
            state.do(do.Dismiss(worker=name))


class _CountsTheAbsentIn(Scheduler):
    def resume(self) -> Sequence[do.Command]:
        commands = super().resume()
        for worker in [one for one in self.state.workers if one.is_awaited]:
            self.state.workers.remove(worker.name)
            self.state.workers.join(worker.name, self.state.now_seconds)
            if worker.running is not None:
                self.state.workers.assign(worker.name, worker.running, self.state.now_seconds)
        return commands


class _BlamesWhoComesBack(_DoesOtherwise):
    module, name = liveness, "_goes_on"

    def instead(self, *args: Any, **options: Any) -> bool:
        del args, options
        return False


class CountsTheAbsentIn(SimulatedManager):
    """Takes workers that only the journal knows for registered."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _CountsTheAbsentIn()


class BlamesWhoComesBack(SimulatedManager):
    """Counts a failure for a shard whose worker has registered anew."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _BlamesWhoComesBack()


class TakesASecondUpdate(SimulatedManager):
    """Counts an update of a shard that has one."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _TakesASecondUpdate()


class FoldsInAnotherOrder(SimulatedManager):
    """Hands out updates against the order of shards."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _FoldsInAnotherOrder()


class TrainsFromAnOldModel(SimulatedManager):
    """Has shards trained from an older model."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _TrainsFromAnOldModel()


class NeverPublishes(SimulatedManager):
    """Never asks for the result."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _NeverPublishes()


class _KeepsTheLast(_Asking):
    def instead(self, command: Command) -> Command:
        if isinstance(command, do.Publish) and command.best is not None:
            return replace(command, best=command.model)
        return command


class _KeepsTheLastForTheBest(_AsksOtherwise):
    kind = _KeepsTheLast


class KeepsTheLastForTheBest(SimulatedManager):
    """Publishes the last model as the best."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _KeepsTheLastForTheBest()


class _RunsAhead(Scheduler):
    def handle(self, event: on.Event) -> Output:
        def may_start(one: Experiment) -> bool:
            return not one.training_is_done and len(one.evaluating) <= 1

        with patch.object(Experiment, "may_start_round", property(may_start)):
            return super().handle(event)


class RunsAhead(SimulatedManager):
    """Begins a round although the evaluation of the one before may end the training."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _RunsAhead()


class _NeverSweeps(SimulatedCommandRunner):
    def _sweep(
        self,
        experiment: str,
        ending: ExperimentState,
        kept: Iterable[PublishedFile],
        versions: Collection[PublishedFile],
    ) -> None:
        pass


class LeavesFiles(SimulatedManager):
    """Relies on each file being removed in time, which a death can prevent."""

    def __init__(
        self, environment: Environment, host: str, on_death: Callable[[str], None]
    ) -> None:
        super().__init__(environment, host, on_death)
        self.runner = _NeverSweeps(environment, self)


class _StepsAnew(SimulatedCommandRunner):
    """Once it has taken up experiments, the outer optimizer of each begins anew."""

    def take_up(self, core: Scheduler) -> None:
        super().take_up(core)
        self._anew = {name: each.spec for name, each in core.state.experiments.items()}

    def _fold(
        self,
        command: do.Aggregate,
        base: tuple[bytes, bytes | None],
        *args: Any,
        **options: Any,
    ) -> None:
        spec = self._anew.pop(command.experiment, None)
        if spec is not None and base[1] is not None:
            base = base[0], fake_files.first_outer(spec)
        super()._fold(command, base, *args, **options)


class ForgetsTheOuterState(SimulatedManager):
    """Keeps the outer optimizer's state in memory, and begins it anew after a restart."""

    def __init__(
        self, environment: Environment, host: str, on_death: Callable[[str], None]
    ) -> None:
        super().__init__(environment, host, on_death)
        self.runner = _StepsAnew(environment, self)


class _RefusesByPlace(SimulatedCommandRunner):
    def _refuse(self, command: do.Aggregate, reasons: Mapping[int, str]) -> None:
        places = {command.shards.index(shard): reason for shard, reason in reasons.items()}
        super()._refuse(command, places)


class RefusesByPlace(SimulatedManager):
    """Names refused updates by their places and not by their shards."""

    def __init__(
        self, environment: Environment, host: str, on_death: Callable[[str], None]
    ) -> None:
        super().__init__(environment, host, on_death)
        self.runner = _RefusesByPlace(environment, self)


class _BlamesWorkers(SimulatedCommandRunner):
    def _wait(self, again: Callable[[float], None], done: Done, waited: float) -> None:
        if isinstance(again, partial) and isinstance(again.args[0], do.Aggregate):
            command = again.args[0]
            self._refuse(command, dict.fromkeys(command.shards, "cannot be read"))
            done()
        else:
            super()._wait(again, done, waited)


class BlamesWorkers(SimulatedManager):
    """Refuses updates because the directory cannot be read."""

    def __init__(
        self, environment: Environment, host: str, on_death: Callable[[str], None]
    ) -> None:
        super().__init__(environment, host, on_death)
        self.runner = _BlamesWorkers(environment, self)


class _FailsWithTheDirectory(SimulatedCommandRunner):
    def _give_out(self, done: Done) -> None:
        for name in self._manager.core.state.experiments:
            self._answers.failed(name, "the directory refuses")
        done()


class FailsWithTheDirectory(SimulatedManager):
    """Fails experiments when the directory stays away, and goes on itself."""

    def __init__(
        self, environment: Environment, host: str, on_death: Callable[[str], None]
    ) -> None:
        super().__init__(environment, host, on_death)
        self.runner = _FailsWithTheDirectory(environment, self)


class BelievesItIsKept(SimulatedManager):
    """Acts on entries that the directory has failed to write."""

    def commit(self, then: Callable[[], None]) -> None:
        """Try once, and go on."""
        try:
            self.persistence.commit()
        except SharedDirectoryError:
            self.persistence.journaling._touched.clear()
            for journal in filter(None, self.persistence._journals.values()):
                journal._unwritten = []
        then()


class TakesCopies(SimulatedManager):
    """Takes up every journal there is, of whichever cluster, and in whichever folder."""

    def read_journals(self) -> Stories:
        """Read all journals."""
        return {
            name: since_checkpoint((term, one.lines) for (term, _), one in sorted(segments.items()))
            for name, segments in self.environment.disk._journals.items()
        }


class EndsWithOneJournal(SimulatedManager):
    """Does not begin if one journal cannot be read."""

    def read_journals(self) -> Stories:
        """Read all or none."""
        stories = super().read_journals()
        if self.environment.disk.left_out:
            raise SharedDirectoryError("shared", "a journal cannot be read")
        return stories


class _HalfDropped(SchedulerState):
    def note(self, fact: facts.Fact) -> None:
        """Leave a shard out."""
        if isinstance(fact, facts.Dropped):
            fact = replace(fact, shards=fact.shards[1:])
        super().note(fact)


class _FoldsWhatIsDropped(_AsksOtherwise):
    kind = _HalfDropped


class FoldsWhatIsDropped(SimulatedManager):
    """Journals too few of the shards that it drops."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _FoldsWhatIsDropped()


_decide = dispatch.decide


class _DecidesWhileItReads(_DoesOtherwise):
    module, name = dispatch, "decide"

    def instead(self, state: SchedulerState, event: on.Event | None = None) -> None:
        state.replaying = False
        _decide(state, event)


class DecidesWhileItReads(SimulatedManager):
    """Asks its policy while it replays a journal, in which the answer comes next."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _DecidesWhileItReads()


class ForgetsTheBusy(SimulatedManager):
    """Does not give up the attempt of a worker that is gone."""

    def make_core(self) -> Scheduler:
        """Make the core that does so."""
        return _ForgetsTheBusy()
