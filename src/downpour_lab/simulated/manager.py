"""A manager of the shipped parts, whose threads run in virtual time, and that can die at any point.

The driver, the command runner, the journals and the service are those of `cluster/manager/`. This
file starts them over simulated files and calls, and says when the manager dies. A fault can name
the point (`die_at`), because a random moment hardly ever falls between journaling and acting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from downpour.base.errors import DownpourError, SharedDirectoryError, StoreError
from downpour.base.states import ExperimentState
from downpour.base.values import AttemptId, Update
from downpour.cluster.manager import work
from downpour.cluster.manager.command_runner import CommandRunner
from downpour.cluster.manager.driver import Driver, ManagerSink
from downpour.cluster.manager.status import Roster
from downpour.cluster.manager.takeover import Archive, remove_unknown
from downpour.cluster.manager.worker_calls import WorkerCalls
from downpour.cluster.manager.workspace import Workspaces
from downpour.cluster.options import ManagerOptions
from downpour.core.node.journal import JournalWriter, Line
from downpour.core.node.manager import LOOK_SECONDS, STOOD_STILL_SECONDS, ManagerNode, Step
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler.experiment import Experiment
from downpour.core.spec import ResolvedSpec
from downpour.files.store import SharedDirectory
from downpour.files.store.lease import Leader
from downpour.network.rpc import Address, WorkerClient
from downpour.network.rpc.messages import Registration
from downpour.network.rpc.trust import OPEN
from downpour.predictor.forecaster import Forecaster
from downpour.record.journal import next_order, replay
from downpour_lab.simulated.disk import CLUSTER, MemorySegments
from downpour_lab.simulated.environment import Environment, Observation, Stories
from downpour_lab.simulated.threads import Process, ProcessDied, RemoteProcess, SimulatedThreads
from downpour_lab.simulated.work import Preparation, SimulatedLanes, Takes, open_workspace

if TYPE_CHECKING:
    from downpour.record.journal import Journal

DeathPoint = Literal["", "before it keeps", "while it keeps", "before it acts", "while it acts"]
DEATH_POINTS: tuple[DeathPoint, ...] = get_args(DeathPoint)[1:]

_LOCK_SECONDS = 0.5
# A wait is a difference of times. So it may end a rounding error before the tick is due.
_ROUNDING_SECONDS = 1e-6


class SimulatedDriver(Driver):
    """A driver whose events take time, which the run's observer sees, and that may die."""

    def __init__(self, manager: SimulatedManager) -> None:
        super().__init__(
            manager.core,
            manager.threads,
            patience_seconds=manager.environment.disk.timings.patience_seconds,
            on_death=manager.give_up,
            check_leader=manager.check_leader,
            node_class=manager.node_class,
        )
        self._manager = manager
        self._acted = 0

    def _next_items(self, timeout_seconds: float) -> list[Any]:
        # If a clock is set back, this simulation's own queue must not stop.
        wait = min(timeout_seconds, STOOD_STILL_SECONDS) + _ROUNDING_SECONDS
        items = super()._next_items(wait)
        self._manager.sleep(self._manager.environment.timings.event_seconds * max(1, len(items)))
        return items

    def _take(self, items: list[Any]) -> None:
        self._manager.has_kept, self._acted = False, 0
        super()._take(items)

    def _commit(self) -> None:
        manager = self._manager
        manager.die_if("before it keeps")
        if manager.sink.journaling.must_sync:
            manager.is_committing = True
            disk = manager.environment.disk
            seconds = disk.takes(disk.timings.sync_seconds, manager.host)
            if manager.die_at == "while it keeps":
                manager.after(seconds / 2, manager.crash, manager.die_at)
            manager.sleep(seconds)
        super()._commit()
        manager.is_committing = False

    def _act(self, step: Step[Any]) -> None:
        if self._acted >= len(self._taken) // 2:
            self._manager.die_if("while it acts")
        self._acted += 1
        if step.event is not None:
            core, term = self._manager.core, self._manager.term
            seen = Observation(core, term, step.event, step.output, step.kept)
            self._manager.environment.observer.acting(seen)
        super()._act(step)

    def _end_because_of(self, error: BaseException) -> None:
        """End the manager if the directory failed; anything else is a finding of the run."""
        if isinstance(error, StoreError):
            super()._end_because_of(error)
        elif not isinstance(error, ProcessDied):
            raise error


class SimulatedSink(ManagerSink):
    """A sink that the run's observer sees."""

    def __init__(self, manager: SimulatedManager, archive: Archive, first_order: int) -> None:
        predictor = manager.environment.predictor
        super().__init__(
            manager.spaces,
            manager.roster,
            archive,
            manager.runner,
            Forecaster(predictor()) if predictor is not None else None,
            first_order=first_order,
            checkpoint_rounds=manager.environment.timings.checkpoint_rounds,
        )
        self._manager = manager

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        """Gather and return the entries that must be journaled."""
        kept = super().keep(core, event, output)
        manager = self._manager
        manager.has_kept = manager.has_kept or bool(kept)
        manager.environment.observer.handled(Observation(core, manager.term, event, output, kept))
        return kept


