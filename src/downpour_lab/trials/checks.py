"""Checks that a simulated cluster must pass, no matter what goes wrong in it.

Each check is an `Observer` of one promise or a few (`promises.py`). If a check can count something
itself, it does not rely on the core's state for it.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from downpour.base.states import BLAMELESS, ExperimentState
from downpour.base.values import AttemptId
from downpour.core.node.journal import Line
from downpour.core.scheduler import Scheduler, durable
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.invariants import violations
from downpour.core.spec import ResolvedSpec
from downpour.files.store import layout
from downpour.record.journal import replay
from downpour.record.record_lines import AggregatedLine, RecordLine
from downpour_lab.simulated.disk import Disk
from downpour_lab.simulated.environment import Observation, Observer, Stories
from downpour_lab.simulated.work import loss_of
from downpour_lab.trials.counting_check import CountingCheck, Tally
from downpour_lab.trials.promises import Comparisons, Expect, Promise

TaskKey = tuple[str, int, int]

MANY_WORKERS = 100
FULL_CHECK_EVENTS = 1000


class InvariantCheck(Observer):
    """The core's own invariants; with many workers, it checks them only after some events."""

    def __init__(self, comparisons: Comparisons) -> None:
        self._expect = comparisons.of(Promise.CONSISTENT)

    def handled(self, step: Observation) -> None:
        """Check the state after an event."""
        core = step.core
        quiet = not step.output.commands and not step.output.facts
        if quiet and isinstance(step.event, on.HeartbeatReceived | on.Tick):
            return  # the invariants don't depend on these events
        if len(core.state.workers) <= MANY_WORKERS or core.state.cause % FULL_CHECK_EVENTS == 0:
            wrong = next(violations(core.state), "")
            self._expect(not wrong, f"after event {core.state.cause}: {wrong}")


def _task(fact: out.Accepted | out.Withheld | out.GivenUp) -> TaskKey:
    attempt = fact.attempt
    return attempt.experiment, attempt.round, attempt.shard


class ReplayCheck(Observer):
    """A core that has read only the journaled entries has the same state, after every event."""

    def __init__(self, comparisons: Comparisons) -> None:
        self._expect = comparisons.of(Promise.REPLAYS)
        self._replicas: dict[Scheduler, Scheduler] = {}

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """Begin a replica with the same journals."""
        replica = self._replicas[core] = type(core)(
            core.state.patience, policies=core.state.policies
        )
        replay(replica, stories)
        self._expect(
            durable(replica.state) == durable(core.state), "the same journals give different states"
        )

    def handled(self, step: Observation) -> None:
        """Replay the journaled entries, and compare the states."""
        if not step.kept:
            return
        replica = self._replicas[step.core]
        for entry in step.kept:
            replica.replay(step.core.state.now_seconds, entry)
        same = durable(replica.state) == durable(step.core.state)
        self._expect(same, f"the journal of {type(step.event).__name__} gives another state")


class RecordCheck(Observer):
    """Each experiment's journal is whole, and its record names each version once, in order."""

    def __init__(self, comparisons: Comparisons, disk: Disk) -> None:
        self._expect = comparisons.of(Promise.RECORDS)
        self._disk = disk

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """Project the records that earlier managers have left."""
        for name, story in stories.items():
            if name not in self._disk.harmed:
                self._look(name, core.state.experiments[name].version, story)

    def _look(self, name: str, versions: int, story: Sequence[Line]) -> None:
        journal = self._disk.journal(name)
        heads = max((len(line.head) + 1 for line in story if line.head), default=0)
        replayed = list(story[heads:])  # without the checkpoint, and the lines that it repeats
        self._expect(
            journal[len(journal) - len(replayed) :] == replayed,
            f"{name} is not replayed from its journal",
        )
        self.check_lines(name, versions, [line for _, line in self._disk.record(name)])

    def check_lines(self, name: str, versions: int, record: Sequence[RecordLine]) -> list[int]:
        """Compare a record's versions, and return them, with the number of the newest one."""
        made = [line.version for line in record if isinstance(line, AggregatedLine)]
        self._expect(made == sorted(set(made)), f"the record of {name} tells of versions {made}")
        self._expect(made[-1:] <= [versions], f"the record of {name} tells of version {made[-1:]}")
        return made

    def check_end(self, name: str, versions: int, record: Sequence[RecordLine]) -> None:
        """Check that the record of an experiment that has ended leaves no version out."""
        made = self.check_lines(name, versions, record)
        whole = made == [*range(1, versions + 1)]
        self._expect(whole, f"the record of {name} tells of versions {made} of {versions}")


