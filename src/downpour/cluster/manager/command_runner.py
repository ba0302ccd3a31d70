"""Carries out the core's commands, and posts each result as an event.

`CommandRunner.start` says which commands wait for each other. A manager's lanes are threads
(`host/process.py`). The simulator's take virtual time, and it runs this file as it is. So if
commands can overtake each other in the manager, they can do so in the simulator.

Failures come back as events, too. If a call to a worker fails, the worker is lost. If work fails,
its experiment fails, except after a failed removal of files, which only costs space. An experiment
does not fail because the shared directory is gone, full or closed. The store retries, and when its
retries end, the manager ends and leaves everything to the next one.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Event, Thread
from typing import Any, Protocol, assert_never

import numpy as np

from downpour.base import errors, states, values
from downpour.cluster.manager import status, work, workspace
from downpour.cluster.manager.work import ready
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.files.store import find_updates, layout
from downpour.host.process import Job, Lanes
from downpour.learning.blame import describe_error, is_of_users_code, users_errors
from downpour.network.rpc import messages

log = logging.getLogger(__name__)

_SENT_BYTES_MAX = 2**17
"""16,384 indices of 8 bytes. A message takes them along in every round; a file is read once."""


def task_of(
    space: workspace.Workspace,
    attempt: values.AttemptId,
    model: values.PublishedFile,
    *,
    portion: tuple[int, int] | None = None,
    leading: Sequence[values.PublishedFile] = (),
    share: float = 1.0,
    optimizer_state: values.PublishedFile | None = None,
    step: values.PublishedFile | None = None,
) -> messages.TaskMessage:
    """Return the message of an unbegun task; the `leading` versions' steps lead to its model."""
    made = ready(space)
    return messages.TaskMessage(
        id=attempt,
        spec=space.spec_file,
        dataset=made.dataset_key,
        model=model,
        indices=indices_of(space, attempt.shard, portion),
        optimizer_state=optimizer_state,
        frozen=made.begun.frozen,
        share=share,
        step=step,
        leading=tuple(leading),
        trial=made.begun.trial,
    )


def indices_of(
    space: workspace.Workspace, shard: int, portion: tuple[int, int] | None
) -> messages.IndexArray | messages.IndicesFile:
    """Return a shard's indices as they travel: in the message, or as a file if there are many.

    If the round was recut, a `portion` is a slice of all shards' indices in a row, for one message.
    """
    shards, key = ready(space).shards, (shard, portion)
    if key in space.index_files:
        return space.index_files[key]
    indices = shards[shard] if portion is None else _slice(shards, *portion)
    if indices.nbytes <= (_SENT_BYTES_MAX if portion is None else messages.PACKED_BYTES_MAX):
        return indices
    # Two threads may get here for copies of a shard; the end of the experiment removes both files.
    width, packed = messages.pack_indices(indices)
    file = space.store.put_new(layout.indices_name(shard, space.token(3)), [packed])
    space.index_files[key] = messages.IndicesFile(width_bytes=width, count=indices.size, file=file)
    return space.index_files[key]


def _slice(shards: Sequence[messages.IndexArray], begin: int, end: int) -> messages.IndexArray:
    """Return a slice of all shards in a row, without making that row."""
    taken, before = [], 0
    for shard in shards:
        taken.append(shard[max(begin - before, 0) : max(end - before, 0)])
        before += len(shard)
    return np.concatenate(taken)


_HELD_SECONDS = 2.0
"""The time between two looks at a factory's files. A person restores them, so there is no hurry."""


OnDeath = Callable[[errors.DownpourError], None]
Prepare = Callable[[workspace.Workspace, out.Prepare], workspace.PreparedExperiment]


class EventQueue(Protocol):
    """Takes the results of commands; a `Driver`, or a simulated manager."""

    @property
    def now_seconds(self) -> float:
        """Experiment time."""

    def post(self, event: on.Event) -> object:
        """Hand an event to the core."""


