"""Runs the core's commands in other threads, and posts each result as an event.

`core/node/effects.py` says which commands wait for each other; `lanes.py` has the threads. Calls to
workers are short and frequent; work on parameters is long and rare.

Failures come back as events, too. If a call to a worker fails, the worker is lost. If work fails,
its experiment fails, except after a failed removal of files, which only costs space. An experiment
does not fail because the shared directory is gone, full or closed. The store retries, and when its
retries end, the manager ends and leaves everything to the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
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
from downpour.cluster.manager.lanes import Lanes
from downpour.cluster.manager.rehearsal import Rehearsal
from downpour.cluster.manager.roster import Roster
from downpour.cluster.manager.workspace import Workspaces
from downpour.core.node.effects import Answers, Effects
from downpour.core.scheduler import commands as do
from downpour.files.store import find_updates
from downpour.learning.blame import describe_error, is_of_users_code, users_errors
from downpour.network.rpc.messages import TaskMessage

log = logging.getLogger(__name__)

_HELD_SECONDS = 2.0
"""The time between two looks at a factory's files. A person restores them, so there is no hurry."""

OnDeath = Callable[[DownpourError], None]


class CommandRunner(Effects[[]]):
    """Carries out the commands of a manager.

    Args:
        spaces: the workspaces of the experiments.
        roster: the workers that can be called.
        archive: lists the experiments that have ended.
        answers: receives the outcome of each command, as an event.
        term: the manager's term.
        data_dir: a folder with datasets, if there is one.
        rehearses: whether to try a user's code in a separate process first.
        on_death: called with the reason if the manager can do no more work.
    """

    def __init__(
        self,
        spaces: Workspaces,
        roster: Roster,
        archive: Archive,
        answers: Answers,
        *,
        term: int = 0,
        data_dir: Path | None = None,
        rehearses: bool = False,
        on_death: OnDeath = lambda _: None,
    ) -> None:
        self._spaces = spaces
        self._roster = roster
        self._archive = archive
        self._answers = answers
        self._term = term
        self._data_dir = data_dir
        self._rehearses = rehearses
        self._on_death = on_death
        self._closing = Event()
        self._lanes = Lanes()
        self._held: set[str] = set()

    def close(self) -> None:
        """Wait for running work, and begin no more; no command may follow."""
        # First, because `_die` and a held experiment's wait check it. If the directory fails while
        # the manager closes, that is no second reason to end, and no preparation may begin any
        # more.
        self._closing.set()
        self._lanes.close()
        for space in self._spaces.values():
            # No acknowledgement depends on these writes, because no commit covers them.
            with suppress(StoreError):
                space.close()
                # A run that closes has ended its experiments. `_conclude` may not have come yet.
                has_ended = space.concluded or space.run_lock is not None
                if has_ended and not space.is_gone:
                    space.finish()

    # Lanes

    def _alone(self, experiment: str, job: Callable[[], None]) -> None:
        self._lanes.alone(self._guarded(experiment, job))

    def _in_turn(self, worker: str, job: Callable[[], None]) -> None:
        self._lanes.call(worker, job)

    def _work(self, experiment: str, job: Callable[[], None]) -> None:
        self._lanes.work(self._guarded(experiment, job))

    def _beside(self, experiment: str, job: Callable[[], None]) -> None:
        self._lanes.beside(self._guarded(experiment, job))

    def _clean(self, experiment: str, job: Callable[[], None]) -> None:
        """Remove files; if that fails, the files stay and the experiment goes on."""

        def guarded() -> None:
            try:
                job()
            except (DownpourError, OSError) as error:
                log.warning("%s: could not remove all files: %s", experiment, error)

        self._lanes.work(guarded)

    def _guarded(self, experiment: str, job: Callable[[], None]) -> Callable[[], None]:
        """Return the long work, wrapped so that its failure fails the experiment."""

        def guarded() -> None:
            try:
                job()
            except SharedDirectoryError as error:
                self._give_up_or_die(experiment, error)
            except users_errors() as error:  # becomes the experiment's failure
                self._fail(experiment, error)

        return guarded

    def _give_up_or_die(self, experiment: str, error: SharedDirectoryError) -> None:
        """Fail one experiment if only its folder is gone; otherwise end the manager."""
        if not self._spaces.gives_up(experiment) and not self._closing.is_set():
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

    def _assign(self, command: do.Assign) -> None:
        assigned = command.assigned
        entry = self._roster.get(assigned.worker)
        if entry is None:
            self._answers.not_registered(assigned.worker)
            return
        try:
            entry.client.train(self._task(command))
        except ProtocolError as error:
            # The worker may have registered again in the meantime, so that the call went to its old
            # address. The core knows the new registration, and assigns to it without our help.
            if self._roster.is_dead(assigned.worker, entry):
                self._answers.call_failed(assigned.worker, error)
        # `_task` raises this: it publishes the indices of a shard that is too large for a message.
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

    def _task(self, command: do.Assign) -> TaskMessage:
        assigned = command.assigned
        space = self._spaces[assigned.attempt.experiment]
        task = work.task_of(
            space,
            assigned.attempt,
            assigned.model,
            leading=command.leading,
            portion=assigned.portion,
            share=assigned.share,
            optimizer_state=assigned.optimizer_state,
            step=assigned.step,
        )
        whole = None
        if command.in_one:
            # If we can't make that one either, the attempt tries the files once more.
            with suppress(StoreError):
                whole = work.in_one_file(space, assigned.model, command.leading)
        return replace(task, snapshot=assigned.snapshot, term=self._term, whole=whole)

    # Work on parameters

    def _prepare(self, command: do.Prepare) -> None:
        space = self._spaces[command.experiment]
        rehearsal = None
        if self._rehearses and space.spec.factories and command.model is None:
            rehearsal = Rehearsal(space.spec, space.shared.datasets, self._data_dir)
            rehearsal.rehearse()
        try:
            made = work.prepare(space, self._data_dir, command)
        except OtherCode as error:
            self._hold(command, error)
            return
        if rehearsal is not None:
            rehearsed = rehearsal.agrees(made.dataset_key, made.begun.drawn)
            made = replace(made, rehearsed=rehearsed)
        # Someone cancelled it meanwhile, and `_conclude` has freed its memory. Setting it again
        # would keep a dataset and a network in memory until the manager ends.
        if space.concluded:
            return
        space.prepared, space.global_model = made, made.begun.drawn
        self._answers.prepared(
            command,
            dataset=made.dataset_key,
            shard_samples=tuple(len(shard) for shard in made.shards),
            model=made.begun.model,
            outer=made.begun.outer,
            frozen=made.begun.frozen,
            trial=made.begun.trial,
            handed_on=made.begun.handed_on,
        )

    def _hold(self, command: do.Prepare, error: OtherCode) -> None:
        """Hold an experiment until its code is back: failing it would lose its training."""
        # Log it once only, because we look at the files every two seconds.
        if command.experiment not in self._held:
            self._held.add(command.experiment)
            log.warning("%s is held: %s; restore the code, or cancel it", command.experiment, error)

        def again() -> None:
            # Check both after the wait, because a user may have cancelled the experiment meanwhile.
            closing = self._closing.wait(_HELD_SECONDS)
            if not (closing or self._spaces[command.experiment].concluded):
                self.start(command)

        Thread(target=again, name="held", daemon=True).start()

    def _adopt(self, command: do.Adopt) -> None:
        workers = dict(command.attempts)
        for attempt, update in find_updates(self._spaces[command.experiment].store, workers):
            log.info(
                "adopted %s, which %s had published but not reported", attempt, workers[attempt]
            )
            self._answers.adopted(workers[attempt], attempt, update)

    def _gather(self, command: do.Gather) -> None:
        space = self._spaces[command.experiment]
        space.arrived[command.shard] = command
        # If more work waits, updates come faster than we add them. One pass over several updates
        # costs less than one pass each, and the aggregation's own pass adds all that remain.
        if not self._lanes.work_waits:
            work.gather(space)

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
        copies = [space.copies.pop(file) for file in command.files if file in space.copies]
        for file in (*command.files, *copies):
            space.store.delete(file.name)

    def _conclude(self, command: do.Conclude) -> None:
        space = self._spaces[command.experiment]
        space.close()
        space.release()
        if not space.is_gone:
            space.finish()
            finished = command.ending is ExperimentState.FINISHED
            work.sweep(space.store, finished=finished, kept=command.kept, versions=command.versions)
        # This comes last, because the next manager does not look at folders in this list. A folder
        # that we could not clean up must not be in it.
        self._archive.end(command.experiment)