class DurabilityCheck(Observer):
    """The journals that the next manager reads hold everything that this one did or promised."""

    def __init__(self, comparisons: Comparisons, disk: Disk) -> None:
        self._expect = comparisons.of(Promise.REMEMBERS)
        self._disk = disk
        self._submitted: set[str] = set()
        self._accepted: dict[TaskKey, str] = {}
        self._versions: dict[str, int] = {}
        self._concluded: dict[str, str] = {}

    def recovered(self, core: Scheduler, stories: Stories) -> None:  # noqa: ARG002
        """Check that everything that earlier managers acted on has survived."""
        harmed = self._disk.harmed
        missing = self._submitted - set(core.state.experiments) - harmed
        self._expect(not missing, f"{sorted(missing)} was taken in, and is forgotten")
        for name, versions in self._versions.items():
            if name not in harmed:
                made = core.state.experiments[name].version
                self._expect(
                    made >= versions, f"version {made + 1} of {name} was made, and is forgotten"
                )
        for name, ending in self._concluded.items():
            if name not in harmed:
                state = core.state.experiments[name].life.state
                self._expect(state == ending, f"{name} was {ending}, and is {state}")
        for (name, number, shard), file in self._accepted.items():
            current = None if name in harmed else core.state.experiments[name].round_of(number)
            if current is not None:
                update = current.tasks[shard].update
                there = update is not None and update.file.name == file
                task = f"shard {shard} in round {number}"
                self._expect(there, f"the update of {task} was taken in, and is lost")

    def handled(self, step: Observation) -> None:
        """Forget refused updates; nothing else counts before the manager acts on it."""
        for fact in step.output.facts:
            if isinstance(fact, out.GivenUp):
                self._accepted.pop(_task(fact), None)

    def acting(self, step: Observation) -> None:
        """Note what others may rely on from now on, unless another manager leads."""
        if step.term != len(self._disk.terms):
            return
        if isinstance(step.event, on.ExperimentSubmitted):
            self._submitted.add(step.event.experiment)
        elif isinstance(step.event, on.Aggregated):
            name, made = step.event.experiment, step.event.round + 1
            if name not in self._concluded:  # a cancelled experiment accepts no more versions
                self._versions[name] = max(self._versions.get(name, 0), made)
        for fact in step.output.facts:
            if isinstance(fact, out.Accepted):
                self._accepted[_task(fact)] = fact.update.file.name
            elif isinstance(fact, out.Concluded):
                self._concluded[fact.experiment] = fact.ending


class CallCheck(Observer):
    """A worker that a manager calls has registered with it and has not been dismissed since.

    A worker that gets a shard has the labels that the spec and the shard need.
    """

    def __init__(self, comparisons: Comparisons) -> None:
        self._expect = comparisons.of(Promise.REGISTERED)
        self._places = comparisons.of(Promise.PLACES)
        self._labels: dict[Scheduler, dict[str, tuple[str, ...]]] = {}

    def recovered(self, core: Scheduler, stories: Stories) -> None:  # noqa: ARG002
        """Begin without workers: registrations with an earlier manager do not count."""
        self._labels[core] = {}

    def handled(self, step: Observation) -> None:
        """Note the workers that come and go; check who is called, and who gets each shard."""
        here = self._labels[step.core]
        if isinstance(step.event, on.WorkerJoined):
            here[step.event.worker] = step.event.labels
        for command in step.output.commands:
            if isinstance(command, out.Dismiss):
                here.pop(command.worker, None)
            if isinstance(command, out.Assign):
                asked = command.assigned
                known = asked.worker in here
                self._expect(
                    known, f"{asked.worker} is asked for {asked.attempt} and is not registered"
                )
        for fact in step.output.facts:
            if isinstance(fact, out.Assigned):
                spec = step.core.state.experiments[fact.attempt.experiment].spec
                needs = {*spec.needs, *spec.shard_needs.get(str(fact.attempt.shard), ())}
                labels = here.get(fact.worker, ())
                fits = needs <= {*labels, *(label.partition("=")[0] for label in labels)}
                self._places(fits, f"{fact.attempt} goes to {fact.worker}, which lacks {needs}")


class RetryCheck(Observer):
    """No attempt costs a retry in a run in which only managers die."""

    def __init__(self, comparisons: Comparisons) -> None:
        self._expect = comparisons.of(Promise.BLAMELESS)

    def handled(self, step: Observation) -> None:
        """Check the attempts that the manager gave up."""
        for fact in step.output.facts:
            if isinstance(fact, out.GivenUp):
                blameless = fact.failure in BLAMELESS
                self._expect(blameless, f"{fact.attempt} costs a retry: {fact.reason}")


