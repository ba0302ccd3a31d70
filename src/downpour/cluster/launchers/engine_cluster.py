"""A manager on this machine, and workers that an engine starts elsewhere."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from downpour.base.errors import LaunchError
from downpour.cluster.launchers.base import Ended, Engine, LaunchPlan
from downpour.cluster.launchers.forking import Restarts
from downpour.cluster.launchers.hosts import SLOTS_MAX, Host
from downpour.cluster.launchers.local import LocalCluster
from downpour.cluster.launchers.tether import TetheredWorkers
from downpour.cluster.worker.options import WorkerOptions, training_environment
from downpour.host.paths import Credentials
from downpour.learning import allowlist
from downpour.learning.devices import devices_for

_LEFT, _ASKED_WRONGLY = 0, 2


@dataclass(slots=True)
class _Place:
    """A worker's place: the worker that holds it, and the number of restarts.

    A place that a policy asked for is `extra`; the launcher may give it back.
    """

    number: int
    restarts: Restarts
    last: Ended | None = None
    is_to_restart: bool = False
    extra: bool = False
    idle_since_seconds: float | None = None
    is_given_back: bool = False

    @property
    def is_over(self) -> bool:
        """Whether the worker has ended for good."""
        return self.last is not None and not self.is_to_restart


class PlacedCluster:
    """A cluster whose manager runs here, and whose workers an engine starts.

    If a worker dies, the launcher restarts it under the same name: the first time at once, then
    after growing pauses. It does not restart a worker that left as ordered (exit status 0), or one
    whose user must fix something (exit status 2).
    """

    def __init__(
        self, plan: LaunchPlan, engine: Engine, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan = plan
        self._engine = engine
        self._now = now
        self._places: dict[str, _Place] = {}
        self._wanted = 0
        self._manager = LocalCluster(replace(plan, workers=0))
        self._running = ExitStack()

    @property
    def address(self) -> str:
        """The manager's address, as this machine and the workers reach it."""
        return self._manager.address

    @property
    def credentials(self) -> Credentials:
        """The credentials of this cluster's processes."""
        return self._plan.manager.credentials

    @property
    def log(self) -> Path:
        """The file to which manager and workers write their logs."""
        return self._manager.log

    @property
    def workers(self) -> list[str]:
        """The names of workers that run, or that the launcher will restart."""
        return [name for name, place in self._places.items() if not place.is_over]

    def __enter__(self) -> Self:
        """Check the engine, then start the manager and all workers."""
        self._engine.check(self._plan)
        with ExitStack() as starting:
            try:
                self._plan = self._reachable()
                self._manager = LocalCluster(replace(self._plan, workers=0))
                starting.enter_context(self._manager)
            except BaseException:
                self._engine.close()  # it may have reserved what the workers need
                raise
            starting.callback(self._engine.close)  # before the manager ends
            for _ in range(self._plan.workers):
                self._add()
            self._running = starting.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers, then the manager."""
        self._running.close()

    def provide(self, wanted: int, idle: Collection[str] = ()) -> None:
        """Start further workers, up to `wanted`, but at any time no more than the plan began with.

        The launcher tells a further worker to leave once it has been idle for the plan's
        `idle_seconds`.
        """
        while self._wanted < wanted:
            self._wanted += 1
            extra = [one for one in self._places.values() if one.extra and not one.is_given_back]
            if len(extra) < self._plan.workers:
                self._add(extra=True)
        if self._plan.idle_seconds:
            self._give_back(idle)

    def check(self) -> None:
        """Restart dead processes; raise LaunchError if the manager or all workers cannot go on."""
        self._manager.check()
        for name, ended in self._engine.ended().items():
            self._note_end(self._places[name], ended)
        for place in self._places.values():
            if place.is_to_restart and place.restarts.is_due():
                place.restarts.begin()
                self._start(place)
        if self._places and all(place.is_over for place in self._places.values()):
            raise self._error_of_all()

    def _give_back(self, idle: Collection[str]) -> None:
        now = self._now()
        for name, place in self._places.items():
            if not place.extra or place.is_given_back:
                continue
            if name not in idle:
                place.idle_since_seconds = None
            elif place.idle_since_seconds is None:
                place.idle_since_seconds = now
            elif now - place.idle_since_seconds >= self._plan.idle_seconds:
                place.is_given_back = True
                self._engine.stop(name)

    def _add(self, *, extra: bool = False) -> None:
        number = len(self._places) + 1
        place = _Place(number, Restarts(self._now), extra=extra)
        self._places[self._plan.worker(number, "").name] = place
        self._start(place)

    def _start(self, place: _Place) -> None:
        place.last, place.is_to_restart = None, False
        try:
            worker = self._plan.worker(place.number, self.address)
            environment = training_environment(self._plan.threads) | allowlist.environment()
            self._engine.start(worker, environment, self.log)
        except LaunchError as error:
            self._note_end(place, Ended(error.exit_status, str(error)))

    def _note_end(self, place: _Place, ended: Ended) -> None:
        place.last = ended
        final = ended.status in {_LEFT, _ASKED_WRONGLY} or place.is_given_back
        place.is_to_restart = not final
        if place.is_to_restart:
            place.restarts.is_due()  # the pause begins now

    def _error_of_all(self) -> LaunchError:
        """Return the error for when no worker is left: the first reason that a worker gave."""
        for name, place in self._places.items():
            if place.last is not None and place.last.status != _LEFT:
                wrong = place.last.status == _ASKED_WRONGLY
                reason = place.last.reason or f"it exited with status {place.last.status}"
                return LaunchError(f"{name}: {reason}; see {self.log}", asked_wrongly=wrong)
        return LaunchError(f"all workers have left; see {self.log}")

    def _reachable(self) -> LaunchPlan:
        """Return the plan with an address that the workers can reach, and a token."""
        # Import it here: help texts import this module, and must not wait for numpy.
        from downpour.files.store.presence import make_token

        plan = self._plan.reached_at(self._engine.manager_host)
        if plan.manager.credentials != self._plan.manager.credentials:
            make_token(Path(plan.manager.credentials.token_file))
        return plan


class LocalEngine(TetheredWorkers):
    """Starts each worker with a separate shell; the manager listens at `manager_host`.

    Each worker imports torch for itself, so a fork server (`local.py`) starts them sooner. But that
    one never starts a worker again.
    """

    def __init__(self, manager_host: str) -> None:
        self.manager_host = manager_host
        here = Host(socket.gethostname(), slots=SLOTS_MAX)
        super().__init__([here], lambda _, script: ["/bin/sh", "-c", script])

    def check(self, plan: LaunchPlan) -> None:
        """Refuse nothing, because this machine is always available."""


def here(plan: LaunchPlan) -> PlacedCluster:
    """Return a cluster of this machine's processes."""
    return PlacedCluster(plan, LocalEngine(plan.manager.host))


