"""Runs the core's commands: each in another thread, each coming back as an event.

`core/node/effects.py` says which commands wait for each other; here each lane has threads of its
own. Calls to workers are short and many; work on parameters is long and rare.

Failures come back as events, too. A worker that cannot be called is lost. Work that fails ends its
experiment, except the removal of files, which costs no more than their space. A shared directory
that is gone, full or closed is no failure of an experiment: the store retries, and when its retries
end, the manager ends and leaves everything to the next one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event, Thread

from downpour.base.errors import (
    DownpourError,
    OtherCode,
    ProtocolError,
    SharedDirectoryError,
    SpecError,
    StoreError,
    UpdatesRefused,
)
from downpour.base.states import ExperimentState
from downpour.cluster.manager import work
from downpour.cluster.manager.archive import Archive
from downpour.cluster.manager.counters import Counters
from downpour.cluster.manager.ordered_calls import OrderedCalls
from downpour.cluster.manager.persistence import Persistence
from downpour.cluster.manager.rehearsal import rehearse
from downpour.cluster.manager.roster import Roster
from downpour.cluster.manager.serial_executor import SerialExecutor
from downpour.cluster.manager.takeover import RecoveredState
from downpour.cluster.manager.workspace import Workspace
from downpour.core.node.answers import Answers
from downpour.core.node.effects import Effects
from downpour.core.scheduler import Entry, Output, Scheduler, facts
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.files.store import find_updates
from downpour.files.store.leaders import Leader
from downpour.learning.blame import describe_error, is_of_users_code, users_errors
from downpour.network.rpc.messages import TaskMessage
from downpour.predictor.forecaster import Forecaster

log = logging.getLogger(__name__)

CALLS_AT_ONCE = 8
"""Enough to keep the workers busy; a call takes a fraction of a millisecond of this process."""

_BUCKET_LOOKS = 5
"""One look in this many is at a bucket, where each look is a request."""

_HELD_SECONDS = 2.0
"""Between two looks at a factory's files: a person puts them back, so nothing is won by haste."""

Post = Callable[[on.Event], object]
OnDeath = Callable[[DownpourError], None]

_CLOSING_SECONDS = 30.0
"""For work that runs when the manager ends: its result is lost, and the next manager repeats it."""


