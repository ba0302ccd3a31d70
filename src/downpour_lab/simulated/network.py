"""Virtual time, and the calls between processes in it.

A call ends with an answer or fails: at once if no process listens, at its deadline if no answer
comes. As in reality, the caller then does not know whether the call or its answer was lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from struct import pack
from typing import Any, NamedTuple

import xxhash

from downpour.base.values import AttemptId, PublishedFile

Action = Callable[..., None]


class Clock:
    """A queue of actions; actions due at the same time run in the order of their addition."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._count = 0
        self._trace = xxhash.xxh3_64()

    def after(self, seconds: float, action: Action, *args: Any) -> None:
        """Add an action that runs after some seconds."""
        # The count keeps actions of one moment in the order of their addition, and the heap never
        # compares two actions.
        self._count += 1
        heappush(self._heap, (self.now_seconds + seconds, self._count, action, args))

    def step(self) -> bool:
        """Run the next action; return whether there was one."""
        if not self._heap:
            return False
        self.now_seconds, _, action, args = heappop(self._heap)
        self.steps += 1
        self._trace.update(pack("d", self.now_seconds))
        action(*args)
        return True

    @property
    def digest(self) -> str:
        """A digest of the times of everything that has happened so far."""
        # Almost every action draws how long it takes, so two runs that differ anywhere also have
        # different digests.
        return self._trace.hexdigest()


class Process:
    """A process that can stand still for a while, and die; a restart makes another object.

    All its actions go through `after` or `do`. `host` is the machine that it runs on, `role` the
    interface that it serves.
    """

    role = ""

    def __init__(self, clock: Clock, host: str) -> None:
        self.clock = clock
        self.host = host
        self.alive = True
        self._still_until = 0.0

    def after(self, seconds: float, action: Action, *args: Any) -> None:
        """Run an action after some seconds, if the process is still alive."""
        self.clock.after(seconds, self.do, action, args)

    def do(self, action: Action, args: tuple[Any, ...]) -> None:
        """Run an action now; later if the process stands still, and never if it is dead."""
        if not self.alive:
            return
        still = self._still_until - self.clock.now_seconds
        if still > 0:
            self.clock.after(still, self.do, action, args)
        else:
            action(*args)

    def stand_still(self, seconds: float) -> None:
        """Run no actions for a while, like a suspended or swapped-out process."""
        self._still_until = self.clock.now_seconds + seconds

    def connection_ended(self, host: str) -> None:
        """Note that the connections from a host have ended; only some processes react."""

    def die(self) -> None:
        """Run no actions from now on."""
        self.alive = False


class TrainRequest(NamedTuple):
    """Train a shard of this many `samples`; `term` is the term of the calling manager.

    `portion` is the range of the samples, if the policy resized shards. `share` is how much of the
    steps to train. If rounds overlap, the shard begins from the model moved by `step`. The steps of
    the versions in `leading` lead to the model.
    """

    attempt: AttemptId
    model: PublishedFile
    optimizer_state: PublishedFile | None
    keeps_state: bool
    term: int
    snapshot: PublishedFile | None = None
    samples: int = 0
    portion: tuple[int, int] | None = None
    share: float = 1.0
    step: PublishedFile | None = None
    leading: tuple[PublishedFile, ...] = ()


class RegistrationReply(NamedTuple):
    """A manager of this term has registered the worker under this name."""

    worker: str
    term: int


Answer = Callable[[Any], None]
Failed = Callable[[str], None]

DIRECTIONS = HEARS_NOTHING, IS_NOT_HEARD = "hears nothing", "is not heard"
"""How a fault cuts a host off in one direction. A host that is not heard can't answer either."""

UNREACHABLE = "cannot be reached"
OVERDUE = "did not answer in time"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that refuses the call; its `kind` is one of the interface's."""

    reason: str
    kind: str = "UNKNOWN"


STOPPING = "is stopping"
"""The reason that a stopping manager gives; workers then repeat their reports."""


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


class _Call:
    __slots__ = ("answered", "args", "caller", "failed", "method", "over", "target")

    def __init__(
        self,
        caller: Process,
        target: str,
        method: str,
        args: tuple[Any, ...],
        answered: Answer,
        failed: Failed,
    ) -> None:
        self.caller = caller
        self.target = target
        self.method = method
        self.args = args
        self.answered = answered
        self.failed = failed
        self.over = False


class Network:
    """Carries calls to the process that serves at an address; an address is its host's name.

    We call `carried` for each call that arrives, and `refused` with the kind of each refusal.
    """

    def __init__(self, clock: Clock, random: Random, deadline_seconds: float | None) -> None:
        self.state = NetworkState()
        self._clock = clock
        self._random = random
        self.carried: Callable[[str], None] = _ignore
        self.refused: Callable[[str], None] = _ignore
        self._deadline_seconds = deadline_seconds
        self._servers: dict[str, Process] = {}
        self._open: dict[_Call, None] = {}
        # We count cuts, because faults overlap: the end of one must leave the cuts of another.
        self._cut: Counter[tuple[str, str]] = Counter()

    def serve(self, address: str, process: Process) -> None:
        """Let a process serve at an address, instead of the previous one."""
        self._servers[address] = process

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
            self._carry(host, other, self._end, call, None, UNREACHABLE)
        for address, server in self._servers.items():
            self._carry(host, address, server.do, server.connection_ended, (host,))

    def call(
        self,
        caller: Process,
        target: str,
        method: str,
        *args: Any,
        answered: Answer,
        failed: Failed,
    ) -> None:
        """Call a method of the process at `target`; pass a function to answer before `args`."""
        call = _Call(caller, target, method, args, answered, failed)
        if self._deadline_seconds is not None:
            self._clock.after(self._deadline_seconds, self._end, call, None, OVERDUE)
        self._carry(caller.host, target, self._arrive, call)
        if self.state.doubled and self._random.random() < self.state.doubled:
            # We ignore its answer: the caller hears one answer, but the server acts twice.
            again = _Call(caller, target, method, args, _ignore, _ignore)
            self._carry(caller.host, target, self._arrive, again)

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
        server = self._servers.get(call.target)
        if server is None or not server.alive:
            self._carry(call.target, call.caller.host, self._end, call, None, UNREACHABLE)
            return

        self._open[call] = None
        self.carried(f"{server.role}.{call.method}")

        def answer(value: Any) -> None:
            self._open.pop(call, None)
            if isinstance(value, Refusal):
                self.refused(value.kind)
            self._carry(call.target, call.caller.host, self._end, call, value, "")

        server.do(getattr(server, call.method), (answer, *call.args))

    def _end(self, call: _Call, value: Any, failure: str) -> None:
        if call.over:
            return
        call.over = True
        self._open.pop(call, None)
        if failure:
            call.caller.do(call.failed, (failure,))
        elif isinstance(value, Refusal):
            call.caller.do(call.failed, (value.reason,))
        else:
            call.caller.do(call.answered, (value,))


def _ignore(_: Any) -> None:
    """Ignore the answer to the copy of a doubled call."""
