"""Checks that every shard of a round counts once, and that each model contains exactly these.

From the updates that counted, the check recomputes the digests that the files must hold. In
asynchronous modes it depends on arrivals which updates a version contains, so we have no run
without faults to compare with. The journal says what arrived and in which order. Everything else
follows from that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any

from downpour.base.values import PublishedFile, Update
from downpour.cluster.manager.aggregation import contribution
from downpour.core.modes import Mode, mode_of
from downpour.core.scheduler import Checkpoint, Entry, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from downpour.core.spec import ResolvedSpec
from downpour.core.stragglers.base import POLICIES
from downpour.files.aggregators import AGGREGATORS
from downpour.files.store import layout
from downpour_lab.simulated import work as digests
from downpour_lab.simulated.disk import Disk
from downpour_lab.simulated.environment import Observation, Observer, Stories
from downpour_lab.simulated.work import WHOLE, Cut, Version, first_version
from downpour_lab.trials.promises import Broken, Comparisons, Promise


@dataclass(slots=True)
class _Tally:
    """One core's count of an experiment: the update of each shard in the current round.

    The shards train the round from `version`, cut as `cut` says. The round has `begun` once the
    manager assigns a shard. If rounds overlap, `ahead` holds the updates of the next round.
    """

    version: Version
    samples: int
    updates: dict[int, str] = field(default_factory=dict)
    ahead: dict[int, str] = field(default_factory=dict)
    cut: Cut = WHOLE
    begun: bool = False

    def go_on(self, version: Version) -> None:
        """Begin a round."""
        self.version = version
        self.updates, self.ahead, self.cut, self.begun = self.ahead, {}, WHOLE, False

    def of(self, round_number: int) -> dict[int, str]:
        """Return the updates of the current round, or of the next one."""
        return self.updates if round_number == self.version.number else self.ahead

    def update(self, round_number: int, shard: int) -> bytes:
        """Return what an update of the current round, or of the next one, must hold."""
        if round_number == self.version.number:
            return self.version.update(shard, self.cut)
        return self.version.after().update(shard, WHOLE)


class JournalCheck(Observer, ABC):
    """Counts the journaled entries of experiments, and checks the digests in their files."""

    def __init__(
        self, comparisons: Comparisons, disk: Disk, specs: Mapping[str, ResolvedSpec]
    ) -> None:
        self._folds = comparisons.of(Promise.FOLDS)
        self._holds = comparisons.of(Promise.BYTES)
        self._whole = comparisons.of(Promise.REFUSES)
        self._disk = disk
        self._specs = specs
        self._reached: dict[str, Any] = {}

    def _count_on(self, counts: dict[str, Any], entry: Checkpoint) -> None:
        """Give a core the counts of the one that made the checkpoint."""
        name, version = entry.experiment, entry.models[-1].name
        counts[name] = _copied(self._reached.setdefault(version, _copied(counts[name])))

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """Count again from the journals: what the earlier manager did not journal is lost."""
        for line in sorted((x for s in stories.values() for x in s), key=lambda line: line.order):
            if isinstance(line.entry, Entry) and line.entry.experiment in self._specs:
                self._count(core, line.entry, line.at_seconds)

    def handled(self, step: Observation) -> None:
        """Count journaled entries, and check aggregations that are ordered or refused."""
        event, core = step.event, step.core
        if isinstance(event, on.AggregationFailed) and event.experiment in self._specs:
            self._look_at_refused(event, self._counted(core, event.experiment, event.round))
        for entry in step.kept:
            if entry.experiment in self._specs:
                self._count(core, entry, core.state.now_seconds)
        for command in step.output.commands:
            if isinstance(command, out.Aggregate) and command.experiment in self._specs:
                self._in_order(core, command)

    @abstractmethod
    def _count(self, core: Scheduler, entry: Entry, at_seconds: float) -> None:
        """Count an entry."""

    @abstractmethod
    def _counted(self, core: Scheduler, experiment: str, number: int) -> Mapping[int, str]:
        """Return the updates that count, by shard; none if the next version has another number."""

    @abstractmethod
    def _in_order(self, core: Scheduler, command: out.Aggregate) -> None:
        """Check that the manager aggregates the updates that count."""

    def _look_at_refused(self, event: on.AggregationFailed, counted: Mapping[int, str]) -> None:
        """Check that the manager refuses no update that is whole and that every host can read.

        If the directory fails, no worker is to blame.
        """
        there = self._disk.store(event.experiment).list()
        for shard, reason in event.reasons if counted else ():
            name = counted.get(shard)
            wrong = name not in there or self._disk.is_doubtful(name)
            self._whole(wrong, f"the update of shard {shard} is whole, and refused: {reason}")

    def _compare_version(
        self, entry: on.Prepared | on.Aggregated, model: bytes, outer: bytes | None
    ) -> None:
        """Check that the files of a version hold it, and the state of its outer optimizer."""
        self._compare(entry.experiment, entry.model, model)
        same = (entry.outer is None) == (outer is None)
        self._holds(same, f"{entry.experiment} has {entry.outer} beside {entry.model.name}")
        if entry.outer is not None:
            self._compare(entry.experiment, entry.outer, outer)

    def _compare(self, experiment: str, file: PublishedFile, wanted: bytes | None) -> None:
        digest = self._disk.digest(experiment, file)
        if digest is not None:
            right = digest == wanted
            self._holds(right, f"{file.name} of {experiment} is not what it should be")


def _copied(count: Any) -> Any:
    return replace(count, **{each.name: copy(getattr(count, each.name)) for each in fields(count)})


class CountingCheck(JournalCheck):
    """Shards count once in each round, and their updates hold what a run without faults makes.

    It follows the experiments whose shards go through the rounds together. If the policy drops or
    resizes shards, the journal says which ones and how. Everything else follows from that.
    """

    def __init__(
        self, comparisons: Comparisons, disk: Disk, specs: Mapping[str, ResolvedSpec]
    ) -> None:
        super().__init__(comparisons, disk, {n: spec for n, spec in specs.items() if spec.in_step})
        self._own = comparisons.of(Promise.OWN)
        self._once = comparisons.of(Promise.ONCE)
        self._submitted = set(specs)
        self._tallies: dict[Scheduler, dict[str, _Tally]] = {}
        self._versions: dict[tuple[str, str], Version] = {}
        self._by_number: dict[str, dict[int, Version]] = {}

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """Begin with nothing."""
        self._tallies[core] = {}
        strange = set(core.state.experiments) - self._submitted
        self._own(not strange, f"{sorted(strange)} is taken up, and was never submitted here")
        super().recovered(core, stories)

    def handled(self, step: Observation) -> None:
        """Check also who is taken in."""
        if isinstance(step.event, on.ExperimentSubmitted):
            name = step.event.experiment
            self._own(name in self._submitted, f"{name} is taken in, and was never submitted here")
        super().handled(step)

    def version_of(self, experiment: str, model: PublishedFile) -> Version:
        """Return the version that a model file must hold; AssertionError if there is none."""
        version = self._versions.get((experiment, model.name))
        if version is None:
            raise Broken(
                Promise.BYTES, f"{model.name} of {experiment} was made of nothing that counts"
            )
        return version

    def models_of(self, experiment: str, rounds: int) -> list[bytes]:
        """Return what the models after the first rounds of an experiment hold."""
        versions = self._by_number[experiment]
        return [versions[number + 1].model for number in range(rounds)]

    def _count(self, core: Scheduler, entry: Entry, at_seconds: float) -> None:  # noqa: ARG002
        match entry:
            case on.Prepared():
                self._prepared(core, entry)
            case out.Assigned():
                self._assign(self._tally(core, entry.experiment), entry)
            case out.Accepted():
                self._accept(self._tally(core, entry.experiment), entry)
            case out.GivenUp():
                tally = self._tally(core, entry.experiment)
                if entry.attempt.round >= tally.version.number:
                    tally.of(entry.attempt.round).pop(entry.attempt.shard, None)
            case out.Dropped():
                self._drop(self._tally(core, entry.experiment), entry)
            case out.Resized():
                self._resize(self._tally(core, entry.experiment), entry)
            case on.Aggregated():
                self._aggregated(self._tally(core, entry.experiment), entry)
            case Checkpoint():
                self._count_on(self._tallies[core], entry)

    def _tally(self, core: Scheduler, experiment: str) -> _Tally:
        return self._tallies[core][experiment]

    def _prepared(self, core: Scheduler, entry: on.Prepared) -> None:
        name = entry.experiment
        if name not in self._tallies[core]:
            version = first_version(self._specs[name], entry.shard_samples[0])
            self._tallies[core][name] = _Tally(version, sum(entry.shard_samples))
            self._know(name, entry, version)

    def _assign(self, tally: _Tally, entry: out.Assigned) -> None:
        shard, share, cut = entry.attempt.shard, entry.share, tally.cut
        policy = self._specs[entry.experiment].policy
        self._once(share == 1 or POLICIES[policy].shortens, f"{policy} shortens shard {shard}")
        again = entry.attempt.attempt > 0
        same = not again or share == cut.share(shard)
        self._holds(
            same, f"{entry.attempt} trains {share:.0%} of shard {shard}, not {cut.share(shard):.0%}"
        )
        if share < 1:
            tally.cut = replace(cut, shares=cut.shares | {(shard, share)})
        tally.begun = True

    def _accept(self, tally: _Tally, entry: out.Accepted) -> None:
        attempt = entry.attempt
        at, last = tally.version.number, tally.version.number
        last += self._specs[entry.experiment].overlap
        self._once(at <= attempt.round <= last, f"{attempt} counts in round {at}")
        counted = tally.of(attempt.round)
        self._once(attempt.shard not in counted, f"{attempt} is one too many")
        self._once(attempt.shard not in tally.cut.dropped, f"{attempt} counts, and was dropped")
        counted[attempt.shard] = entry.update.file.name
        wanted = tally.update(attempt.round, attempt.shard)
        self._compare(attempt.experiment, entry.update.file, wanted)

    def _drop(self, tally: _Tally, entry: out.Dropped) -> None:
        spec, dropped = self._specs[entry.experiment], tally.cut.dropped.union(entry.shards)
        enough = mode_of(spec).enough
        if enough is None:
            self._once(
                not POLICIES[spec.policy].preserves_bytes, f"{spec.policy} does without shards"
            )
        else:
            counted = len(tally.updates)
            self._once(
                counted >= enough, f"round {entry.round} ends with {counted} of {enough} updates"
            )
        self._once(entry.round == tally.version.number, f"{entry} is of another round")
        self._once(len(dropped) < spec.shards, f"round {entry.round} does without all shards")
        there = dropped & set(tally.updates)
        self._once(
            not there, f"shards {sorted(there)} of round {entry.round} count, and are dropped"
        )
        tally.cut = replace(tally.cut, dropped=dropped)

    def _resize(self, tally: _Tally, entry: out.Resized) -> None:
        spec = self._specs[entry.experiment]
        self._once(POLICIES[spec.policy].cuts_rounds, f"{spec.policy} cuts rounds again")
        self._once(not tally.begun, f"round {entry.round} has a new cut, and has begun")
        self._once(entry.round == tally.version.number, f"{entry} is of another round")
        made = sum(entry.samples)
        self._once(made == tally.samples, f"{made} samples are made of {tally.samples}")
        tally.cut = replace(tally.cut, sizes=entry.samples)

    def _aggregated(self, tally: _Tally, entry: on.Aggregated) -> None:
        if entry.round == tally.version.number:
            tally.go_on(tally.version.after(tally.cut))
            self._know(entry.experiment, entry, tally.version)

    def _know(self, experiment: str, entry: on.Prepared | on.Aggregated, version: Version) -> None:
        """Note which version a file must hold, and check that it does."""
        self._versions[experiment, entry.model.name] = version
        self._by_number.setdefault(experiment, {})[version.number] = version
        self._compare_version(entry, version.model, version.outer)

    def _counted(self, core: Scheduler, experiment: str, number: int) -> Mapping[int, str]:
        tally = self._tally(core, experiment)
        return tally.updates if number == tally.version.number else {}

    def _in_order(self, core: Scheduler, command: out.Aggregate) -> None:
        name, number = command.experiment, command.round
        tally = self._tally(core, name)
        shards = range(self._specs[name].shards)
        counted = [(n, tally.updates.get(n)) for n in shards if n not in tally.cut.dropped]
        files = [update.file.name for update in command.updates]
        folded = [*zip(command.shards, files, strict=True)]
        self._folds(folded == counted, f"round {number} of {name} folds {folded}, not {counted}")


_ROUNDING_SECONDS = 1e-6

Key = tuple[int, int]
"""A task, by round and shard."""


@dataclass(slots=True)
class _Ledger:
    """One core's count of an experiment, and the bytes that its newest version must hold.

    `done` counts the tasks of each shard that are part of a version. `bases` are the versions that
    tasks began from, and `shares` how much of their steps they train. `arrived` are the updates
    that no version contains yet, with the digests that they must hold, and when they came. `own`
    are the shards' own parameters. Each shard has as many `samples`.
    """

    spec: ResolvedSpec
    mode: Mode
    model: bytes
    outer: bytes | None
    samples: int
    expect: Callable[[Promise, bool, str], None]
    version: int = 0
    done: Counter[int] = field(default_factory=Counter)
    states: dict[int, bytes] = field(default_factory=dict)
    own: dict[int, bytes] = field(default_factory=dict)
    bases: dict[Key, tuple[int, bytes]] = field(default_factory=dict)
    shares: dict[Key, float] = field(default_factory=dict)
    arrived: dict[Key, tuple[Update, bytes, float]] = field(default_factory=dict)

    def assign(self, key: Key, share: float) -> None:
        """Note the version that a task begins from, and how much of its steps it trains."""
        number, shard = key
        follows = number == self.done[shard]
        self.expect(Promise.APART, follows, f"shard {shard} is in round {number}, and not next")
        ahead = number - min(self.done[each] for each in range(self.spec.shards))
        most = self.mode.ahead
        near = most is None or ahead <= most
        self.expect(Promise.APART, near, f"shard {shard} is {ahead} rounds ahead, more than {most}")
        self.bases.setdefault(key, (self.version, self.own.get(shard, self.model)))
        known = self.shares.setdefault(key, share)
        trained = f"round {number} trains {share:.0%} of shard {shard}, not {known:.0%}"
        self.expect(Promise.BYTES, share == known, trained)

    def accept(self, key: Key, update: Update, at_seconds: float) -> bytes:
        """Note an update; return what it must hold."""
        number, shard = key
        task = f"round {number} shard {shard}"
        self.expect(Promise.ONCE, key not in self.arrived, f"{task} is one too many")
        self.expect(Promise.ONCE, number == self.done[shard], f"{task} counts twice")
        _, base = self.bases[key]
        portion = shard * self.samples, (shard + 1) * self.samples
        state = self.states.get(shard, b"")
        made = digests.trained(number, shard, portion, self.shares[key], base, state)
        self.arrived[key] = update, made, at_seconds
        return made

    def take(self, parts: tuple[Key, ...]) -> None:
        """Make the next version."""
        missing = [part for part in parts if part not in self.arrived]
        wrong = f"version {self.version + 1} is made of {missing}, which is not there"
        self.expect(Promise.FOLDS, not missing, wrong)
        taken = {part: self.arrived.pop(part) for part in parts}
        made = {part: digest for part, (_, digest, _) in taken.items()}
        weigh = AGGREGATORS[self.spec.aggregate]
        weights = weigh([contribution(part[1], update) for part, (update, *_) in taken.items()])
        stale = [self.mode.weight(self.version - self.bases[part][0]) for part in parts]
        factors = [weight * factor for weight, factor in zip(weights, stale, strict=True)]
        pushes = [
            (part[1], made[part], factor) for part, factor in zip(parts, factors, strict=True)
        ]
        if self.mode.elastic:
            met = {shard: (digest, factor) for shard, digest, factor in pushes}
            self.own |= {n: digests.own_after(self.model, *one) for n, one in met.items()}
        after = digests.moved(self.model, pushes)
        if self.outer is not None:
            after, self.outer = digests.stepped(self.model, after, self.outer)
        self.model = after
        self.version += 1
        for number, shard in parts:
            self.done[shard] += 1
            key = number, shard
            del self.bases[key], self.shares[key]
            if self.spec.hands_on:
                self.states[shard] = digests.state_after(made[number, shard])


class PushCheck(JournalCheck):
    """Follows the asynchronous experiments of a run."""

    def __init__(
        self, comparisons: Comparisons, disk: Disk, specs: Mapping[str, ResolvedSpec]
    ) -> None:
        apart = {name: spec for name, spec in specs.items() if not spec.in_step}
        super().__init__(comparisons, disk, apart)
        self._expect = comparisons.expect
        self._apart = comparisons.of(Promise.APART)
        self._results = comparisons.of(Promise.RESULTS)
        self._ledgers: dict[Scheduler, dict[str, _Ledger]] = {}

    def recovered(self, core: Scheduler, stories: Stories) -> None:
        """Begin with nothing."""
        self._ledgers[core] = {}
        super().recovered(core, stories)

    def check_result(self, core: Scheduler, experiment: Experiment) -> None:
        """Raise AssertionError unless the result contains every task exactly once."""
        name, spec = experiment.name, experiment.spec
        self.recovered(core, {name: self._disk.stories()[name]})
        ledger = self._ledgers[core][name]
        wanted = dict.fromkeys(range(spec.shards), spec.rounds)
        self._results(
            dict(ledger.done) == wanted, f"{name} ends with {dict(ledger.done)} tasks a shard"
        )
        final = self._disk.digest(name, experiment.result) if experiment.result else None
        self._results(
            final == ledger.model, f"the result of {name} differs from the counted updates"
        )
        best = layout.BEST_NAME in self._disk.store(name)
        self._results(best == (spec.keep_best is not None), f"{name} keeps what it should not")

    def _count(self, core: Scheduler, entry: Entry, at_seconds: float) -> None:
        name, ledgers = entry.experiment, self._ledgers[core]
        if isinstance(entry, on.Prepared) and name not in ledgers:
            spec, samples = self._specs[name], entry.shard_samples[0]
            outer = digests.first_outer(spec) if spec.outer.keeps_state else None
            model = digests.first_model(spec)
            ledgers[name] = _Ledger(spec, mode_of(spec), model, outer, samples, self._expect)
            self._compare_version(entry, model, outer)
        ledger = ledgers.get(name)
        if ledger is None:
            return
        match entry:
            case out.Assigned():
                ledger.assign((entry.attempt.round, entry.attempt.shard), entry.share)
            case out.Accepted():
                key = entry.attempt.round, entry.attempt.shard
                made = ledger.accept(key, entry.update, at_seconds)
                self._compare(name, entry.update.file, made)
            case out.GivenUp():
                ledger.arrived.pop((entry.attempt.round, entry.attempt.shard), None)
            case on.Aggregated() if entry.round == ledger.version:
                ledger.take(entry.parts)
                self._compare_version(entry, ledger.model, ledger.outer)
                kept = [shard for _, shard in entry.parts] if ledger.mode.elastic else []
                for shard, file in zip(kept, entry.own, strict=True):
                    self._compare(name, file, ledger.own[shard])
            case Checkpoint():
                self._count_on(ledgers, entry)

    def _in_order(self, core: Scheduler, command: out.Aggregate) -> None:
        ledger = self._ledgers[core][command.experiment]
        asked = [(push.round, push.shard, push.update.file.name) for push in command.pushes]
        known = [
            (*key, ledger.arrived[key][0].file.name)
            for key in command.parts
            if key in ledger.arrived
        ]
        self._folds(asked == known, f"version {command.round + 1} takes in {asked}, not {known}")
        together = ledger.mode.together or len(asked)
        if ledger.mode.grace_seconds is not None:
            together = len(ledger.arrived)
        self._folds(
            len(asked) <= together, f"version {command.round + 1} takes in more than {together}"
        )
        self._in_time(ledger, core.state.now_seconds)

    def _counted(self, core: Scheduler, experiment: str, number: int) -> Mapping[int, str]:
        ledger = self._ledgers[core][experiment]
        names = {shard: update.file.name for (_, shard), (update, *_) in ledger.arrived.items()}
        return names if number == ledger.version else {}

    def _in_time(self, ledger: _Ledger, now_seconds: float) -> None:
        """Check that a version without all of its tasks has waited for its grace window."""
        together, grace = ledger.mode.together, ledger.mode.grace_seconds
        if together is None or grace is None or set(ledger.bases) == set(ledger.arrived):
            return
        there = [at_seconds for _, _, at_seconds in ledger.arrived.values()]
        next_one = f"version {ledger.version + 1}"
        self._apart(
            len(there) >= together, f"{next_one} is made of {len(there)}, not of {together}"
        )
        over = there[together - 1] + grace <= now_seconds + _ROUNDING_SECONDS
        self._apart(over, f"{next_one} is made before its grace window is over")
