"""Checks that every update counts once, and that each model contains exactly the counted updates.

From the journal, the check recomputes the digests that the files must hold. In step, a run without
faults makes the same ones, unless the policy drops or resizes shards. Then the journal says which
shards, and how. In asynchronous modes, a version contains the updates that arrive first, so we
have no run without faults to compare with. The journal says what arrived and in which order.
Everything else follows from that.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import cast

from downpour.base.values import PublishedFile, Update
from downpour.cluster.manager.aggregation import contribution
from downpour.core.modes import Mode, mode_of
from downpour.core.scheduler import Checkpoint, Entry, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec
from downpour.core.stragglers.base import POLICIES
from downpour.files.aggregators import AGGREGATORS, Weights
from downpour_lab.simulated import work as digests
from downpour_lab.simulated.disk import Disk
from downpour_lab.simulated.environment import Observation, Observer, Stories
from downpour_lab.trials.promises import Comparisons, Promise

_ROUNDING_SECONDS = 1e-6

Key = tuple[int, int]
"""A task, by round and shard."""


@dataclass(slots=True)
class Tally:
    """One core's count of an experiment, and the bytes that its versions must hold.

    `models` are all versions so far, and `shown` the model that we measure and publish for each but
    the first. Each shard has as many `samples`. `done` counts the tasks of each shard that are
    over. Shards continue from the `last` of their updates, and from their `own`
    parameters. Tasks began from their `bases`: a version's number, the parameters, and the
    optimizer's state. `shares` are how much of their steps tasks train. `arrived` are the updates
    that no version contains yet, with the digests that they must hold, and when they came. The
    current round does without the `dropped` shards, and has other `sizes` if there are any.
    """

    spec: ResolvedSpec
    mode: Mode
    models: list[bytes]
    shown: list[bytes]
    outer: bytes | None
    samples: int
    expect: Callable[[Promise, bool, str], None]
    done: Counter[int] = field(default_factory=Counter)
    last: dict[int, bytes] = field(default_factory=dict)
    own: dict[int, bytes] = field(default_factory=dict)
    bases: dict[Key, tuple[int, bytes, bytes]] = field(default_factory=dict)
    shares: dict[Key, float] = field(default_factory=dict)
    arrived: dict[Key, tuple[Update, bytes, float]] = field(default_factory=dict)
    dropped: frozenset[int] = frozenset()
    sizes: tuple[int, ...] = ()

    @property
    def version(self) -> int:
        """The number of the newest version."""
        return len(self.models) - 1

    @property
    def due(self) -> tuple[Key, ...]:
        """The tasks that count in the current round, in order, if shards are in step."""
        shards = range(self.spec.shards)
        return tuple((self.version, shard) for shard in shards if shard not in self.dropped)

    def file_of(self, key: Key) -> str:
        """Return the name of a task's update; empty if none has arrived."""
        return self.arrived[key][0].file.name if key in self.arrived else ""

    def assign(self, key: Key, share: float) -> None:
        """Note what a task begins from, and how much of its steps it trains."""
        number, shard = key
        ahead = number - self.done[shard]
        follows = 0 <= ahead <= self.spec.overlap
        self.expect(Promise.APART, follows, f"shard {shard} is in round {number}, and not next")
        ahead = number - min(self.done[each] for each in range(self.spec.shards))
        most = self.mode.ahead
        near = most is None or ahead <= most
        self.expect(Promise.APART, near, f"shard {shard} is {ahead} rounds ahead, more than {most}")
        policy = self.spec.policy
        may = share == 1 or POLICIES[policy].shortens
        self.expect(Promise.ONCE, may, f"{policy} shortens shard {shard}")
        known = self.shares.setdefault(key, share)
        trained = f"round {number} trains {share:.0%} of shard {shard}, not {known:.0%}"
        self.expect(Promise.BYTES, share == known, trained)
        self._base(key)

    def accept(
        self, key: Key, update: Update, at_seconds: float, wrong: bytes | None = None
    ) -> bytes:
        """Note an update; return what it must hold, which its worker may have computed `wrong`."""
        number, shard = key
        task, done = f"round {number} shard {shard}", self.done[shard]
        in_time = done <= number <= done + self.spec.overlap
        self.expect(Promise.ONCE, in_time, f"{task} counts in round {done}")
        self.expect(Promise.ONCE, key not in self.arrived, f"{task} is one too many")
        self.expect(Promise.ONCE, shard not in self.dropped, f"{task} counts, and was dropped")
        _, start, state = self._base(key)
        sizes = self.sizes or (self.samples,) * self.spec.shards
        portion = sum(sizes[:shard]), sum(sizes[: shard + 1])
        right = digests.trained(number, shard, portion, self.shares.get(key, 1.0), start, state)
        made = wrong or right
        self.arrived[key] = update, made, at_seconds
        if self.spec.overlap:
            self.last[shard] = made
        return made

    def give_up(self, key: Key) -> None:
        """Note that a task has no update; one that counted may have been wrong."""
        if self.arrived.pop(key, None) is not None:
            self.bases.pop((key[0] + 1, key[1]), None)

    def _base(self, key: Key) -> tuple[int, bytes, bytes]:
        number, shard = key
        start, last = self.own.get(shard, self.models[-1]), self.last.get(shard)
        if last is not None and self.spec.overlap:
            start = digests.moved_by(self.models[number - 1], last)
        state = digests.state_after(last) if last is not None and self.spec.hands_on else b""
        return self.bases.setdefault(key, (self.version, start, state))

    def drop(self, shards: tuple[int, ...], number: int) -> None:
        """Note that the round does without some shards."""
        spec, enough = self.spec, self.mode.enough
        self.dropped = self.dropped.union(shards)
        there = [shard for _, shard in self.arrived]
        may, sentence = not POLICIES[spec.policy].preserves_bytes, f"{spec.policy} does without"
        if enough is not None:
            may = len(there) >= enough
            sentence = f"round {number} ends with {len(there)} of {enough} updates"
        self.expect(Promise.ONCE, may, sentence)
        self.expect(Promise.ONCE, number == self.version, f"{shards} are of round {number}")
        some = len(self.dropped) < spec.shards
        self.expect(Promise.ONCE, some, f"round {number} does without all shards")
        both = sorted(self.dropped.intersection(there))
        wrong = f"shards {both} of round {number} count, and are dropped"
        self.expect(Promise.ONCE, not both, wrong)

    def resize(self, sizes: tuple[int, ...], number: int) -> None:
        """Note the sizes of the round's shards, in samples."""
        policy, before = self.spec.policy, self.samples * self.spec.shards
        self.expect(Promise.ONCE, POLICIES[policy].cuts_rounds, f"{policy} cuts rounds again")
        self.expect(Promise.ONCE, not self.bases, f"round {number} has a new cut, and has begun")
        self.expect(Promise.ONCE, number == self.version, f"{sizes} are of round {number}")
        wrong = f"{sum(sizes)} samples are made of {before}"
        self.expect(Promise.ONCE, sum(sizes) == before, wrong)
        self.sizes = sizes

    def take(self, parts: tuple[Key, ...]) -> None:
        """Make the next version of these tasks' updates."""
        missing = [part for part in parts if part not in self.arrived]
        wrong = f"version {self.version + 1} is made of {missing}, which is not there"
        self.expect(Promise.FOLDS, not missing, wrong)
        made = {key[1]: digest for key, (_, digest, _) in self.arrived.items() if key in parts}
        updates = [(shard, made[shard]) for _, shard in parts]
        before = self.models[-1]
        after = digests.folded(before, updates) if self.spec.in_step else self._moved(parts)
        mean = after
        if self.outer is not None:
            after, self.outer = digests.stepped(before, after, self.outer)
        self.models.append(after)
        self.shown.append(mean if self.spec.looks_ahead else after)
        if not self.spec.overlap:
            self.last |= made
        over = [(parts[0][0], n) for n in range(self.spec.shards)] if self.spec.in_step else parts
        for key in over:
            self.done[key[1]] += 1
            for of_task in (self.bases, self.shares, self.arrived):
                of_task.pop(key, None)
        self.dropped, self.sizes = frozenset(), ()

    def _moved(self, parts: tuple[Key, ...]) -> bytes:
        """Return the newest version, moved by updates that may be stale."""
        taken = [(part[1], *self.arrived[part][:2]) for part in parts]
        weigh = AGGREGATORS[self.spec.aggregate]
        weights = cast("Weights", weigh([contribution(n, update) for n, update, _ in taken]))
        stale = [self.mode.weight(self.version - self.bases[part][0]) for part in parts]
        factors = [weight * factor for weight, factor in zip(weights, stale, strict=True)]
        pushes = [(n, made, factor) for (n, _, made), factor in zip(taken, factors, strict=True)]
        if self.mode.elastic:
            own_after = partial(digests.own_after, self.models[-1])
            self.own |= {shard: own_after(made, factor) for shard, made, factor in pushes}
        return digests.moved(self.models[-1], pushes)


