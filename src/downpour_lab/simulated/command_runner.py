"""Runs a manager's commands in virtual time; `cluster/manager/command_runner.py` is the real one.

`core/node/effects.py` says which commands wait for each other. Here, each lane is a queue of jobs.
The result of a command comes back to the manager as an event.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError
from downpour.base.states import Evaluation, ExperimentState
from downpour.base.values import AttemptId, PublishedFile
from downpour.core.node.effects import Effects
from downpour.core.node.manager import Registry
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import commands as do
from downpour.files.store import layout
from downpour_lab.simulated import fake_files
from downpour_lab.simulated.directory_work import Commander, DirectoryWork, Done, Job, Lane
from downpour_lab.simulated.disk import LOOK_AGAIN_SECONDS
from downpour_lab.simulated.environment import Environment
from downpour_lab.simulated.fake_files import update_of
from downpour_lab.simulated.network import UNREACHABLE, TrainRequest

ASKED_WRONGLY = "asked wrongly"
"""Why the manager can't prepare an experiment with a faulty spec."""


@dataclass(frozen=True, slots=True, eq=False)
class _Registered:
    address: str


class SimulatedCommandRunner(DirectoryWork, Effects[[Done]]):
    """A manager's work besides its decisions."""

    def __init__(self, environment: Environment, manager: Commander) -> None:
        super().__init__(environment, manager)
        self._works = Lane()
        self._evaluations = Lane()
        self._calls: dict[str, Lane] = {}
        self._roster = Registry[_Registered]()
        self._with_states: set[str] = set()
        self.cannot_prepare = ""

    def take_up(self, core: Scheduler) -> None:
        """Remove files that no manager will name, and files that only ended experiments needed."""
        for name, experiment in core.state.experiments.items():
            state = experiment.life.state
            if state.ended:
                self._sweep(
                    name, state, experiment.files_of_shards(), experiment.files_of_versions()
                )
                continue
            store = self._environment.disk.store(name)
            for file_name in set(store.list()) - {file.name for file in experiment.files()}:
                if layout.is_spent(file_name, experiment.rounds_done):
                    self._environment.disk.delete(self._manager.host, name, file_name)

    def enter(self, name: str, address: str, identity: int) -> str:
        """Register a worker; return its name."""
        return self._roster.enter(name, identity, _Registered(address)).name

    def connection_ended(self, address: str) -> None:
        """Call the workers that connected from there, as the real one does."""
        for name in self._roster.names():
            entry = self._roster.get(name)
            if entry is not None and entry.address == address:
                gone = partial(self._not_called_back, name, entry)
                self._call(entry, "ping", (), _nothing, gone)

    def _not_called_back(self, name: str, entry: _Registered, reason: str) -> None:
        if self._roster.is_dead(name, entry, refused=reason == UNREACHABLE):
            self._answers.lost(name, "its connection ended and it does not answer")

    def can_call(self, worker: str) -> bool:
        """Whether a worker has registered here."""
        return self._roster.get(worker) is not None

    # Lanes

    def _alone(self, experiment: str, job: Job) -> None:
        del experiment
        job(_nothing)

    def _in_turn(self, worker: str, job: Job) -> None:
        self._calls.setdefault(worker, Lane()).submit(job)

    def _work(self, experiment: str, job: Job) -> None:
        del experiment
        self._works.submit(job)

    def _beside(self, experiment: str, job: Job) -> None:
        del experiment
        self._evaluations.submit(job)

    def _clean(self, experiment: str, job: Job) -> None:
        self._work(experiment, job)

    # Calls to workers

    def _assign(self, command: do.Assign, done: Done) -> None:
        assigned = command.assigned
        entry = self._roster.get(assigned.worker)

        def failed(reason: str) -> None:
            if entry is not None and self._roster.is_dead(assigned.worker, entry):
                self._answers.call_failed(assigned.worker, reason)
            done()

        if entry is None:
            self._answers.not_registered(assigned.worker)
            done()
            return
        keeps = assigned.attempt.experiment in self._with_states
        files = assigned.model, assigned.optimizer_state
        snapshot = assigned.snapshot.file if assigned.snapshot is not None else None
        first, last = assigned.portion or (0, self._environment.timings.shard_samples)
        term, share = self._manager.term, assigned.share
        samples = max(1, int(share * (last - first)))
        task = TrainRequest(
            assigned.attempt,
            *files,
            keeps,
            term,
            snapshot,
            samples,
            assigned.portion,
            share,
            assigned.step,
            command.leading,
        )
        self._call(entry, "train", (task,), done, failed)

    def _cancel(self, command: do.Cancel, done: Done) -> None:
        entry = self._roster.get(command.worker)
        if entry is None:
            done()
        else:
            self._call(entry, "cancel", (command.attempt,), done, lambda _: done())

    def _hand_over(self, command: do.HandOver, done: Done) -> None:
        entry = self._roster.get(command.worker)
        if entry is None:
            done()
        else:
            self._call(entry, "hand_over", (command.attempt,), done, lambda _: done())

    def _call(
        self,
        entry: _Registered,
        method: str,
        args: tuple[Any, ...],
        done: Done,
        failed: Callable[[str], None],
    ) -> None:
        self._environment.network.call(
            self._manager,
            entry.address,
            method,
            *args,
            answered=lambda _: done(),
            failed=failed,
        )

    # Work on parameters

    def _prepare(self, command: do.Prepare, done: Done) -> None:
        name, spec = command.experiment, command.spec
        if spec.hands_on:
            self._with_states.add(name)

        def ready(model: PublishedFile, rest: Sequence[PublishedFile | None]) -> None:
            # As in a real manager: if a client cancelled the experiment meanwhile, the manager
            # released it.
            if not self._manager.core.state.experiments[name].life.state.ended:
                self._answers.prepared(
                    command,
                    dataset=fake_files.dataset(spec),
                    shard_samples=(self._environment.timings.shard_samples,) * spec.shards,
                    model=model,
                    outer=rest[0] if rest else None,
                    frozen=None,
                )
            done()

        def publish() -> None:
            if self.cannot_prepare:
                why, self.cannot_prepare = self.cannot_prepare, ""
                self._answers.failed(name, why, asked_wrongly=why == ASKED_WRONGLY)
                done()
                return
            if command.model is not None:
                ready(command.model, [command.outer])
                return
            outer = fake_files.first_outer(spec) if spec.outer.keeps_state else None
            self._put_version(name, 0, fake_files.first_model(spec), outer, ready, done)

        self._manager.after(self._takes(self._environment.timings.prepare_seconds), publish)

    def _adopt(self, command: do.Adopt, done: Done) -> None:
        """Find the updates of attempts that workers published but did not report."""

        def look() -> None:
            disk, workers = self._environment.disk, dict(command.attempts)
            store = disk.store(command.experiment)
            names = set(disk.names(self._manager.host, command.experiment)) - disk.damaged
            found: set[AttemptId] = set()
            for attempt, name, state in layout.published_updates(names, workers):
                if attempt in found or (state is None and self._keeps_states(command.experiment)):
                    continue
                kept = store.describe(state) if state is not None else None
                timings = self._environment.timings
                samples, steps = timings.shard_samples, timings.shard_steps
                update = update_of(store.describe(name), kept, samples, steps, 0.0)
                self._answers.adopted(workers[attempt], attempt, update)
                found.add(attempt)
            done()

        self._insist(look, done)

    def _keeps_states(self, experiment: str) -> bool:
        return self._manager.core.state.experiments[experiment].spec.hands_on

    def _gather(self, command: do.Gather, done: Done) -> None:
        """Do nothing: files hold digests here, and gathering changes no bytes."""
        del command
        done()

    def _aggregate(self, command: do.Aggregate, done: Done) -> None:
        timings = self._environment.timings
        seconds = timings.aggregate_seconds + timings.update_seconds * len(command.updates)

        def begin(model: bytes, outer: bytes | None) -> None:
            base = model, outer
            self._manager.after(self._takes(seconds), self._fold, command, base, done, {}, 0.0)

        def with_model(model: bytes) -> None:
            if command.outer is None:
                begin(model, None)
            else:
                outer = command.outer
                self._read(command.experiment, outer, lambda state: begin(model, state), done)

        versions = command.versions
        place = versions.index(command.model) if command.model in versions else 0
        leading = versions[:place]
        self._read_version(command.experiment, command.model, leading, with_model, done)

    def _fold(
        self,
        command: do.Aggregate,
        base: tuple[bytes, bytes | None],
        done: Done,
        unusable: Mapping[int, float],
        waited: float,
    ) -> None:
        """Read the updates of a round, and repeat that while one of them is unusable.

        Each update has its own patience, as in the real fold: `unusable` maps a shard to how long
        its update has been unusable.
        """
        name, number = command.experiment, command.round
        contents: list[tuple[int, bytes]] = []
        reasons: dict[int, str] = {}
        for shard, update in zip(command.shards, command.updates, strict=True):
            try:
                contents.append(
                    (shard, self._environment.disk.look(self._manager, name, update.file))
                )
            except (FileMissing, FileCorrupt) as error:
                reasons[shard] = str(error)
            except SharedDirectoryError:
                self._wait(partial(self._fold, command, base, done, unusable), done, waited)
                return
        if not reasons:

            def folded(model: PublishedFile, rest: Sequence[PublishedFile]) -> None:
                outer, own = (rest[0], rest[1:]) if command.outer is not None else (None, rest)
                self._answers.aggregated(command, model, outer, tuple(own))
                done()

            made, outer = _next_model(command, base[0], contents), base[1]
            if outer is not None:
                made, outer = fake_files.stepped(base[0], made, outer)
            own = _own(command, base[0], contents)
            content = made if command.whole else fake_files.step_file(base[0], made)
            self._put_version(name, number + 1, content, outer, folded, done, own)
            return
        patience = self._environment.disk.timings.patience_seconds
        if all(unusable.get(shard, 0.0) >= patience for shard in reasons):
            self._refuse(command, reasons)
            done()
            return
        still = {shard: unusable.get(shard, 0.0) + LOOK_AGAIN_SECONDS for shard in reasons}
        self._manager.after(LOOK_AGAIN_SECONDS, self._fold, command, base, done, still, 0.0)

    def _refuse(self, command: do.Aggregate, reasons: Mapping[int, str]) -> None:
        self._answers.refused(command, reasons)

    def _evaluate(self, command: do.Evaluate, done: Done) -> None:
        def measured(model: bytes) -> None:
            seconds = self._takes(self._environment.timings.evaluate_seconds)
            self._manager.after(seconds, report, seconds, fake_files.loss_of(model))

        def report(seconds: float, loss: float) -> None:
            evaluation = Evaluation(
                loss=loss, metrics={}, class_accuracy=(), samples=1, seconds=seconds
            )
            self._answers.evaluated(command, evaluation)
            done()

        self._read_version(command.experiment, command.model, command.leading, measured, done)

    def _publish(self, command: do.Publish, done: Done) -> None:
        name = command.experiment

        def published(file: PublishedFile) -> None:
            self._answers.published(command, file)
            done()

        def final(_: PublishedFile | None = None) -> None:
            self._publish_as(
                layout.FINAL_NAME, name, command.model, command.leading, published, done
            )

        if command.best is None:
            final()
        else:
            self._publish_as(layout.BEST_NAME, name, command.best, (), final, done)

    def _dismiss(self, worker: str) -> None:
        self._roster.remove(worker)

    def _discard(self, command: do.Discard, done: Done) -> None:
        for file in command.files:
            self._environment.disk.delete(self._manager.host, command.experiment, file.name)
        done()

    def _conclude(self, command: do.Conclude, done: Done) -> None:
        self._sweep(command.experiment, command.ending, command.kept, command.versions)
        done()

    def _sweep(
        self,
        experiment: str,
        ending: ExperimentState,
        kept: Iterable[PublishedFile],
        versions: Collection[PublishedFile],
    ) -> None:
        finished = ending is ExperimentState.FINISHED
        rule = partial(layout.left_over, finished=finished, kept=kept, versions=versions)
        self._environment.disk.sweep(
            self._manager.host, experiment, lambda name: bool(rule([name]))
        )


def _next_model(command: do.Aggregate, base: bytes, contents: Sequence[tuple[int, bytes]]) -> bytes:
    if command.in_step:
        return fake_files.folded(base, contents)
    weighed = zip(contents, command.pushes, strict=True)
    pushes = [(shard, made, push.weight) for (shard, made), push in weighed]
    return fake_files.moved(base, pushes, mixes=command.mixes)


def _own(
    command: do.Aggregate, model: bytes, contents: Sequence[tuple[int, bytes]]
) -> dict[int, bytes]:
    """Return the next parameters of shards that keep their own."""
    met = zip(contents, command.pushes, strict=True) if command.elastic else ()
    return {n: fake_files.own_after(model, made, push.weight) for (n, made), push in met}


def _nothing() -> None:
    """Have nothing to do next."""
