"""The registered workers, and what clients see of them and of the experiments.

The roster has each worker's address, and a client to call it back. The end of a connection proves
nothing, because living workers open new ones. So the manager calls the worker back. If the
connection is refused, the worker is dead. If the call times out, the worker may be busy or the
network down; then the heartbeat timeout decides.

The driver's thread turns the core's state into a `Status`. A `WaitingWatch`, also a client's, tells
from one whether an experiment waits for something that may never come.
"""

import logging
import math
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median
from threading import Lock, local

from downpour.base import names, states, values
from downpour.base.errors import DownpourError, Unreachable, shortened
from downpour.core.scheduler import Scheduler, queue
from downpour.core.scheduler.experiment import Experiment
from downpour.core.scheduler.round import ShardTask
from downpour.core.scheduler.round_view import contributions
from downpour.core.scheduler.workers import Worker
from downpour.core.stragglers.base import Saving
from downpour.network.rpc import Address, WorkerClient, messages

log = logging.getLogger(__name__)

_DIFFERENCES_MAX, _PHRASE_LETTERS_MAX = 50, 200

membership_log = logging.getLogger("downpour.membership")
"""Workers that join, leave and are lost; a manager in a terminal shows these lines."""


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """One registered worker."""

    registration: messages.Registration
    client: WorkerClient

    @property
    def process(self) -> tuple[str, int]:
        """Its machine and process."""
        return self.registration.hostname, self.registration.pid

    @property
    def address(self) -> Address:
        """The address at which it answers."""
        return Address(self.registration.host, self.registration.port)


class Roster:
    """The entries of all registered workers; safe to share between threads.

    A name belongs to one process. A failed call, or a broken connection, only affects its own
    registration, and not a new registration of the same worker.
    """

    def __init__(self) -> None:
        self._entries: dict[str, RosterEntry] = {}
        self._differs: dict[str, tuple[str, ...]] = {}
        self._lock = Lock()

    def enter(self, registration: messages.Registration, client: WorkerClient) -> str:
        """Register a worker under its own name, or with a number added if another process has it.

        A process that registers again keeps its name, and the new entry replaces the old one.
        """
        process = registration.hostname, registration.pid
        with self._lock:
            # Users may give workers equal names. Without a given name, a worker picks a random one.
            name, copies = registration.name, 1
            while name in self._entries and self._entries[name].process != process:
                copies += 1
                name = f"{registration.name}-{copies}"
            former = self._entries.get(name)
            self._entries[name] = RosterEntry(registration, client)
        # The same process has registered again, maybe with another address. End calls in flight to
        # the old address at once, rather than at their deadline.
        if former is not None:
            former.client.close()
        return name

    def get(self, name: str) -> RosterEntry | None:
        """Return a worker's entry, or None if it is not registered."""
        # This needs no lock, because reading one item of a dictionary is atomic.
        return self._entries.get(name)

    def note_differences(self, name: str, differs: tuple[str, ...]) -> None:
        """Note in which packages a worker says that it differs; log each difference once."""
        said = tuple(shortened(one, _PHRASE_LETTERS_MAX) for one in differs[:_DIFFERENCES_MAX])
        if self.get(name) is None or said == self.differences(name):
            return
        for one in said:
            if one not in self.differences(name):
                log.warning("%s has %s", name, one)
        self._differs[name] = said

    def differences(self, name: str) -> tuple[str, ...]:
        """Return the packages in which a worker differs, as it last reported."""
        return self._differs.get(name, ())

    def names(self) -> tuple[str, ...]:
        """Return the names of all workers, in the order of registration."""
        return tuple(self._entries)

    def is_dead(self, name: str, entry: RosterEntry) -> bool:
        """Whether a failed call shows that a worker is dead: it has not registered again since."""
        return self.get(name) is entry

    def strike(self, name: str) -> None:
        """Remove a worker."""
        with self._lock:
            entry = self._entries.pop(name, None)
            self._differs.pop(name, None)
        if entry is not None:
            entry.client.close()

    def close(self) -> None:
        """Remove all workers."""
        for name in self.names():
            self.strike(name)


_ANSWER_SECONDS = 3.0
"""The timeout of a call back. It runs in the ended connection's thread, so nothing waits for it."""