class CommandRunner(Effects[[]]):
    """The driver's command sink in a real manager.

    Args:
        roster: the workers that can be called.
        forecaster: forecasts how long they take.
        data_dir: a folder with datasets, if there is one.
        archive: lists the experiments that have ended.
        rehearses: whether a user's code is tried in a process of its own first.
        gone_seconds: how long an experiment is held up whose folder is gone, before it fails.
        on_death: called with the reason if nothing can be done any more.
    """

    def __init__(
        self,
        roster: Roster,
        forecaster: Forecaster,
        data_dir: Path | None,
        archive: Archive,
        *,
        rehearses: bool = False,
        gone_seconds: float = 60.0,
        on_death: OnDeath = lambda _: None,
    ) -> None:
        self._rehearses = rehearses
        self._gone_seconds = gone_seconds
        self._gone_since: dict[str, float] = {}
        self._looks = count()
        self._on_death = on_death
        self._leader: Leader | None = None
        self._closing = Event()
        self._roster = roster
        self._forecaster = forecaster
        self._data_dir = data_dir
        self._archive = archive
        self._calls = OrderedCalls(CALLS_AT_ONCE)
        self._works = SerialExecutor("work")
        self._evaluations = SerialExecutor("evaluation")
        self._spaces: dict[str, Workspace] = {}
        self._held: set[str] = set()
        self._persistence = Persistence(self._spaces, roster, archive)

    def attach(self, post: Post, clock: Callable[[], float]) -> None:
        """Set where events go, and the clock of their times; called before the first command."""
        self._answers = Answers(post, clock)

    def take_up(self, recovered: RecoveredState, leader: Leader) -> None:
        """Continue, as the leader, the experiments of an earlier manager."""
        self._leader = leader
        self._spaces.update((space.experiment, space) for space in recovered.spaces)
        self._persistence = Persistence(
            self._spaces, self._roster, self._archive, recovered.next_order
        )
        self._persistence.recorder.go_on(dict(recovered.submitted_at))

    def open(self, space: Workspace) -> None:
        """Add a new experiment's workspace, before its submission reaches the core."""
        self._spaces[space.experiment] = space

    def space(self, experiment: str) -> Workspace | None:
        """Return an experiment's workspace, or None if there is no such experiment."""
        return self._spaces.get(experiment)

    def look(self) -> None:
        """Check whether the folders of experiments that have not ended still exist.

        An experiment whose folder is gone is held up, and fails when that lasts too long: others
        wait for their turn behind it. Its last version can be resumed if the folder comes back.
        """
        asks_bucket = next(self._looks) % _BUCKET_LOOKS == 0
        for space in list(self._spaces.values()):
            if space.concluded:
                self._gone_since.pop(space.experiment, None)
            elif space.shared.bucket is None or (asks_bucket and space.prepared is not None):
                space.look()
                self._hold_up(space)

    def _hold_up(self, space: Workspace) -> None:
        """Say once that an experiment is held up; give it up when that lasts too long."""
        experiment, now = space.experiment, time.monotonic()
        if not space.is_gone:
            if self._gone_since.pop(experiment, None) is not None:
                log.warning("%s goes on: its folder is back", experiment)
        elif experiment not in self._gone_since:
            self._gone_since[experiment] = now
            log.warning("%s is held up: %s", experiment, space.gone_reason)
        # One that waits for its turn holds up no other; it fails when it is prepared.
        elif space.prepared and now - self._gone_since[experiment] >= self._gone_seconds:
            self._give_up(space)

    def _give_up(self, space: Workspace) -> None:
        """Fail an experiment whose folder is gone; all others go on."""
        log.warning("%s fails: %s", space.experiment, space.gone_reason)
        self._answers.failed(space.experiment, space.gone_reason, asked_wrongly=False)

    @property
    def term(self) -> int:
        """The manager's term; that of a run counts its restarts."""
        return self._leader.term if self._leader is not None else 0

    @property
    def counters(self) -> Counters:
        """What was recorded since this manager started; for the driver's thread."""
        return self._persistence.recorder.counters

    def close(self) -> None:
        """Wait for what is running, begin nothing more; no command may follow."""
        # First, because `_die` and the wait of a held experiment ask it: a directory that fails
        # while the manager closes is no second reason to end, and no preparation begins any more.
        self._closing.set()
        self._calls.close()
        self._works.close(_CLOSING_SECONDS)
        self._evaluations.close(_CLOSING_SECONDS)
        for space in self._spaces.values():
            # What is written here was not committed, so nothing was acknowledged for it.
            with suppress(StoreError):
                space.close()
                # A run that closes has ended its experiments; `_conclude` may not have come yet.
                space.forget_journal()

    def forecasts(self, at_seconds: float) -> on.Forecasts | None:
        """Return new forecasts, if there are any; see `Forecaster`."""
        return self._forecaster.forecasts(at_seconds)

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        """Gather what must be persisted, see `Persistence`; the forecaster learns from it."""
        self._forecaster.follow(core, event, output)
        return self._persistence.keep(core, event, output)

    def commit(self) -> None:
        """Make it durable; see `Persistence`."""
        self._persistence.commit()

    def carry_out(self, commands: Sequence[do.Command]) -> None:
        """Start the commands."""
        for command in commands:
            self.start(command)

    # Lanes

    def _alone(self, experiment: str, job: Callable[[], None]) -> None:
        lane = SerialExecutor("preparation")
        self._submit(lane, experiment, job)
        lane.finish()

    def _in_turn(self, worker: str, job: Callable[[], None]) -> None:
        self._calls.submit(worker, job)

    def _work(self, experiment: str, job: Callable[[], None]) -> None:
        self._submit(self._works, experiment, job)

    def _beside(self, experiment: str, job: Callable[[], None]) -> None:
        self._submit(self._evaluations, experiment, job)

    def _clean(self, experiment: str, job: Callable[[], None]) -> None:
        """Remove files; if that fails they are left over, and the experiment goes on."""

        def guarded() -> None:
            try:
                job()
            except (DownpourError, OSError) as error:
                log.warning("%s: files are left over: %s", experiment, error)

        self._works.submit(guarded)

    def _submit(self, lane: SerialExecutor, experiment: str, job: Callable[[], None]) -> None:
        """Run long work; if it fails, its experiment fails."""

        def guarded() -> None:
            try:
                job()
            except SharedDirectoryError as error:
                self._give_up_or_die(experiment, error)
            except users_errors() as error:  # becomes the experiment's failure
                self._fail(experiment, error)

        lane.submit(guarded)

    def _give_up_or_die(self, experiment: str, error: SharedDirectoryError) -> None:
        """Fail one experiment if its folder alone is gone; else nothing can be done any more."""
        space = self._spaces[experiment]
        space.look()
        if space.is_gone:
            self._give_up(space)
        else:
            self._die(error)

    def _die(self, error: SharedDirectoryError) -> None:
        if not self._closing.is_set():
            self._on_death(error)

    def _fail(self, experiment: str, error: BaseException) -> None:
        """Report to the core that work of an experiment has failed."""
        known = isinstance(error, DownpourError) and not is_of_users_code(error)
        level = logging.INFO if known else logging.ERROR
        log.log(level, "%s: %s", experiment, error, exc_info=None if known else error)
        where = "" if known else "; the manager's log has the traceback"
        reason = describe_error(error) + where
        self._answers.failed(experiment, reason, asked_wrongly=isinstance(error, SpecError))

    # Calls to workers

    def _assign(self, assigned: facts.Assigned) -> None:
        entry = self._roster.get(assigned.worker)
        if entry is None:
            self._answers.not_registered(assigned.worker)
            return
        try:
            entry.client.train(self._task(assigned))
        except ProtocolError as error:
            # The worker may have registered again meanwhile, and the call went to its old address:
            # the core knows the new registration, and assigns to it by itself.
            if self._roster.is_dead(assigned.worker, entry):
                self._answers.call_failed(assigned.worker, error)
        # From `_task`, which publishes the indices of a shard that is too large for a message.
        except SharedDirectoryError as error:
            self._give_up_or_die(assigned.attempt.experiment, error)
        except Exception as error:  # noqa: BLE001 - becomes the attempt's failure
            log.warning("%s: could not be assigned: %s", assigned.attempt, error)
            self._answers.not_assigned(assigned, str(error))

    def _cancel(self, command: do.Cancel) -> None:
        """Best effort: the reply to the worker's next heartbeat repeats it."""
        try:
            self._roster.client(command.worker).cancel(command.attempt)
        except ProtocolError as error:
            log.info("%s: the cancellation failed: %s", command.worker, error)

    def _hand_over(self, command: do.HandOver) -> None:
        """Best effort: the policy sees that the attempt goes on, and may decide again."""
        try:
            self._roster.client(command.worker).hand_over(command.attempt)
        except ProtocolError as error:
            log.info("%s: the request to hand over failed: %s", command.worker, error)

    def _task(self, assigned: facts.Assigned) -> TaskMessage:
        task = work.task_of(
            self._spaces[assigned.attempt.experiment],
            assigned.attempt,
            assigned.model,
            portion=assigned.portion,
            share=assigned.share,
            optimizer_state=assigned.optimizer_state,
        )
        return replace(task, snapshot=assigned.snapshot, term=self.term)

    # Work on parameters

    def _prepare(self, command: do.Prepare) -> None:
        space = self._spaces[command.experiment]
        if self._rehearses and space.spec.factories and command.model is None:
            rehearse(space.spec, space.shared.datasets, self._data_dir)
        try:
            made = work.prepare(space, self._data_dir, command)
        except OtherCode as error:
            self._hold(command, error)
            return
        # Cancelled meanwhile: `_conclude` has released what the experiment held, and to set it
        # again would keep a dataset and a network in memory until the manager ends.
        if space.concluded:
            return
        space.prepared, space.global_model = made, made.drawn
        self._answers.prepared(
            command,
            dataset=made.dataset_key,
            shard_samples=tuple(len(shard) for shard in made.shards),
            model=made.model,
            outer=made.outer,
            frozen=made.frozen,
        )

    def _hold(self, command: do.Prepare, error: OtherCode) -> None:
        """Hold an experiment until its code is back: failing it would lose what was trained."""
        # Logged once, because the files are looked at again every two seconds.
        if command.experiment not in self._held:
            self._held.add(command.experiment)
            log.warning("%s is held: %s; restore the code, or cancel it", command.experiment, error)

        def again() -> None:
            # Both are asked after the wait: the experiment may have been cancelled meanwhile.
            if not (self._closing.wait(_HELD_SECONDS) or self._is_over(command.experiment)):
                self.start(command)

        Thread(target=again, name="held", daemon=True).start()

    def _is_over(self, experiment: str) -> bool:
        return self._spaces[experiment].concluded

    def _adopt(self, command: do.Adopt) -> None:
        workers = dict(command.attempts)
        for attempt, update in find_updates(self._spaces[command.experiment].store, workers):
            log.info("%s was published by %s and not reported; adopted", attempt, workers[attempt])
            self._answers.adopted(workers[attempt], attempt, update)

    def _aggregate(self, command: do.Aggregate) -> None:
        space = self._spaces[command.experiment]
        try:
            made = work.aggregate(space, command)
        except UpdatesRefused as refused:
            self._answers.refused(command, refused.reasons)
        else:
            self._answers.aggregated(command, made.model, made.outer, made.own)

    def _evaluate(self, command: do.Evaluate) -> None:
        space = self._spaces[command.experiment]
        if space.prepared is None:
            return  # the experiment has ended meanwhile
        self._answers.evaluated(command, work.measure(space, command))

    def _publish(self, command: do.Publish) -> None:
        model = work.publish(self._spaces[command.experiment], command)
        self._answers.published(command, model)

    def _dismiss(self, worker: str) -> None:
        self._roster.strike(worker)

    def _discard(self, command: do.Discard) -> None:
        space = self._spaces[command.experiment]
        space.versions.forget(command.files)
        for file in command.files:
            space.store.delete(file.name)

    def _conclude(self, command: do.Conclude) -> None:
        space = self._spaces[command.experiment]
        space.close()
        space.prepared = space.global_model = None
        space.index_files.clear()
        space.versions.clear()
        if not space.is_gone:
            work.sweep(space.store, finished=command.ending is ExperimentState.FINISHED)
            space.forget_journal()
        # Last: the next manager does not look at a folder in this list, so one that could not be
        # cleaned up must not be in it.
        self._archive.end(command.experiment)
