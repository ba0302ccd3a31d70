"""Managers with one defect each, for the simulator to find."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any
from unittest.mock import patch

from downpour.base.errors import SharedDirectoryError, UpdatesRefused
from downpour.base.states import FailureKind
from downpour.base.values import PublishedFile
from downpour.cluster.manager.command_runner import CommandRunner
from downpour.core.node.journal import Line, since_checkpoint
from downpour.core.scheduler import Entry, Journaled, Output, Scheduler, audits, core, dispatch
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.queue import SchedulerState
from downpour.core.spec import ResolvedSpec
from downpour.files.store import Array
from downpour_lab.simulated import work as digests
from downpour_lab.simulated.disk import tensors_of
from downpour_lab.simulated.environment import Stories, labels_of
from downpour_lab.simulated.manager import (
    SimulatedDriver,
    SimulatedManager,
    SimulatedService,
    SimulatedSink,
)
from downpour_lab.simulated.work import DigestAggregation
from tests.core.node import manager_defects


class _ActsFirst(SimulatedDriver):
    def _take(self, items: list[Any]) -> None:
        super()._take(items)
        super()._commit()

    def _commit(self) -> None:
        pass


class ActsBeforeItKeeps(SimulatedManager):
    """Answers and calls workers before the journal is durable."""

    driver_class = _ActsFirst


class _LeavesOutAssignments(SimulatedSink):
    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        kept: list[out.Fact] = []
        kept += (fact for fact in output.facts if not isinstance(fact, out.Assigned))
        return super().keep(core, event, replace(output, facts=kept))


class ForgetsAssignments(SimulatedManager):
    """Journals everything except assignments."""

    sink_class = _LeavesOutAssignments


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
        _forget_unwritten(self)


def _forget_unwritten(manager: SimulatedManager) -> None:
    for space in manager.spaces.values():
        if space.journal is not None:
            space.journal._unwritten = []


class NeverResigns(SimulatedManager):
    """Does not check whether another manager leads by now."""

    def leads(self) -> bool:
        """Take it for the leader."""
        return True


class AsksOtherwise(Scheduler):
    """Asks for what `instead` makes of each command, if anything."""

    def instead(self, command: out.Command) -> out.Command | None:
        """Return the command."""
        return command

    def handle(self, event: on.Event) -> Output:
        """Handle an event, and replace the commands."""
        output = super().handle(event)
        asked = map(self.instead, output.commands)
        return replace(output, commands=[command for command in asked if command is not None])


class DoesOtherwise(Scheduler):
    """Has one function replaced; other schedulers of the same run keep theirs."""

    module: ModuleType
    name: str

    def instead(self, *args: Any, **options: Any) -> Any:
        """Run the event."""

    def handle(self, event: on.Event) -> Output:
        """Handle an event with that function."""
        with patch.object(self.module, self.name, self.instead):
            return super().handle(event)


class BelievesARepetition(DoesOtherwise):
    """Takes two tries of one worker for two workers that agree."""

    module, name = audits, "agreed"

    def instead(self, withheld: Sequence[out.Withheld]) -> tuple[str, ...] | None:
        tries = Counter(each.update.checksums for each in withheld)
        return next((sums for sums, many in tries.items() if many > 1), None)


class TakesASecondUpdate(Scheduler):
    """Counts an update of a shard that has one."""

    def handle(self, event: on.Event) -> Output:
        before = None
        if isinstance(event, on.UpdatePublished):
            context = self.state.find(event.attempt)
            before = context.task.update if context else None
        output = super().handle(event)
        if isinstance(event, on.UpdatePublished) and before is not None:
            accept = out.Accepted(
                cause=self.state.cause,
                worker=event.worker,
                attempt=event.attempt,
                update=event.update,
                completion_seconds=0.0,
            )
            output.facts.append(accept)
        return output


class FoldsInAnotherOrder(AsksOtherwise):
    """Hands out updates against the order of shards."""

    def instead(self, command: out.Command) -> out.Command:
        if isinstance(command, out.Aggregate):
            turned = zip(command.pushes, reversed(command.updates), strict=True)
            pushes = tuple(replace(push, update=update) for push, update in turned)
            return replace(command, pushes=pushes)
        return command


class TrainsFromAnOldModel(AsksOtherwise):
    """Has shards trained from an older model."""

    def instead(self, command: out.Command) -> out.Command:
        if isinstance(command, out.Assign):
            models = self.state.experiments[command.assigned.attempt.experiment].models
            return replace(command, assigned=replace(command.assigned, model=models[0]))
        return command


class NeverPublishes(AsksOtherwise):
    """Never asks for the result."""

    def instead(self, command: out.Command) -> out.Command | None:
        return None if isinstance(command, out.Publish) else command


class ForgetsTheBusy(DoesOtherwise):
    """Does not give up the attempt of a worker that is gone."""

    module, name = core, "gone"

    def instead(
        self, state: SchedulerState, name: str, failure: FailureKind, reason: str, *, lost: bool
    ) -> None:
        del failure, lost
        if state.workers.remove(name) is not None:
            state.note(out.Dismissed(cause=state.cause, worker=name, reason=reason))
            state.do(out.Dismiss(worker=name))


class CountsTheAbsentIn(Scheduler):
    """Takes workers that only the journal knows for registered."""

    def resume(self) -> Sequence[out.Command]:
        commands = super().resume()
        for worker in [one for one in self.state.workers if one.is_awaited]:
            self.state.workers.remove(worker.name)
            self.state.workers.join(worker.name, self.state.now_seconds)
            if worker.running is not None:
                self.state.workers.assign(worker.name, worker.running, self.state.now_seconds)
        return commands


class BlamesWhoComesBack(DoesOtherwise):
    """Counts a failure for a shard whose worker has registered anew."""

    module, name = core, "_goes_on"

    def instead(self, *args: Any, **options: Any) -> bool:
        del args, options
        return False


class KeepsTheLastForTheBest(AsksOtherwise):
    """Publishes the last model as the best."""

    def instead(self, command: out.Command) -> out.Command:
        if isinstance(command, out.Publish) and command.best is not None:
            return replace(command, best=command.model)
        return command


class RunsAhead(Scheduler):
    """Begins a round although the evaluation of the one before may end the training."""

    def handle(self, event: on.Event) -> Output:
        def may_start(one: Experiment) -> bool:
            return not one.training_is_done and len(one.evaluating) <= 1

        with patch.object(Experiment, "may_start_round", property(may_start)):
            return super().handle(event)


class _NeverSweeps(CommandRunner):
    def _conclude(self, command: out.Conclude) -> None:
        self.on_end(command.experiment)


class LeavesFiles(SimulatedManager):
    """Relies on each file being removed in time, which a death can prevent."""

    runner_class = _NeverSweeps

    def _clean(self, running: Iterable[Experiment], ended: Iterable[Experiment]) -> None:
        del ended
        super()._clean(running, ())


class _StepsAnew(DigestAggregation):
    """An outer optimizer that begins anew."""

    is_new = True

    def outer_step(
        self, base: Mapping[str, Array], arrays: dict[str, Array], state: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        if self.is_new:
            assert isinstance(self._spec, ResolvedSpec)
            state = tensors_of(digests.first_outer(self._spec))
        self.is_new = False
        return super().outer_step(base, arrays, state)


class ForgetsTheOuterState(SimulatedManager):
    """Keeps the outer optimizer's state in memory, and begins it anew after a restart."""

    def open(self, experiment: str, spec: ResolvedSpec, story: Sequence[Line] = ()) -> None:
        """Open it with another optimizer if it continues."""
        super().open(experiment, spec, story)
        space = self.spaces[experiment]
        if story:
            files = self.takes.store(experiment, 30.0, 30.0)
            space.aggregation = _StepsAnew(spec, files, self.takes)