@dataclass(eq=False)
class CommandRunner:
    """Carries out the commands of a manager; the `queue` gets the outcome of each, as an event.

    `on_end` is called with the name of an experiment that has ended and is cleaned up, and
    `on_death` with the reason if the manager can do no more work.
    """

    spaces: workspace.Workspaces
    roster: status.Roster
    queue: EventQueue
    lanes: Lanes
    prepare: Prepare
    on_end: Callable[[str], object]
    term: int = 0
    on_death: OnDeath = lambda _: None
    _closing: Event = field(init=False, default_factory=Event)
    _held: set[str] = field(init=False, default_factory=set)

    def start(self, command: out.Command) -> None:  # noqa: C901 - one arm a command
        """Begin to carry out a command.

        - Calls to one worker keep their order; calls to others do not wait.
        - Work on parameters runs one after the other. Evaluations run beside it, because workers
          train the next round meanwhile, whose aggregation must not wait for one.
        - A preparation begins at once, because it may hang in a download or in a user's code.
        """
        lanes = self.lanes
        match command:
            case out.Prepare():
                lanes.alone(self._job(self._prepare, command))
            case out.Assign():
                lanes.call(command.assigned.worker, partial(self._assign, command))
            case out.Cancel() | out.HandOver():
                lanes.call(command.worker, partial(self._tell, command))
            case out.Gather():
                lanes.work(self._job(self._gather, command))
            case out.Aggregate():
                lanes.work(self._job(self._aggregate, command))
            case out.Evaluate():
                lanes.beside(self._job(self._evaluate, command))
            case out.Publish():
                lanes.work(self._job(self._publish, command))
            case out.Adopt():
                lanes.work(self._job(self._adopt, command))
            case out.Discard():
                lanes.work(self._removal(self._discard, command))
            case out.Conclude():
                lanes.work(self._removal(self._conclude, command))
            case out.Dismiss():
                # This doesn't wait behind the worker's other calls. Closing the worker's client
                # ends the call in flight, which would otherwise occupy a thread until its deadline.
                self.roster.strike(command.worker)
            case _:
                assert_never(command)

    def close(self) -> None:
        """Wait for running work, and begin no more; no command may follow."""
        # First, because `_give_up_or_die` and a held experiment's wait check it: a directory that
        # fails now is no second reason to end, and no preparation may begin any more.
        self._closing.set()
        self.lanes.close()
        for space in self.spaces.values():
            # No acknowledgement depends on these writes, because no commit covers them.
            with suppress(errors.StoreError):
                space.close()
                # A run that closes has ended its experiments. `_conclude` may not have come yet.
                has_ended = space.concluded or space.run_lock is not None
                if has_ended and not space.is_gone:
                    space.finish()

    def _job(self, act: Callable[[Any], on.Event | None], command: Any) -> Job:
        """Return long work, whose result is posted and whose failure fails the experiment."""

        def job() -> None:
            try:
                event = act(command)
            except errors.SharedDirectoryError as error:
                self._give_up_or_die(command.experiment, error)
            except users_errors() as error:  # becomes the experiment's failure
                self._fail(command.experiment, error)
            else:
                if event is not None:
                    self.queue.post(event)

        return job

    def _removal(self, act: Callable[[Any], None], command: Any) -> Job:
        """Return the removal of files; if it fails, the files stay and the experiment goes on."""

        def job() -> None:
            try:
                act(command)
            except (errors.DownpourError, OSError) as error:
                log.warning("%s: could not remove all files: %s", command.experiment, error)

        return job

    def _give_up_or_die(self, experiment: str, error: errors.SharedDirectoryError) -> None:
        """Fail one experiment if only its folder is gone; otherwise end the manager."""
        if not self.spaces.gives_up(experiment) and not self._closing.is_set():
            self.on_death(error)

    def _fail(self, experiment: str, error: BaseException) -> None:
        """Report to the core that work of an experiment has failed."""
        is_ours = isinstance(error, errors.DownpourError) and not is_of_users_code(error)
        level = logging.INFO if is_ours else logging.ERROR
        log.log(level, "%s: %s", experiment, error, exc_info=None if is_ours else error)
        where = "" if is_ours else "; the manager's log has the traceback"
        self.queue.post(
            on.EffectFailed(
                at_seconds=self.queue.now_seconds,
                experiment=experiment,
                reason=describe_error(error) + where,
                asked_wrongly=isinstance(error, errors.SpecError),
            )
        )

    # Calls to workers

    def _assign(self, command: out.Assign) -> None:
        assigned, now = command.assigned, self.queue.now_seconds
        worker, entry = assigned.worker, self.roster.get(assigned.worker)
        if entry is None:
            # The manager dismissed it while this call waited behind others.
            reason = "it is not registered"
            self.queue.post(on.WorkerLeft(at_seconds=now, worker=worker, reason=reason))
            return
        try:
            entry.client.train(self._task(command))
        except errors.ProtocolError as error:
            # The worker may have registered again in the meantime, so that the call went to its old
            # address. The core knows the new registration, and assigns to it without our help.
            if self.roster.is_dead(worker, entry):
                now, reason = self.queue.now_seconds, f"the call failed: {error}"
                self.queue.post(on.WorkerLost(at_seconds=now, worker=worker, reason=reason))
        # `_task` raises this: it publishes the indices of a shard that has many.
        except errors.SharedDirectoryError as error:
            self._give_up_or_die(assigned.attempt.experiment, error)
        except Exception as error:  # noqa: BLE001 - becomes the attempt's failure
            log.warning("%s: could not be assigned: %s", assigned.attempt, error)
            self.queue.post(
                on.AttemptFailed(
                    at_seconds=self.queue.now_seconds,
                    worker=worker,
                    attempt=assigned.attempt,
                    failure=states.FailureKind.LOST,
                    reason=str(error),
                )
            )

    def _tell(self, command: out.Cancel | out.HandOver) -> None:
        """Best effort: the answer to a heartbeat repeats a cancellation, and a policy its wish."""
        entry = self.roster.get(command.worker)
        try:
            if entry is not None and isinstance(command, out.Cancel):
                entry.client.cancel(command.attempt)
            elif entry is not None:
                entry.client.hand_over(command.attempt)
        except errors.ProtocolError as error:
            log.info("%s: %s failed: %s", command.worker, command, error)

    def _task(self, command: out.Assign) -> messages.TaskMessage:
        assigned = command.assigned
        space = self.spaces[assigned.attempt.experiment]
        if command.unread:  # then this publishes the indices again
            space.index_files.pop((assigned.attempt.shard, assigned.portion), None)
        task = task_of(
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
        if command.unread and command.leading:
            # If we can't make that one either, the attempt tries the files once more.
            with suppress(errors.StoreError):
                whole = work.in_one_file(space, assigned.model, command.leading)
        return replace(task, snapshot=assigned.snapshot, term=self.term, whole=whole)

    # Work on parameters

    def _prepare(self, command: out.Prepare) -> on.Prepared | None:
        space = self.spaces[command.experiment]
        try:
            made = self.prepare(space, command)
        except errors.OtherCode as error:
            self._hold(command, error)
            return None
        # Someone cancelled it meanwhile, and `_conclude` has freed its memory. Setting it again
        # would keep a dataset and a network in memory until the manager ends.
        if space.concluded:
            return None
        begun = made.begun
        space.prepared, space.global_model = made, begun.drawn
        return on.Prepared(
            at_seconds=self.queue.now_seconds,
            experiment=command.experiment,
            dataset=made.dataset_key,
            shard_samples=tuple(len(shard) for shard in made.shards),
            model=begun.model,
            frozen=begun.frozen,
            trial=begun.trial,
            outer=begun.outer,
            handed_on=begun.handed_on,
        )

    def _hold(self, command: out.Prepare, error: errors.OtherCode) -> None:
        """Hold an experiment until its code is back: failing it would lose its training."""
        # Log it once only, because we look at the files every two seconds.
        if command.experiment not in self._held:
            self._held.add(command.experiment)
            log.warning("%s is held: %s; restore the code, or cancel it", command.experiment, error)

        def again() -> None:
            # Check both after the wait, because a user may have cancelled the experiment meanwhile.
            closing = self._closing.wait(_HELD_SECONDS)
            if not (closing or self.spaces[command.experiment].concluded):
                self.start(command)

        Thread(target=again, name="held", daemon=True).start()

    def _adopt(self, command: out.Adopt) -> None:
        """Find updates that workers have published but not reported."""
        workers = dict(command.attempts)
        for attempt, update in find_updates(self.spaces[command.experiment].store, workers):
            worker = workers[attempt]
            log.info("adopted %s, which %s had published but not reported", attempt, worker)
            now = self.queue.now_seconds
            self.queue.post(
                on.UpdatePublished(at_seconds=now, worker=worker, attempt=attempt, update=update)
            )

    def _gather(self, command: out.Gather) -> None:
        aggregation = self.spaces[command.experiment].aggregation
        aggregation.arrived[command.shard] = command
        # If more work waits, updates come faster than we add them. One pass over several updates
        # costs less than one pass each, and the aggregation's own pass adds all that remain.
        if not self.lanes.work_waits:
            aggregation.gather()

    def _aggregate(self, command: out.Aggregate) -> on.Event:
        try:
            made = work.aggregate(self.spaces[command.experiment], command)
        except errors.UpdatesRefused as error:
            return self._refusal(command, error.reasons)
        return on.Aggregated(
            at_seconds=self.queue.now_seconds,
            experiment=command.experiment,
            round=command.round,
            model=made.model,
            outer=made.outer,
            mean=made.mean,
            parts=command.parts,
            own=made.own,
        )

    def _refusal(self, command: out.Aggregate, reasons: Mapping[int, str]) -> on.AggregationFailed:
        return on.AggregationFailed(
            at_seconds=self.queue.now_seconds,
            experiment=command.experiment,
            round=command.round,
            reasons=tuple(sorted(reasons.items())),
        )

    def _evaluate(self, command: out.Evaluate) -> on.Evaluated | None:
        space = self.spaces[command.experiment]
        if space.prepared is None:
            return None  # the experiment has ended meanwhile
        evaluation = work.measure(space, command)
        return on.Evaluated(
            at_seconds=self.queue.now_seconds,
            experiment=command.experiment,
            round=command.round,
            evaluation=evaluation,
            part=command.part,
        )

    def _publish(self, command: out.Publish) -> on.ModelPublished:
        model = work.publish(self.spaces[command.experiment], command)
        now = self.queue.now_seconds
        return on.ModelPublished(at_seconds=now, experiment=command.experiment, model=model)

    def _discard(self, command: out.Discard) -> None:
        space = self.spaces[command.experiment]
        space.aggregation.versions.forget(command.files)
        copies = [space.copies.pop(file) for file in command.files if file in space.copies]
        work.remove(space.store, [file.name for file in (*command.files, *copies)])

    def _conclude(self, command: out.Conclude) -> None:
        space = self.spaces[command.experiment]
        space.close()
        sums, store, versions = space.aggregation, space.store, command.versions
        is_there = not space.is_gone
        if is_there:
            versions = work.last_versions(store, sums, versions, command.since_outer)
        space.release()
        if is_there:
            space.finish()
            finished = command.ending is states.ExperimentState.FINISHED
            work.sweep(store, finished=finished, kept=command.kept, versions=versions)
        # Last, because the next manager does not look at listed folders: this one must be clean.
        self.on_end(command.experiment)
