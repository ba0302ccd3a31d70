"""Virtual time, the threads of processes in it, and the calls between processes.

A thread of a simulated process is a greenlet, so the shipped code runs here as it is. When it
waits for a file, a call or a moment, the greenlet switches back to the clock, which resumes it
later. Only one thread runs at a time, and it runs until it waits.

A call ends with an answer or fails: at once if no process listens, at its deadline if no answer
comes. As in reality, the caller then does not know whether the call or its answer was lost.
"""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from queue import Empty
from random import Random
from struct import pack
from typing import Any

import xxhash
from greenlet import GreenletExit, getcurrent, greenlet

from downpour.base.errors import DeadlineExceeded, DownpourError, Refused, Unreachable
from downpour.host.process import Threads

Action = Callable[..., object]


class Clock:
    """A queue of actions; actions due at the same time run in the order of their addition."""

    def __init__(self) -> None:
        self.now_seconds = 0.0
        self.steps = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._count = 0
        self._trace = xxhash.xxh3_64()
        self.processes: list[Process] = []

    def after(self, seconds: float, action: Action, *args: Any) -> None:
        """Add an action that runs after some seconds."""
        # The count keeps actions of one moment in the order of their addition, and the heap never
        # compares two actions.
        self._count += 1
        heappush(self._heap, (self.now_seconds + seconds, self._count, action, args))

    def now(self) -> float:
        """Return the virtual time."""
        return self.now_seconds

    def step(self) -> bool:
        """Run the next action; return whether there was one."""
        if not self._heap:
            return False
        self.now_seconds, _, action, args = heappop(self._heap)
        self.steps += 1
        self._trace.update(pack("d", self.now_seconds))
        action(*args)
        return True

    def end(self) -> None:
        """End all threads; the garbage collector cannot see what a suspended one refers to."""
        for process in self.processes:
            Process.die(process)

    @property
    def digest(self) -> str:
        """A digest of the times of everything that has happened so far."""
        # Almost every action draws how long it takes, so two runs that differ anywhere also have
        # different digests.
        return self._trace.hexdigest()


ProcessDied = GreenletExit
"""Ends the threads of a process that has died."""


class Wait:
    """One wait of the current thread. Other waits of the same thread end on their own."""

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = getcurrent()


class Process:
    """A process that can stand still for a while, and die; a restart makes another object.

    All its actions go through `after` or `do`, also the resumption of its threads. `host` is the
    machine that it runs on, `role` the interface that it serves.
    """

    role = ""

    def __init__(self, clock: Clock, host: str) -> None:
        self.clock = clock
        self.host = host
        self.alive = True
        self._still_until = 0.0
        self._waits: dict[Wait, None] = {}
        clock.processes.append(self)

    def begin(self, action: Callable[..., object], *args: Any) -> None:
        """Run an action in a new thread, now and until it waits."""
        _switch(greenlet(action), *args)

    def wait(self, wait: Wait) -> Any:
        """Let the current thread wait until `resume`, and return the value that came with it."""
        self.check_alive()
        self._waits[wait] = None
        return wait.thread.parent.switch()

    def resume(self, wait: Wait, value: Any = None) -> None:
        """End a wait, if the thread still waits."""
        if self.alive and wait in self._waits:
            del self._waits[wait]
            _switch(wait.thread, value)

    def sleep(self, seconds: float) -> None:
        """Let the current thread wait for some seconds."""
        wait = Wait()
        self.after(seconds, self.resume, wait)
        self.wait(wait)

    def check_alive(self) -> None:
        """End the current thread if the process is dead."""
        if not self.alive:
            raise ProcessDied

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
        """Run no actions from now on, and end all threads that wait."""
        self.alive = False
        while self._waits:
            wait, _ = self._waits.popitem()
            wait.thread.parent = getcurrent()
            wait.thread.throw(ProcessDied)


def _switch(thread: greenlet, *args: Any) -> None:
    """Run a thread until it waits or ends, and return here then."""
    thread.parent = getcurrent()
    thread.switch(*args)


class SimulatedThreads(Threads):
    """The threads of a simulated process; its clock may be wrong by `skew_seconds`."""

    def __init__(self, process: Process) -> None:
        self.skew_seconds = 0.0
        self._process = process

    def now(self) -> float:
        """Return virtual time, as the process sees it."""
        return self._process.clock.now_seconds + self.skew_seconds

    def sleep(self, seconds: float) -> None:
        """Let the current thread wait."""
        self._process.sleep(seconds)

    def start(self, name: str, target: Callable[..., object], *args: Any) -> Any:  # noqa: ARG002 - no tool shows the name
        """Run a function in a thread, now and until it waits."""
        ended = _Reply(self._process)

        def run() -> None:
            target(*args)
            ended.set_result(None)

        self._process.begin(run)
        return ended

    def queue(self) -> Any:
        """Make a queue between threads of the process."""
        return _Queue(self._process)

    def reply(self) -> Any:
        """Make the place of a result."""
        return _Reply(self._process)

    def flag(self) -> Any:
        """Make a flag."""
        return _Flag(self._process)


class _Queue:
    """A queue for one thread that gets its items; see `SimpleQueue`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._items: deque[Any] = deque()
        self._wait: Wait | None = None

    def put(self, item: Any) -> None:
        self._items.append(item)
        if self._wait is not None:
            self._process.resume(self._wait)

    def get(self, *, timeout: float | None = None) -> Any:
        if not self._items:
            self._wait = Wait()
            if timeout is not None:
                self._process.after(timeout, self._process.resume, self._wait)
            self._process.wait(self._wait)
            self._wait = None
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if not self._items:
            raise Empty
        return self._items.popleft()


class _Reply:
    """The result of another thread; see `Future`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._result: Any = None
        self._is_done = False
        self._wait: Wait | None = None

    def result(self, timeout: float | None = None) -> Any:  # noqa: ARG002 - no caller sets it here
        if not self._is_done:
            self._wait = Wait()
            self._process.wait(self._wait)
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    join = result

    def done(self) -> bool:
        return self._is_done

    def set_result(self, result: Any) -> None:
        self._result, self._is_done = result, True
        if self._wait is not None:
            self._process.resume(self._wait)

    set_exception = set_result


class _Flag:
    """A flag; its waits end no sooner for it, but the next ones do."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def wait(self, timeout: float) -> bool:
        if not self._is_set:
            self._process.sleep(timeout)
        return self._is_set


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