class SimulatedService(WorkerCalls):
    """A manager's service for workers, and the submissions of the simulated client."""

    def __init__(self, manager: SimulatedManager) -> None:
        timings = manager.environment.timings
        super().__init__(
            ManagerOptions(
                shared="shared",
                heartbeat_seconds=timings.heartbeat_seconds,
                patience=timings.patience,
            ),
            OPEN,
            SharedDirectory(Path("shared")),
            manager.driver,
            manager.spaces,
            manager.roster,
            Leader(term=manager.term, addresses=(manager.host,), hostname=manager.host, pid=1),
        )
        self._manager = manager
        self._submitted: set[str] = set()

    def submit(self, experiment: str, spec: ResolvedSpec) -> None:
        """Submit an experiment; a repeated request waits for the first one and adds nothing."""
        if experiment in self._submitted or experiment in self._manager.core.state.experiments:
            self.driver.post(on.Tick(at_seconds=self._now)).result()
            return
        self._submitted.add(experiment)
        self._manager.open(experiment, spec)
        self.driver.post(
            on.ExperimentSubmitted(at_seconds=self._now, experiment=experiment, spec=spec)
        ).result()

    def cancel(self, experiment: str) -> None:
        """Cancel an experiment."""
        reason = "cancelled by request"
        self.driver.post(
            on.ExperimentCancelled(at_seconds=self._now, experiment=experiment, reason=reason)
        ).result()

    def pause(self, experiment: str, paused: bool) -> None:  # noqa: FBT001 - a remote call
        """Pause an experiment, or continue it."""
        event = on.PauseAsked(at_seconds=self._now, experiment=experiment, paused=paused)
        self.driver.post(event).result()

    def check_host(self, host: str) -> None:
        """Call the workers of a host whose connections have ended."""
        for name in self.roster.names():
            entry = self.roster.get(name)
            if entry is not None and entry.address.host == host:
                self._manager.begin(self._connection_monitor.check, name, entry)

    def _connect(self, address: Address, **_: Any) -> WorkerClient:
        environment = self._manager.environment
        return cast("WorkerClient", RemoteProcess(environment.network, self._manager, address.host))

    def _check(self, registration: Registration) -> None:
        """Take everybody: all see the same folder, and run the same version."""

    def _check_work(self, attempt: AttemptId, update: Update) -> None:
        """Take any: a simulated task has as many steps as the run's timings say."""