class _RefusesByPlace(CommandRunner):
    def _refusal(self, command: out.Aggregate, reasons: Mapping[int, str]) -> on.AggregationFailed:
        places = {command.shards.index(shard): reason for shard, reason in reasons.items()}
        return super()._refusal(command, places)


class RefusesByPlace(SimulatedManager):
    """Names refused updates by their places and not by their shards."""

    runner_class = _RefusesByPlace


class _BlamesWorkers(DigestAggregation):
    def _updates(self, files: Mapping[int, PublishedFile]) -> dict[int, bytes]:
        try:
            self._takes.environment.disk.ask(self._takes.process.host, "read")
        except SharedDirectoryError:
            raise UpdatesRefused(dict.fromkeys(files, "cannot be read")) from None
        return super()._updates(files)


class BlamesWorkers(SimulatedManager):
    """Refuses updates because the directory cannot be read."""

    def open(self, experiment: str, spec: ResolvedSpec, story: Sequence[Line] = ()) -> None:
        """Open it with arithmetic that does so."""
        super().open(experiment, spec, story)
        files = self.takes.store(experiment, 30.0, 30.0)
        self.spaces[experiment].aggregation = _BlamesWorkers(spec, files, self.takes)


class _FailsWithTheDirectory(CommandRunner):
    def _give_up_or_die(self, experiment: str, error: SharedDirectoryError) -> None:
        del error
        for name in self.spaces:
            failed = on.EffectFailed(
                at_seconds=self.queue.now_seconds,
                experiment=name,
                reason=f"the directory refuses, of {experiment}",
            )
            self.queue.post(failed)


class FailsWithTheDirectory(SimulatedManager):
    """Fails experiments when the directory stays away, and goes on itself."""

    runner_class = _FailsWithTheDirectory


class _TriesOnce(SimulatedDriver):
    def _commit(self) -> None:
        try:
            self._manager.sink.commit()
        except SharedDirectoryError:
            self._manager.sink.journaling._touched.clear()
            _forget_unwritten(self._manager)


class BelievesItIsKept(SimulatedManager):
    """Acts on entries that the directory has failed to write."""

    driver_class = _TriesOnce


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


class FoldsWhatIsDropped(Scheduler):
    """Journals too few of the shards that it drops."""

    def handle(self, event: on.Event) -> Output:
        output = super().handle(event)
        for place, fact in enumerate(output.facts):
            if isinstance(fact, out.Dropped):
                output.facts[place] = replace(fact, shards=fact.shards[1:])
        return output


_decide = dispatch.decide


class DecidesWhileItReads(DoesOtherwise):
    """Asks its policy while it replays a journal, in which the answer comes next."""

    module, name = dispatch, "decide"

    def instead(self, state: SchedulerState, event: on.Event | None = None) -> None:
        state.replaying = False
        _decide(state, event)


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
