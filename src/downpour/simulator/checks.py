"""What must hold of a simulated cluster, whatever goes wrong in it.

Each checker is an `Onlooker`, knows one thing, and raises AssertionError with
a sentence. None of them trusts the core's books where it can count for itself.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from downpour.runtime.recovery import replay
from downpour.scheduler import Checkpoint, Entry, Replay, durable
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.scheduler.experiment import Experiment
from downpour.scheduler.invariants import check_invariants
from downpour.simulator.contents import FaultFree
from downpour.simulator.disk import Disk
from downpour.simulator.site import Onlooker, Step, Stories
from downpour.spec import Spec
from downpour.store import layout
from downpour.values import PublishedFile

Task = tuple[str, int, int]

MANY_WORKERS = 100
FULL_CHECK_EVENTS = 1000


class Books(Onlooker):
    """The core's own invariants; seldom in full where there are many workers."""

    def handled(self, step: Step) -> None:
        """Look at the books after an event."""
        core = step.core
        if not step.commands and isinstance(step.event, on.HeartbeatReceived | on.Tick):
            return  # which changes no book
        if len(core.workers) <= MANY_WORKERS or core.events_handled % FULL_CHECK_EVENTS == 0:
            check_invariants(core)


@dataclass(slots=True)
class _Tally:
    """What one core has counted: the update of each task, and the rounds that are over."""

    updates: dict[Task, str] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)


class Counting(Onlooker):
    """A shard counts once in each round, and with what a run without faults gives it."""

    def __init__(
        self, disk: Disk, truth: Mapping[str, FaultFree], specs: Mapping[str, Spec]
    ) -> None:
        self._disk = disk
        self._truth = truth
        self._specs = specs
        self._tallies: dict[Replay, _Tally] = {}

    def recovered(self, core: Replay, stories: Stories) -> None:
        """Count anew: what a manager took in and did not keep is not known to anybody."""
        tally = self._tallies[core] = _Tally()
        for line in sorted((x for s in stories.values() for x in s), key=lambda line: line.order):
            self._count(tally, line.entry)

    def handled(self, step: Step) -> None:
        """Count what was accepted, refused and aggregated."""
        tally = self._tallies[step.core]
        for entry in step.kept:
            self._count(tally, entry)
        for command in step.commands:
            if isinstance(command, do.Accept):
                self._look(command)
            elif isinstance(command, do.Aggregate):
                self._in_order(tally, command)

    def _count(self, tally: _Tally, entry: Entry) -> None:
        if isinstance(entry, do.Accept):
            task = _task(entry)
            expect(task not in tally.updates, f"{entry.attempt} is one too many")
            at = tally.rounds.get(task[0], 0)
            expect(task[1] == at, f"{entry.attempt} counts in round {at}")
            tally.updates[task] = entry.update.file.name
        elif isinstance(entry, do.GiveUp):
            tally.updates.pop(_task(entry), None)
        elif isinstance(entry, on.Aggregated):
            done = tally.rounds.get(entry.experiment, 0)
            if entry.round == done:
                tally.rounds[entry.experiment] = done + 1
                self._look_at_model(entry.experiment, entry.round + 1, entry.model)
        elif isinstance(entry, Checkpoint):
            tally.rounds[entry.experiment] = entry.rounds_done
            self._look_at_model(entry.experiment, entry.rounds_done, entry.models[-1])

    def _look(self, command: do.Accept) -> None:
        experiment, number, shard = _task(command)
        content = self._read(experiment, command.update.file)
        if content is not None:
            right = self._truth[experiment].update(number, shard)
            expect(content == right, f"the update of {command.attempt} is not what it should be")

    def _look_at_model(self, experiment: str, version: int, model: PublishedFile) -> None:
        content = self._read(experiment, model)
        right = self._truth[experiment].model(version)
        expect(content in {None, right}, f"model {version} of {experiment} is another one")

    def _in_order(self, tally: _Tally, command: do.Aggregate) -> None:
        name, number = command.experiment, command.round
        shards = range(self._specs[name].shards or 0)
        counted = [tally.updates.get((name, number, shard)) for shard in shards]
        folded = [update.file.name for update in command.updates]
        expect(folded == counted, f"round {number} of {name} folds {folded}, not {counted}")

    def _read(self, experiment: str, file: PublishedFile) -> bytes | None:
        there = file.name in self._disk.store(experiment).list()
        return bytes(self._disk.store(experiment).read(file)) if there else None