@dataclass(frozen=True, slots=True)
class ConnectionMonitor:
    """Remembers, for each connection's thread, which worker called over it.

    `connect` makes the client of a call back. `lost` gets a dead worker's name, and the evidence.
    """

    roster: Roster
    connect: Callable[..., WorkerClient]
    lost: Callable[[str, str], None]
    # Each connection has its thread, so thread-local data belongs to it; no message needs a field.
    _connection: local = field(default_factory=local)

    def heard(self, worker: str) -> None:
        """Note that this thread's connection belongs to a worker."""
        # Keep the worker's current entry. If the worker registers again, it gets another entry, and
        # the end of this connection then says nothing about it.
        self._connection.heard = worker, self.roster.get(worker)

    def connection_ended(self) -> None:
        """Check the worker of this thread's ended connection, unless it left or came again."""
        heard: tuple[str, RosterEntry | None] = getattr(self._connection, "heard", ("", None))
        worker, entry = heard
        if entry is not None:
            self.check(worker, entry)

    def check(self, worker: str, entry: RosterEntry) -> None:
        """Call a worker back, and lose it if the call is refused."""
        if self._is_refused(entry.address) and self.roster.is_dead(worker, entry):
            self.lost(worker, f"its connection ended and {entry.address} does not answer")

    def _is_refused(self, address: Address) -> bool:
        """Whether a connection to this address is refused."""
        timeouts = {"timeout_seconds": _ANSWER_SECONDS, "connect_seconds": _ANSWER_SECONDS}
        client = self.connect(address, **timeouts)
        try:
            client.ping()
        except Unreachable as error:
            # A timeout while connecting may mean a lost network as well as a dead machine.
            return not isinstance(error.__cause__, TimeoutError)
        except DownpourError as error:
            log.info("%s answers badly: %s", address, error)
        finally:
            client.close()
        return False


_NONE: Mapping[str, Saving] = {}
TASKS_SHOWN = 10_000
"""This keeps the reply to a client well under a message's 16 MiB (`network/rpc/frames.py`)."""


def status(
    core: Scheduler,
    roster: Roster,
    experiment: str,
    change: int,
    numeric_class: values.NumericClass | None = None,
    contributions: Mapping[str, Saving] = _NONE,
) -> messages.Status:
    """Return the workers, and an experiment (by default the active one) with its round's tasks.

    `contributions` are the workers' known contributions to the active experiment.
    """
    shown = core.state.experiments.get(experiment) if experiment else core.state.active
    opened = (each for each in core.state.open if each is not shown)
    others = [*opened, *queue.waiting(core.state)]
    tasks = shown.tasks_at_hand()[:TASKS_SHOWN] if shown else []
    update_bytes = shown.update_bytes if shown else 0
    usual = _usual_pace(core, tasks)
    return messages.Status(
        change=change,
        workers=tuple(
            _worker(worker, core.state, roster, shown, contributions.get(worker.name))
            for worker in core.state.workers
        ),
        experiment=summary(core.state, shown) if shown else None,
        tasks=tuple(_task(core, task, usual, update_bytes) for task in tasks),
        wanted_workers=core.state.wanted_workers,
        decisions=tuple(
            f"{one.at_seconds - shown.submitted_at_seconds:.1f} s, {one.text}"
            for one in core.state.decisions
            if shown and one.experiment == shown.name
        ),
        numeric_class=numeric_class,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        queue=tuple(summary(core.state, each) for each in others[:TOLD_MAX]),
    )


def summary(core: queue.SchedulerState, experiment: Experiment) -> messages.ExperimentSummary:
    """Return an experiment's entry in a list of experiments."""
    last = experiment.last_evaluation
    state = experiment.life.state
    runs = state is states.ExperimentState.RUNNING and not experiment.paused
    meetings, done = experiment.spec.meetings, experiment.rounds_done
    return messages.ExperimentSummary(
        experiment=experiment.name,
        name=experiment.spec.name,
        state=state,
        rounds_done=done,
        rounds_total=meetings.rounds,
        epochs_done=meetings.epoch_of(done),
        epochs_total=meetings.epochs_in_all,
        reason=_why(core, experiment) or None,
        asked_wrongly=experiment.asked_wrongly,
        metrics=messages.metrics_of(last.metrics) if last else (),
        loss=last.loss if last and math.isfinite(last.loss) else None,
        part=experiment.part if experiment.tested is None else "test",
        left_seconds=(runs and experiment.times.left(meetings.rounds, core.now_seconds)) or (),
        owner=experiment.owner,
        priority=experiment.priority,
        paused=experiment.paused and not state.ended,
        shards=experiment.spec.shards,
    )