LOOK_SECONDS = 0.2


def run_group(
    worker: WorkerOptions, log: Path | None, wait: Callable[[float], bool]
) -> Mapping[str, Ended]:
    """Run workers until all have ended; returns how each one ended, by name.

    Args:
        worker: the options of all workers; the name must not be empty. See `numbered`.
        log: the file that their output is appended to, each line with the worker's name; None:
            standard error.
        wait: called with the seconds to wait; returns early, and true, when a signal tells this
            process to let its workers leave.
    """
    engine = LocalEngine(worker.manager)
    over: dict[str, Ended] = {}
    names = []
    try:
        for number in range(1, worker.count + 1):
            one = on_a_card(numbered(worker, number))
            engine.start(one, {}, log or os.dup(2))  # which may be a socket, without a path
            names.append(one.name)
        while len(over) < worker.count:
            if wait(LOOK_SECONDS):
                for name in names:
                    engine.stop(name)
            over |= engine.ended()
    finally:
        engine.close()
    return over


def numbered(worker: WorkerOptions, number: int) -> WorkerOptions:
    """Return one worker's options out of several: its name ends with its number; ports count up."""

    def counted(port: int) -> int:
        return port + number - 1 if port else 0

    metrics = worker.metrics_port
    return replace(
        worker,
        name=f"{worker.name}-{number}",
        count=1,
        place=number - 1,
        port=counted(worker.port),
        metrics_port=counted(metrics) if metrics is not None else None,
        ready_file=f"{worker.ready_file}-{number}" if worker.ready_file else "",
    )


def on_a_card(worker: WorkerOptions) -> WorkerOptions:
    """Return the options with the device of this machine that this worker should take."""
    devices = devices_for(worker.device)
    return replace(worker, device=devices.spread(worker.device, worker.place))