class ProgressCheck(Observer):
    """An experiment fails for lack of retries only if enough attempts ended without a snapshot."""

    def __init__(self, comparisons: Comparisons) -> None:
        self._expect = comparisons.of(Promise.PROGRESS)
        self._saved: dict[Scheduler, set[AttemptId]] = {}
        self._failed: dict[Scheduler, Counter[TaskKey]] = {}
        self._withheld: dict[Scheduler, set[TaskKey]] = {}

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """Count again what the journals hold."""
        self._saved[core], self._failed[core] = set(), Counter()
        self._withheld[core] = set()
        for line in (line for story in stories.values() for line in story):
            self._count(core, line.entry)

    def handled(self, step: Observation) -> None:
        """Count failures, and check whether the experiment ends for them."""
        ended = {f.experiment: f.reason for f in step.output.facts if isinstance(f, out.Concluded)}
        for fact in step.output.facts:  # several workers with attempts at a shard may leave at once
            self._count(step.core, fact)
        for fact in step.output.facts:
            if isinstance(fact, out.GivenUp):
                reason = ended.get(fact.experiment, "")
                retries = step.core.state.experiments[fact.experiment].spec.retries
                which = f"shard {fact.attempt.shard} of round {fact.attempt.round + 1}"
                times = self._failed[step.core][_task(fact)]
                for_it = reason.startswith(f"{which} failed ")
                alike = reason.startswith(f"{which} failed alike ")
                right = alike or for_it == (times > retries)
                self._expect(right, f"{which} failed {times} times of {retries}: {reason}")

    def _count(self, core: Scheduler, entry: object) -> None:
        match entry:
            case out.Saved():
                self._saved[core].add(entry.attempt)
            case out.Withheld():
                self._withheld[core].add(_task(entry))
            case out.Accepted():
                self._saved[core].discard(entry.attempt)  # if it is refused, that counts
                self._withheld[core].discard(_task(entry))
            case out.GivenUp():
                is_done = _task(entry) in self._withheld[core]  # by another worker
                got_further = is_done or entry.attempt in self._saved[core]
                self._failed[core][_task(entry)] += not (entry.failure in BLAMELESS or got_further)


class LeaderCheck(Observer):
    """One manager at a time: a manager that acts on journaled entries is the leader."""

    def __init__(self, comparisons: Comparisons, disk: Disk) -> None:
        self._expect = comparisons.of(Promise.LEADS)
        self._disk = disk

    def acting(self, step: Observation) -> None:
        """Check that the manager leads."""
        if step.kept:
            is_leader = step.term == len(self._disk.terms)
            self._expect(is_leader, f"term {step.term} acts in the time of a later one")


def check_the_end(
    comparisons: Comparisons,
    disk: Disk,
    core: Scheduler,
    counting: CountingCheck,
    may_fail: Collection[str],
) -> None:
    """Compare how experiments ended with a count of their journals."""
    for name, experiment in core.state.experiments.items():
        state = experiment.life.state
        finished = state is ExperimentState.FINISHED
        if name not in may_fail:
            sentence = f"{name} is {state}: {experiment.reason}"
            comparisons.expect(Promise.FINISHES, finished, sentence)
        if finished:
            tally = counting.recounted(core, name)
            _check_result(comparisons.of(Promise.RESULTS), disk, experiment, tally)


def _check_result(expect: Expect, disk: Disk, experiment: Experiment, tally: Tally) -> None:
    name, spec, result = experiment.name, experiment.spec, experiment.result
    published = result is not None and result.name == layout.FINAL_NAME
    expect(published, f"the result of {name} is {result}")
    models = tally.shown
    last, best = spec.rounds - 1, None
    if spec.in_step:
        last, best = _last_and_best(spec, list(map(loss_of, models)))
    wanted = dict.fromkeys(range(spec.shards), last + 1)
    expect(tally.done == wanted, f"{name} ends with {dict(tally.done)} tasks a shard")
    final = disk.digest(name, result) if result is not None else None
    expect(final == models[-1], f"the result of {name} differs from the counted updates")
    there = disk.store(name).list()
    keeps = layout.BEST_NAME in there
    expect(keeps == (spec.keep_best is not None), f"{name} keeps what it should not")
    if not spec.in_step:
        return
    if spec.validation:
        loss = loss_of(models[last if best is None else best])
        tested = experiment.tested
        expect(tested is not None and tested.loss == loss, f"{name} has tested another model")
    if best is not None:
        kept = disk.store(name).describe(layout.BEST_NAME)
        same = disk.digest(name, kept) == models[best]
        expect(same, f"{name} has kept another model than its best")
    # These include the states of the shards' optimizers, for an experiment that resumes this one.
    files = [*experiment.files_of_shards(), *experiment.files_of_versions()]
    if experiment.since_outer:
        files.pop()  # the driver replaces it with the state at the last version
    gone = [file.name for file in files if file.name not in there]
    expect(not gone or name in disk.harmed, f"{gone} should have been kept")


def _last_and_best(spec: ResolvedSpec, losses: Sequence[float]) -> tuple[int, int | None]:
    """Return the round with which an experiment ends, and the best round if the spec keeps it.

    `losses` are those of all trained rounds.
    """
    every, meetings = spec.evaluate_every, spec.meetings
    sign = -1.0 if spec.keep_best == "max:loss" else 1.0
    best: int | None = None
    last = spec.rounds - 1
    for number, loss in enumerate(losses):
        epoch = meetings.epoch_of(number)
        due = meetings.ends_epoch(number) and (epoch + 1) % (every or 1) == 0
        if every and (number == spec.rounds - 1 or due):
            if best is None or sign * loss < sign * losses[best]:
                best = number
            since = epoch - meetings.epoch_of(best)
            if spec.stop_after is not None and since >= spec.stop_after:
                last = number
                break
    return last, best if spec.keep_best is not None else None
