"""Calls between processes in virtual time.

A call ends with an answer or fails: at once if no process listens, at its deadline if no answer
comes. As in reality, the caller then does not know whether the call or its answer was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from downpour.base.errors import DeadlineExceeded, DownpourError, Refused, Unreachable
from downpour_lab.simulated.threads import Clock, Process, Wait

DIRECTIONS = HEARS_NOTHING, IS_NOT_HEARD = "hears nothing", "is not heard"
"""How a fault cuts a host off in one direction. A host that is not heard can't answer either."""


@dataclass(slots=True)
class NetworkState:
    """The network's present faults: shares of messages, and seconds.

    `lost_at` are the shares of messages to and from single hosts that are lost. `far` are the
    seconds that each message of a host takes longer.
    """

    delay_seconds: float = 0.005
    lost: float = 0.0
    doubled: float = 0.0
    held_up: float = 0.0
    held_up_seconds: float = 0.0
    lost_at: dict[str, float] = field(default_factory=dict)
    far: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Call:
    """A call; its caller waits for the answer, unless it is the copy of another call."""

    caller: Process
    target: str
    method: str
    args: tuple[Any, ...]
    wait: Wait | None
    is_over: bool = False


class Network:
    """Carries calls to the process that serves at an address; an address is its host's name.

    We call `carried` for each call that arrives, and `refused` with the kind of each refusal.
    """

    def __init__(self, clock: Clock, random: Random, deadline_seconds: float | None) -> None:
        self.state = NetworkState()
        self._clock = clock
        self._random = random
        self.carried: Callable[[str], None] = lambda _: None
        self.refused: Callable[[str], None] = lambda _: None
        self._deadline_seconds = deadline_seconds
        self._servers: dict[str, tuple[Process, object]] = {}
        self._open: dict[_Call, None] = {}
        # We count cuts, because faults overlap: the end of one must leave the cuts of another.
        self._cut: Counter[tuple[str, str]] = Counter()

    def serve(self, address: str, process: Process, service: object) -> None:
        """Let a process serve at an address, instead of the previous one."""
        self._servers[address] = process, service

    def cut(self, source: str, target: str) -> None:
        """Drop all messages from one host to another, until `mend` undoes it."""
        self._cut[source, target] += 1

    def mend(self, source: str, target: str) -> None:
        """Undo one cut."""
        self._cut[source, target] -= 1
        if not self._cut[source, target]:
            del self._cut[source, target]

    def hang_up(self, process: Process) -> None:
        """End the connections of a process, as its operating system does when it dies.

        Callers that wait for its answers notice, and so do all servers that it was connected to.
        """
        host = process.host
        # The network may also lose the end of a connection. Then only the deadline reveals it.
        for call in [c for c in self._open if host in (c.target, c.caller.host)]:
            other = call.caller.host if call.target == host else call.target
            self._carry(host, other, self._end, call, _unreachable(call))
        for address, (server, _) in self._servers.items():
            self._carry(host, address, server.do, server.connection_ended, (host,))

    def call(self, caller: Process, target: str, method: str, *args: Any) -> Any:
        """Call a method of the process at `target`, from a thread of the caller."""
        caller.check_alive()
        call = _Call(caller, target, method, args, wait := Wait())
        if self._deadline_seconds is not None:
            error = DeadlineExceeded(f"{target} did not answer in time")
            self._clock.after(self._deadline_seconds, self._end, call, error)
        self._carry(caller.host, target, self._arrive, call)
        if self.state.doubled and self._random.random() < self.state.doubled:
            # We ignore its answer: the caller hears one answer, but the server acts twice.
            copy = _Call(caller, target, method, args, None)
            self._carry(caller.host, target, self._arrive, copy)
        answer = caller.wait(wait)
        if isinstance(answer, DownpourError):
            raise answer
        return answer

    def _carry(self, source: str, target: str, action: Callable[..., None], *args: Any) -> None:
        state, random = self.state, self._random
        if state.lost and random.random() < state.lost:
            return
        if self._cut and (source, target) in self._cut:
            return
        if state.lost_at and self._is_lost_at(source, target):
            return
        delay = state.delay_seconds * (0.5 + random.random())
        if state.held_up and random.random() < state.held_up:
            delay += state.held_up_seconds * random.random()
        if state.far:
            delay += state.far.get(source, 0.0) + state.far.get(target, 0.0)
        self._clock.after(delay, action, *args)

    def _is_lost_at(self, *hosts: str) -> bool:
        shares = [self.state.lost_at[host] for host in hosts if host in self.state.lost_at]
        return any(self._random.random() < share for share in shares)

    def _arrive(self, call: _Call) -> None:
        server, service = self._servers.get(call.target, (None, None))
        if server is None or not server.alive:
            self._carry(call.target, call.caller.host, self._end, call, _unreachable(call))
            return
        self._open[call] = None
        self.carried(f"{server.role}.{call.method}")
        server.do(server.begin, (self._serve, service, call))

    def _serve(self, service: object, call: _Call) -> None:
        """Carry out a call in a thread of the server."""
        try:
            answer = getattr(service, call.method)(*call.args)
        except DownpourError as error:
            answer = error
            self.refused("BUSY" if isinstance(error, Refused) and error.busy else "UNKNOWN")
        self._open.pop(call, None)
        self._carry(call.target, call.caller.host, self._end, call, answer)

    def _end(self, call: _Call, answer: Any) -> None:
        if call.is_over:
            return
        call.is_over = True
        self._open.pop(call, None)
        if call.wait is not None:
            call.caller.do(call.caller.resume, (call.wait, answer))


def _unreachable(call: _Call) -> Unreachable:
    return Unreachable(call.target, "it does not answer")


class RemoteProcess:
    """The process at an address, as a caller's threads call it; its methods are those of RPC."""

    def __init__(self, network: Network, caller: Process, address: str) -> None:
        self.address = address
        self.local_host = caller.host
        self._network = network
        self._caller = caller

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._network.call, self._caller, self.address, method)

    def close(self) -> None:
        """Do nothing: calls in flight end at their deadline."""