def _why(core: queue.SchedulerState, experiment: Experiment) -> str:
    """Say why an experiment failed, or why no worker trains it."""
    match experiment.life.state:
        case states.ExperimentState.FAILED:
            return experiment.reason
        case states.ExperimentState.WAITING | states.ExperimentState.RUNNING if experiment.paused:
            held = sum(len(current.holders()) for current in experiment.rounds)
            return f"paused{f', {held} tasks end or are handed over' if held else ''}"
        case states.ExperimentState.RUNNING:
            return experiment.told_waits
        case states.ExperimentState.WAITING:
            waiting = queue.waiting(core)
            before = [each.name for each in (*core.open, *waiting)]
            place = before.index(experiment.name)
            behind = f", behind {before[place - 1]}" if place else ""
            shards = experiment.spec.shards
            workers = f"{shards} worker{'' if shards == 1 else 's'}"
            number = 1 + waiting.index(experiment)
            return f"number {number} in the queue{behind}, for {workers}"
    return ""


def _worker(
    worker: Worker,
    core: queue.SchedulerState,
    roster: Roster,
    shown: Experiment | None,
    saving: Saving | None,
) -> messages.WorkerStatus:
    entry, asked = roster.get(worker.name), shown.spec.device if shown else names.AUTO
    return messages.WorkerStatus(
        worker=worker.name,
        address=str(entry.address) if entry else "",
        state=shown_state(core, worker),
        running=worker.running,
        system=worker.system,
        tasks_done=worker.tasks_done,
        slowness=median(worker.slowness) if worker.slowness else None,
        numeric_class=entry.registration.class_for(asked) if entry else None,
        hostname=entry.registration.hostname if entry else "",
        pid=entry.registration.pid if entry else 0,
        labels=entry.registration.labels if entry else (),
        device=entry.registration.trains_on if entry else "",
        saves=saving.share if saving else None,
        stands_by=saving.stands_by if saving else False,
        differs=roster.differences(worker.name),
        cards=entry.registration.cards if entry else 0,
        unfit_because=core.workers.unfit_for(shown.name).get(worker.name, "") if shown else "",
    )


def shown_state(core: queue.SchedulerState, worker: Worker) -> states.WorkerState:
    """Return the state of a worker; an idle one that can train no open experiment is unfit.

    A stuck one is shown as busy in the minute after its last step: most soon end what an earlier
    manager gave them.
    """
    if worker.life.state is states.WorkerState.STUCK:
        hangs = core.now_seconds - worker.active_at_seconds >= WAITING_SECONDS * core.patience
        return states.WorkerState.STUCK if hangs else states.WorkerState.BUSY
    unfit = [worker.name in core.workers.unfit_for(each.name) for each in core.open]
    is_unfit = worker.life.state is states.WorkerState.IDLE and unfit and all(unfit)
    return states.WorkerState.UNFIT if is_unfit else worker.life.state


def _task(
    core: Scheduler, task: ShardTask, usual_pace: float, update_bytes: int
) -> messages.TaskStatus:
    workers = (core.state.workers.get(name) for name in task.held_by)
    reports = [worker.progress for worker in workers if worker and worker.progress]
    progress = max(reports, key=lambda progress: progress.share, default=None)
    done = task.update.steps if task.update else 0
    holder = next((w for w, a in task.held_by.items() if progress and a == progress.attempt), None)
    name = holder or task.worker or next(iter(task.held_by), None)
    worker = core.state.workers.get(name) if name in task.held_by else None
    pace = _predicted_pace(task, worker) if worker else None
    return messages.TaskStatus(
        shard=task.shard,
        state=task.life.state,
        worker=name,
        steps_done=progress.steps_done if progress else done,
        steps_total=progress.steps_total if progress else done,
        elapsed_seconds=core.state.now_seconds - worker.assigned_at_seconds if worker else 0.0,
        predicted=_sendable(worker.forecast) if worker else None,
        slowness=pace / usual_pace if pace and usual_pace else None,
        moved_bytes=progress.moved_bytes if progress else 0,
        update_bytes=update_bytes,
    )


def _usual_pace(core: Scheduler, tasks: Sequence[ShardTask]) -> float:
    """Return the median of the round's paces, measured or forecast, in seconds per sample."""
    # Count only attempts that trained a whole shard. An attempt that continued a snapshot trained
    # only a part, so its seconds per sample would be too few.
    paces = [
        task.completion_seconds / task.offer.samples
        for task in tasks
        if task.attempt and task.offer.samples and not task.began_at[task.attempt.attempt]
    ]
    holders = ((task, core.state.workers.get(name)) for task in tasks for name in task.held_by)
    predicted = (_predicted_pace(task, worker) for task, worker in holders if worker)
    paces += [pace for pace in predicted if pace]
    return median(paces) if paces else 0.0


