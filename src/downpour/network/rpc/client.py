"""Clients of a manager and of a worker: values go in, values come out.

The rest of the program calls these. `services.py` declares the calls; each is one call over the
network with its own deadline. Every call is safe to repeat, and threads may share a client.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from functools import update_wrapper
from inspect import signature
from types import NoneType
from typing import Any, Concatenate, ParamSpec, TypeVar

from downpour.base.errors import IncompatiblePeer
from downpour.network.rpc.connection import Peer
from downpour.network.rpc.generated import Manager, Worker
from downpour.network.rpc.messages import (
    PAGE_EXPERIMENTS_MAX,
    ExperimentSummary,
    RecordPage,
    Status,
)
from downpour.network.rpc.services import ManagerService, WorkerService, thrift_name, types_of
from downpour.network.rpc.wire import FieldError, from_wire, to_wire

_SUBMIT_SECONDS = 50.0
"""Added to the deadline: a manager that has just taken over may have to import torch first."""

_Arguments = ParamSpec("_Arguments")
_Answer = TypeVar("_Answer")


class _Client(Peer):
    """Converts the values of a call to structs, and the answer back."""

    def _call(
        self, declared: Callable[..., _Answer], *values: Any, wait_seconds: float = 0.0
    ) -> _Answer:
        method, (_, answer_type) = thrift_name(declared.__name__), types_of(declared)
        structs = tuple(map(to_wire, values))
        answer = self.call(method, structs, self.timeout_seconds + wait_seconds)
        if answer_type is NoneType:
            return None  # type: ignore[return-value]
        if answer is None:
            raise IncompatiblePeer(f"{self.address} answered {method} with an empty result")
        try:
            return from_wire(answer_type, answer)  # type: ignore[no-any-return]
        except FieldError as error:
            raise IncompatiblePeer(f"{self.address} answered {error.inside(method)}") from error


def _remote(
    declared: Callable[Concatenate[Any, _Arguments], _Answer],
) -> Callable[Concatenate[_Client, _Arguments], _Answer]:
    """Return the client's method for a call that a service declares."""
    names = list(signature(declared).parameters)[1:]

    def call(self: _Client, /, *values: _Arguments.args, **named: _Arguments.kwargs) -> _Answer:
        others = (named[name] for name in names[len(values) :])
        return self._call(declared, *values, *others)

    return update_wrapper(call, declared)


class ManagerClient(_Client):
    """A manager, as its workers and its users call it."""

    service = Manager

    describe = _remote(ManagerService.describe)
    register_worker = _remote(ManagerService.register_worker)
    heartbeat = _remote(ManagerService.heartbeat)
    report_update = _remote(ManagerService.report_update)
    report_failure = _remote(ManagerService.report_failure)
    report_hand_over = _remote(ManagerService.report_hand_over)
    leave = _remote(ManagerService.leave)
    cancel = _remote(ManagerService.cancel)
    disturbed = _remote(ManagerService.disturbed)

    def submit(self, spec: str, request: str = "") -> str:
        """Submit an experiment, described in TOML; returns its identifier.

        The manager accepts the same `request` (4 to 32 hexadecimal digits) only once. If it is
        empty, the client chooses one at random.
        """
        # Chosen before the first attempt, so that a retry leads to the same experiment.
        values = spec, request or secrets.token_hex(4)
        return self._call(ManagerService.submit, *values, wait_seconds=_SUBMIT_SECONDS)

    def status(
        self, experiment: str = "", after_change: int = 0, wait_seconds: float = 0.0
    ) -> Status:
        """Return the state once it has changed since `after_change`, or when the wait is over."""
        values = experiment, after_change, wait_seconds
        return self._call(ManagerService.status, *values, wait_seconds=wait_seconds)

    def list_experiments(
        self, before: str = "", limit: int = PAGE_EXPERIMENTS_MAX
    ) -> tuple[ExperimentSummary, ...]:
        """Return the last experiments before `before`, or the newest ones, oldest first."""
        return self._call(ManagerService.list_experiments, before, limit)

    def results(self, experiment: str, from_line: int = 0, wait_seconds: float = 0.0) -> RecordPage:
        """Return lines of a record, once line `from_line` exists or the wait is over."""
        values = experiment, from_line, wait_seconds
        return self._call(ManagerService.results, *values, wait_seconds=wait_seconds)


class WorkerClient(_Client):
    """A worker, as its manager calls it."""

    service = Worker

    ping = _remote(WorkerService.ping)
    train = _remote(WorkerService.train)
    cancel = _remote(WorkerService.cancel)
    hand_over = _remote(WorkerService.hand_over)
    drain = _remote(WorkerService.drain)
