"""Checks asynchronous modes: every task counts once, and each version contains exactly these.

Which updates a version contains depends on when they arrive, so we have no run without faults to
compare with. The journal says what arrived and in which order. Everything else follows from that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from downpour.base.values import Update
from downpour.cluster.manager.aggregation import contribution
from downpour.core.modes import Mode, mode_of
from downpour.core.scheduler import Entry, Scheduler, facts
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler.experiment import Experiment
from downpour.core.spec import ResolvedSpec
from downpour.files.aggregators import AGGREGATORS
from downpour.files.store import layout
from downpour_lab.checks.counting_check import JournalCheck
from downpour_lab.checks.promises import Comparisons, Promise
from downpour_lab.simulated import digests
from downpour_lab.simulated.disk import Disk
from downpour_lab.simulated.environment import Stories

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
            case facts.Assigned():
                ledger.assign((entry.attempt.round, entry.attempt.shard), entry.share)
            case facts.Accepted():
                key = entry.attempt.round, entry.attempt.shard
                made = ledger.accept(key, entry.update, at_seconds)
                self._compare(name, entry.update.file, made)
            case facts.GivenUp():
                ledger.arrived.pop((entry.attempt.round, entry.attempt.shard), None)
            case on.Aggregated() if entry.round == ledger.version:
                ledger.take(entry.parts)
                self._compare_version(entry, ledger.model, ledger.outer)
                kept = [shard for _, shard in entry.parts] if ledger.mode.elastic else []
                for shard, file in zip(kept, entry.own, strict=True):
                    self._compare(name, file, ledger.own[shard])
            case _:
                pass

    def _in_order(self, core: Scheduler, command: do.Aggregate) -> None:
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