class CountingCheck(Observer):
    """Counts the journaled entries of experiments, and checks the digests in their files."""

    def __init__(
        self, comparisons: Comparisons, disk: Disk, specs: Mapping[str, ResolvedSpec]
    ) -> None:
        self._expect = comparisons.expect
        self._disk = disk
        self._specs = specs
        self._tallies: dict[Scheduler, dict[str, Tally]] = {}
        self._reached: dict[str, Tally] = {}
        self._wrong: dict[str, bytes] = {}

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """Count again from the journals: what the earlier manager did not journal is lost."""
        self._tallies[core] = {}
        strange = set(core.state.experiments) - set(self._specs)
        said = f"{sorted(strange)} is taken up, and was never submitted here"
        self._expect(Promise.OWN, not strange, said)
        for line in sorted((x for s in stories.values() for x in s), key=lambda line: line.order):
            if isinstance(line.entry, Entry) and line.entry.experiment in self._specs:
                self._count(core, line.entry, line.at_seconds)

    def handled(self, step: Observation) -> None:
        """Count journaled entries, and check submissions, aggregations and refusals."""
        event, core = step.event, step.core
        if isinstance(event, on.ExperimentSubmitted):
            said = f"{event.experiment} is taken in, and was never submitted here"
            self._expect(Promise.OWN, event.experiment in self._specs, said)
        if isinstance(event, on.AggregationFailed) and event.experiment in self._specs:
            self._look_at_refused(event, self._tallies[core][event.experiment])
        for fact in step.output.facts:
            if isinstance(fact, out.Quarantined):
                # A second worker of a name is called after it, as "worker-1-2".
                names = {fact.worker, fact.worker.rsplit("-", 1)[0]}
                wrong = not names.isdisjoint(self._disk.computing_wrong)
                self._expect(Promise.AUDITS, wrong, f"{fact.worker} computes right: {fact.reason}")
        for entry in step.kept:
            if entry.experiment in self._specs:
                self._count(core, entry, core.state.now_seconds)
        for command in step.output.commands:
            if isinstance(command, out.Aggregate) and command.experiment in self._specs:
                tally = self._tallies[core][command.experiment]
                self._in_order(tally, command, core.state.now_seconds)

    def recounted(self, core: Scheduler, experiment: str) -> Tally:
        """Return what the journals of an experiment that has ended come to."""
        self.recovered(core, {experiment: self._disk.stories()[experiment]})
        return self._tallies[core][experiment]

    def _count(self, core: Scheduler, entry: Entry, at_seconds: float) -> None:
        name, tallies = entry.experiment, self._tallies[core]
        if isinstance(entry, on.Prepared) and name not in tallies:
            tallies[name] = self._begun(entry)
        tally = tallies.get(name)
        if tally is None:
            return
        match entry:
            case out.Assigned():
                tally.assign((entry.attempt.round, entry.attempt.shard), entry.share)
            case out.Accepted():
                self._accept(entry, tally, at_seconds)
            case out.GivenUp():
                tally.give_up((entry.attempt.round, entry.attempt.shard))
            case out.Dropped():
                tally.drop(entry.shards, entry.round)
            case out.Resized():
                tally.resize(entry.samples, entry.round)
            case on.Aggregated() if entry.round == tally.version:
                tally.take(entry.parts or tally.due)
                self._compare_version(entry, tally)
            case Checkpoint():
                # The core goes on from the counts of the one that made the checkpoint.
                version = entry.models[-1].name
                tallies[name] = _copied(self._reached.setdefault(version, _copied(tally)))

    def _accept(self, entry: out.Accepted, tally: Tally, at_seconds: float) -> None:
        key, file = (entry.attempt.round, entry.attempt.shard), entry.update.file
        held = self._disk.digest(entry.experiment, file)
        if held in self._disk.wrong:
            self._wrong[file.name] = held  # the file goes before the journal
        wrong = self._wrong.get(file.name)
        made = tally.accept(key, entry.update, at_seconds, wrong)
        self._compare(entry.experiment, file, made)
        if entry.confirmed_by:
            said = f"{entry.confirmed_by} confirm {file.name}, which is wrong"
            self._expect(Promise.AUDITS, wrong is None, said)

    def _begun(self, entry: on.Prepared) -> Tally:
        spec, samples = self._specs[entry.experiment], entry.shard_samples[0]
        outer = digests.first_outer(spec) if spec.outer.keeps_state else None
        models = [digests.first_model(spec)]
        tally = Tally(spec, mode_of(spec), models, [], outer, samples, self._expect)
        self._compare_version(entry, tally)
        return tally

    def _in_order(self, tally: Tally, command: out.Aggregate, now_seconds: float) -> None:
        asked = [(push.round, push.shard, push.update.file.name) for push in command.pushes]
        known = [(*key, tally.file_of(key)) for key in command.parts or tally.due]
        version = f"version {command.round + 1}"
        self._expect(Promise.FOLDS, asked == known, f"{version} folds {asked}, not {known}")
        if tally.spec.in_step:
            return
        together = tally.mode.together or len(asked)
        if tally.mode.grace_seconds is not None:
            together = len(tally.arrived)
        few = len(asked) <= together
        self._expect(Promise.FOLDS, few, f"{version} takes in more than {together}")
        self._in_time(tally, now_seconds)

    def _in_time(self, tally: Tally, now_seconds: float) -> None:
        """Check that a version without all of its tasks has waited for its grace window."""
        together, grace = tally.mode.together, tally.mode.grace_seconds
        if together is None or grace is None or set(tally.bases) == set(tally.arrived):
            return
        there = [at_seconds for _, _, at_seconds in tally.arrived.values()]
        version, many = f"version {tally.version + 1}", len(there)
        enough = many >= together
        self._expect(Promise.APART, enough, f"{version} is made of {many}, not of {together}")
        over = there[together - 1] + grace <= now_seconds + _ROUNDING_SECONDS
        self._expect(Promise.APART, over, f"{version} is made before its grace window is over")

    def _look_at_refused(self, event: on.AggregationFailed, tally: Tally) -> None:
        """Check that the manager refuses no update that is whole and that every host can read.

        If the directory fails, no worker is to blame.
        """
        if event.round != tally.version:
            return
        there = self._disk.store(event.experiment).list()
        names = {
            shard: tally.file_of((number, shard))
            for number, shard in tally.arrived
            if number == event.round or not tally.spec.in_step
        }
        for shard, reason in event.reasons if names else ():
            name = names.get(shard, "")
            wrong = name not in there or self._disk.is_doubtful(name)
            said = f"the update of shard {shard} is whole, and refused: {reason}"
            self._expect(Promise.REFUSES, wrong, said)

    def _compare_version(self, entry: on.Prepared | on.Aggregated, tally: Tally) -> None:
        """Check the files of a version, its outer optimizer, and the shards' own parameters."""
        self._compare(entry.experiment, entry.model, tally.models[-1])
        held = tally.spec.publishes_steps and tally.spec.in_step  # by the manager, between wholes
        same = (entry.outer is None) == (tally.outer is None) or (held and tally.outer is not None)
        said = f"{entry.experiment} has {entry.outer} beside {entry.model.name}"
        self._expect(Promise.BYTES, same, said)
        if entry.outer is not None:
            self._compare(entry.experiment, entry.outer, tally.outer)
        if isinstance(entry, on.Aggregated) and entry.mean is not None:
            self._compare(entry.experiment, entry.mean, tally.shown[-1])
        if tally.mode.elastic and isinstance(entry, on.Aggregated):
            for (_, shard), file in zip(entry.parts, entry.own, strict=True):
                self._compare(entry.experiment, file, tally.own[shard])

    def _compare(self, experiment: str, file: PublishedFile, wanted: bytes | None) -> None:
        digest = self._disk.digest(experiment, file)
        if digest is not None:
            said = f"{file.name} of {experiment} is not what it should be"
            self._expect(Promise.BYTES, digest == wanted, said)


def _copied(tally: Tally) -> Tally:
    return replace(tally, **{each.name: copy(getattr(tally, each.name)) for each in fields(tally)})