def _predicted_pace(task: ShardTask, worker: Worker) -> float | None:
    """Return the forecast seconds per sample for a worker's part of a task."""
    forecast, attempt = _sendable(worker.forecast), task.held_by.get(worker.name)
    if forecast is None or attempt is None:
        return None
    own = task.offer.samples * (1 - task.began_at[attempt.attempt])
    return forecast.q50 / own if own > 0 else None


def _sendable(forecast: values.Forecast | None) -> values.Forecast | None:
    """Return the forecast, or None if it is not finite: messages hold only finite numbers."""
    return forecast if forecast is not None and math.isfinite(forecast.q98) else None


TOLD_MAX = 40
"""A screenful, as many as `downpour status` shows."""
_AGAIN_SECONDS = 2.0


class KnownContributions:
    """The last known contribution of each worker; used in the driver's thread.

    If there is no new contribution, as between two rounds or in the first steps of a task, the last
    one stays. We drop it when another experiment becomes active or the number of workers changes.
    """

    def __init__(self) -> None:
        self._of: tuple[str, int] = ("", 0)
        self._known: Mapping[str, Saving] = {}
        self._again_at_seconds = 0.0

    def of(self, state: queue.SchedulerState) -> Mapping[str, Saving]:
        """Return the first workers' contributions to the active experiment, by name."""
        now, of = state.now_seconds, (state.active.name if state.active else "", len(state.workers))
        if of != self._of:
            self._of, self._known, self._again_at_seconds = of, {}, now
        if now >= self._again_at_seconds:
            self._again_at_seconds = now + _AGAIN_SECONDS
            first = list(islice(state.workers.names, TOLD_MAX))
            self._known = {**self._known, **contributions(state, first)}
        return self._known


WAITING_SECONDS = 60.0
"""How long nothing may happen before we tell the user; restarts take less time."""


class WaitingWatch:
    """Reports once, each time that an experiment has waited for too long.

    Tasks that run wait, too, while none ends a step or moves a file. If they then go on by
    themselves, their steps are long, and the next such wait may take twice as long.
    """

    def __init__(self, seconds: float = WAITING_SECONDS) -> None:
        self._seconds = self._still_seconds = seconds
        self._since: float | None = None
        self._told = self._progress = ""

    def take(self, status: messages.Status, now_seconds: float) -> states.ExperimentEvent | None:
        """Return an event if this status, at this time, makes the wait too long."""
        progress, before = _progress(status), self._progress
        still = _STILL if progress and progress == before else ""
        why, shown, self._progress = why_waiting(status) or still, status.experiment, progress
        if shown is None or not why:
            self._still_seconds *= 2 if self._told == _STILL else 1
            self._since, self._told = None, ""
            return None
        if self._since is None:
            self._since = now_seconds
        waited_seconds = now_seconds - self._since
        if self._told or waited_seconds < (self._still_seconds if still else self._seconds):
            return None
        self._told = why
        return states.ExperimentEvent(
            kind="waiting",
            experiment=shown.experiment,
            name=shown.name,
            state=shown.state,
            reason=f"{why}, for {waited_seconds:.0f} s",
        )


_STILL = "no worker ends a step"


def _progress(status: messages.Status) -> str:
    """Return what changes as soon as any running task gets on; empty if none runs."""
    shown = status.experiment
    if shown is None or shown.state is not states.ExperimentState.RUNNING or shown.paused:
        return ""
    running = (task for task in status.tasks if task.state is states.TaskState.RUNNING)
    return "".join(f"{task.worker} {task.steps_done} {task.moved_bytes};" for task in running)


def why_waiting(status: messages.Status) -> str:
    """Say what the experiment waits for; empty while work is in progress, or there is none."""
    shown = status.experiment
    if shown is None or shown.state.ended:
        return ""
    waits = any(task.state is states.TaskState.PENDING for task in status.tasks)
    trains = any(task.state is states.TaskState.RUNNING for task in status.tasks)
    if shown.state is not states.ExperimentState.RUNNING or shown.paused or not waits or trains:
        return ""
    if shown.reason:  # its folder is gone, or no worker fits
        return shown.reason
    if not status.workers:
        return "no worker is there"
    if all(worker.state is states.WorkerState.STUCK for worker in status.workers):
        return "all workers are stuck in a task"
    return "no worker has taken a task"