def expect(holds: bool, sentence: str) -> None:  # noqa: FBT001 - reads as a sentence
    """Raise AssertionError with the sentence where something does not hold."""
    if not holds:
        raise AssertionError(sentence)


def _task(command: do.Accept | do.GiveUp) -> Task:
    attempt = command.attempt
    return attempt.experiment, attempt.round, attempt.shard


class Folding(Onlooker):
    """Who has only what is kept comes to the same books, after every event."""

    def __init__(self) -> None:
        self._replicas: dict[Replay, Replay] = {}

    def recovered(self, core: Replay, stories: Stories) -> None:
        """Begin with the same journals."""
        replica = self._replicas[core] = Replay(core.options)
        replay(replica, stories)
        expect(durable(replica) == durable(core), "the same journals give different books")

    def handled(self, step: Step) -> None:
        """Take in what was kept, and compare."""
        if not step.kept:
            return
        replica = self._replicas[step.core]
        for entry in step.kept:
            replica.replay(step.core.now_seconds, entry)
        same = durable(replica) == durable(step.core)
        expect(same, f"what was kept of {type(step.event).__name__} gives other books")


class Promises(Onlooker):
    """What a manager has acted on or acknowledged is in the journals of whoever comes next."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._submitted: set[str] = set()
        self._accepted: dict[Task, str] = {}
        self._rounds: dict[str, int] = {}
        self._concluded: dict[str, str] = {}

    def recovered(self, core: Replay, stories: Stories) -> None:
        """Compare what was promised with what has survived."""
        del stories
        missing = self._submitted - set(core.experiments)
        expect(not missing, f"{sorted(missing)} was taken in, and is forgotten")
        for name, rounds in self._rounds.items():
            done = core.experiments[name].rounds_done
            expect(done >= rounds, f"round {done} of {name} was over, and is forgotten")
        for name, ending in self._concluded.items():
            state = core.experiments[name].life.state
            expect(state == ending, f"{name} was {ending}, and is {state}")
        for task, file in self._accepted.items():
            self._is_there(core, task, file)

    def handled(self, step: Step) -> None:
        """Nothing is promised before it is acted on, but what is refused is promised no more."""
        for command in step.commands:
            if isinstance(command, do.GiveUp):
                self._accepted.pop(_task(command), None)

    def acting(self, step: Step) -> None:
        """Note what others may rely on from now on; a manager out of office promises nothing."""
        if step.term != len(self._disk.terms):
            return
        if isinstance(step.event, on.ExperimentSubmitted):
            self._submitted.add(step.event.experiment)
        for command in step.commands:
            if isinstance(command, do.Accept):
                self._accepted[_task(command)] = command.update.file.name
            elif isinstance(command, do.Assign):
                name, number = command.attempt.experiment, command.attempt.round
                self._rounds[name] = max(self._rounds.get(name, 0), number)
            elif isinstance(command, do.Conclude):
                self._concluded[command.experiment] = command.ending

    def _is_there(self, core: Replay, task: Task, file: str) -> None:
        name, number, shard = task
        experiment = core.experiments[name]
        if experiment.round is None or experiment.rounds_done != number:
            return
        update = experiment.round.tasks[shard].update
        there = update is not None and update.file.name == file
        expect(there, f"the update of shard {shard} in round {number} was taken in, and is lost")


class Office(Onlooker):
    """One manager at a time: whoever acts on what changes results is in office."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def acting(self, step: Step) -> None:
        """Look who is in office."""
        in_office = step.term == len(self._disk.terms)
        expect(in_office or not step.kept, f"term {step.term} acts in the time of a later one")


def check_the_end(
    disk: Disk, core: Replay, truth: Mapping[str, FaultFree], may_fail: Collection[str]
) -> None:
    """Raise AssertionError where an experiment has not ended as it would without faults."""
    for name, experiment in core.experiments.items():
        if experiment.life.state == "finished":
            _check_result(disk, experiment, truth[name])
        elif name not in may_fail:
            raise AssertionError(f"{name} is {experiment.life.state}: {experiment.reason}")


def _check_result(disk: Disk, experiment: Experiment, truth: FaultFree) -> None:
    name, result = experiment.name, experiment.result
    if result is None or result.name != layout.FINAL_NAME:
        raise AssertionError(f"the result of {name} is {result}")
    right = truth.model(experiment.spec.epochs)
    same = bytes(disk.store(name).read(result)) == right
    expect(same, f"the result of {name} is not that of a run without faults")
    there = disk.store(name).list()
    gone = [file.name for file in experiment.models if file.name not in there]
    expect(not gone, f"{gone} should have been kept")