class SimulatedManager(Process):
    """One life of a manager; `on_death` starts the next."""

    role = "manager"
    journal_class: type[JournalWriter] = JournalWriter
    core_class: type[Scheduler] = Scheduler
    node_class: type[ManagerNode[Any]] = ManagerNode
    driver_class: type[SimulatedDriver] = SimulatedDriver
    sink_class: type[SimulatedSink] = SimulatedSink
    runner_class: type[CommandRunner] = CommandRunner
    service_class: type[SimulatedService] = SimulatedService

    def __init__(
        self, environment: Environment, host: str, on_death: Callable[[str], None]
    ) -> None:
        super().__init__(environment.clock, host)
        self.environment = environment
        self.threads = SimulatedThreads(self)
        self.term = 0
        self.die_at: DeathPoint = ""
        self.has_kept = False
        self.is_committing = False
        patience = environment.timings.patience
        self.core = self.core_class(patience, policies=environment.policies)
        self.takes = Takes(environment, self)
        self.preparation = Preparation(self.takes)
        self.roster = Roster()
        self.spaces = Workspaces([], self._fail)
        self._on_death = on_death

    # Its life

    def start(self) -> None:
        """Wait for the lock, replay the journals, and serve."""
        self.begin(self._live)

    def _live(self) -> None:
        disk = self.environment.disk
        try:
            while not disk.lock(self):
                self.sleep(_LOCK_SECONDS)
            self.takes(self.environment.timings.recover_seconds)
            self.term = disk.claim(self.host)
            self.takes(disk.timings.write_seconds)
            stories = self.read_journals()
            left_out = replay(self.core, stories)
            self._continue({name: stories[name] for name in stories if name not in left_out})
        except SharedDirectoryError:
            self.crash("because it cannot begin")

    def read_journals(self) -> Stories:
        """Sync the journals and then read them, because all later lines rest on them."""
        self.environment.disk.ask(self.host, "read")
        self.environment.disk.settle()
        return self.environment.disk.stories()

    def _continue(self, stories: Stories) -> None:
        """Continue the experiments of earlier managers, and serve."""
        self.environment.observer.recovered(self.core, stories)
        archive = Archive(SharedDirectory(Path("shared")))
        experiments = self.core.state.experiments.values()
        ended = [each for each in experiments if each.life.state.ended]
        running = [each for each in experiments if not each.life.state.ended]
        for each in running:
            self.open(each.name, each.spec, stories[each.name])
        for each in ended:  # this core still knows them, and drops what comes late
            self.spaces.add(open_workspace(self.takes, each.name, each.spec))
        self.begin_journals()
        self._clean(running, ended)
        self.driver = self.driver_class(self)
        self.runner = self.runner_class(
            self.spaces,
            self.roster,
            self.driver,
            SimulatedLanes(self),
            self.preparation,
            archive.end,
            term=self.term,
            on_death=self.give_up,
        )
        self.sink = self.sink_class(self, archive, next_order(stories))
        lines = sum(map(len, stories.values()))
        self.environment.tell(f"{self.host} leads, term {self.term}, with {lines} journaled lines")
        self.service = self.service_class(self)
        self.environment.network.serve(self.host, self, self.service)
        self.driver.start(self.sink, self.core.resume())
        while True:
            self.sleep(LOOK_SECONDS)
            if not self.is_leader():
                self.crash("because another manager leads")

    def open(self, experiment: str, spec: ResolvedSpec, story: Sequence[Line] = ()) -> None:
        """Open an experiment's workspace; its journal continues a story."""
        space = open_workspace(self.takes, experiment, spec)
        segments = MemorySegments(self.environment.disk, self, experiment)
        journal = self.journal_class(segments, self.term, story, cluster=CLUSTER)
        space.journal = cast("Journal", journal)
        self.spaces.add(space)

    def begin_journals(self) -> None:
        """Write the journals that we read, before we remove any file."""
        for space in self.spaces.values():
            if space.journal is not None:
                space.journal.commit()

    def _clean(self, running: Iterable[Experiment], ended: Iterable[Experiment]) -> None:
        """Remove files that no manager will name, and files that only ended experiments needed."""
        for each in running:
            with suppress(SharedDirectoryError):
                remove_unknown(self.spaces[each.name], each, self._check_term)
        patience = self.environment.disk.timings.patience_seconds
        for each in ended:
            self._check_term()
            with suppress(SharedDirectoryError):
                work.sweep(
                    self.takes.store(each.name, patience, patience),
                    finished=each.life.state is ExperimentState.FINISHED,
                    kept=each.files_of_shards(),
                    versions=each.files_of_versions(),
                )

    def crash(self, why: str, *, machine_for_seconds: float = 0.0) -> None:
        """Die at once; if the machine dies as well, it may lose lines that it had not synced."""
        if not self.alive:
            return
        if self.is_committing:
            self._tear()
        if machine_for_seconds:
            self.environment.disk.lose_unsynced(self.host)
            self.environment.disk.unlock_later(self, machine_for_seconds)
        self._end(f"dies {why}", hang_up=not machine_for_seconds)

    def _end(self, how: str, *, hang_up: bool) -> None:
        self.die()
        if hang_up:
            self.environment.network.hang_up(self)
        self.environment.tell(f"{self.host} {how}")
        self._on_death(self.host)

    def _tear(self) -> None:
        """Write some of the lines, as a crash in the middle of a commit leaves them."""
        for experiment in self.sink.journaling.touched:
            journal = self.spaces[experiment].journal
            segment, lines = journal.under_way if journal is not None else ((0, 0), ())
            some = lines[: self.environment.random.randint(0, len(lines))]
            with suppress(SharedDirectoryError):
                segments = MemorySegments(self.environment.disk, self, experiment)
                segments.append(segment, some, durably=False)

    def die_if(self, point: DeathPoint) -> None:
        """Die if a fault has named this point, and entries were journaled."""
        if self.has_kept and self.die_at == point:
            self.crash(point)
        self.check_alive()

    def give_up(self, error: DownpourError) -> None:
        """Die of an error of the directory."""
        self.crash(f"because of {error}")

    def stop(self) -> None:
        """Stop in order: finish the current events, and refuse the others."""
        if self.alive:
            self.begin(self._stop)

    def _stop(self) -> None:
        if hasattr(self, "driver"):
            self.driver.stop()
        self._end("stops", hang_up=True)

    def connection_ended(self, host: str) -> None:
        """Call the workers of a host whose connections have ended."""
        self.service.check_host(host)

    # The lead

    def check_leader(self) -> None:
        """Raise SharedDirectoryError if another manager leads."""
        if not self.driver.insist(self.leads):
            raise SharedDirectoryError("shared", "another manager leads")
        self.die_if("before it acts")

    def _check_term(self) -> None:
        """Raise SharedDirectoryError if another manager leads, before this one serves."""
        if not self.leads():
            raise SharedDirectoryError("shared", "another manager leads")

    def is_leader(self) -> bool:
        """Whether no other manager has begun a later term; true if the terms cannot be listed."""
        try:
            return self.leads()
        except SharedDirectoryError:
            return True

    def leads(self) -> bool:
        """Return whether no other manager has begun a later term; SharedDirectoryError: unseen."""
        self.environment.disk.ask(self.host, "list")
        return len(self.environment.disk.terms) == self.term

    def _fail(self, experiment: str, reason: str) -> None:
        """Do nothing: no folder is gone alone."""
