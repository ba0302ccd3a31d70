"""Events per second of the scheduler core, with 10, 1,000 and 10,000 workers.

What is held: the cost of an event stays roughly flat as workers and shards grow. Three kinds of
rounds are driven, each with heartbeats between assignment and answer: as many shards as workers
(`even`), three times as many (`queue`: a worker that answers gets the next shard), and half as many
(`spare`: half of the workers stay idle). Every twentieth attempt fails. Ticks come once per five
hundred events; they look at every worker, so they are timed apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import process_time

from common import Row, command_line, show

from downpour.base.states import FailureKind
from downpour.base.values import PublishedFile, SystemState, Update
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour_lab.trials.plan import plain_spec

WORKERS = (10, 1_000, 10_000)
SHARDS: dict[str, Callable[[int], int]] = {
    "even": lambda workers: workers,
    "queue": lambda workers: 3 * workers,
    "spare": lambda workers: workers // 2,
}
EVENTS = 60_000
TICK_EVERY = 500
FAIL_EVERY = 20

SYSTEM = SystemState(cpu_others=0.0, load_average=0.0, memory_used=0.0, io_wait=0.0)


@dataclass
class Timed:
    """Handles events and adds up what they cost."""

    scheduler: Scheduler = field(default_factory=Scheduler)
    seconds: float = 0.0
    tick_seconds: float = 0.0
    events: int = 0
    ticks: int = 0

    def handle(self, event: on.Event) -> Sequence[out.Command]:
        """Let an event happen."""
        began = process_time()
        output = self.scheduler.handle(event)
        took = process_time() - began
        if isinstance(event, on.Tick):
            self.ticks += 1
            self.tick_seconds += took
        else:
            self.events += 1
            self.seconds += took
        return output.commands


def file(name: str) -> PublishedFile:
    """Make a file of that name."""
    return PublishedFile(name=name, size_bytes=1, checksum="")


def beginning(workers: int, shards: int) -> Iterator[on.Event]:
    """Yield what happens before anything is commanded."""
    for index in range(workers):
        yield on.WorkerJoined(at_seconds=0.0, worker=f"w{index}")
    spec = plain_spec(shards=shards, epochs=1_000_000, evaluate_every=0, retries=1000)
    yield on.ExperimentSubmitted(at_seconds=0.0, experiment="one", spec=spec)


def answers(command: out.Command, number: int) -> Iterator[on.Event]:
    """Yield what happens because of a command."""
    match command:
        case out.Prepare():
            samples = (1,) * command.spec.shards
            yield on.Prepared(
                at_seconds=0.0,
                experiment="one",
                dataset="d",
                shard_samples=samples,
                model=file("m"),
            )
        case out.Assign(assigned) if number % FAIL_EVERY == 0:
            yield on.AttemptFailed(
                at_seconds=0.0,
                worker=assigned.worker,
                attempt=assigned.attempt,
                failure=FailureKind.TASK,
                reason="as planned",
            )
        case out.Assign(assigned):
            yield on.HeartbeatReceived(
                at_seconds=0.0, worker=assigned.worker, running=(), system=SYSTEM
            )
            yield on.UpdatePublished(
                at_seconds=0.0,
                worker=assigned.worker,
                attempt=assigned.attempt,
                update=_update(f"u{number}"),
            )
        case out.Aggregate():
            yield on.Aggregated(
                at_seconds=0.0,
                experiment="one",
                round=command.round,
                model=file(f"m{command.round}"),
            )
        case _:
            return


def drive(workers: int, shards: int) -> Timed:
    """Run rounds until enough events have happened, and at least two rounds."""
    timed = Timed()
    waiting: deque[on.Event] = deque(beginning(workers, shards))
    assigned = 0
    while waiting:
        commands = timed.handle(waiting.popleft())
        for command in commands:
            assigned += isinstance(command, out.Assign)
            waiting.extend(answers(command, assigned))
        if timed.events % TICK_EVERY == 0:
            timed.handle(on.Tick(at_seconds=0.0))
        one = timed.scheduler.state.experiments.get("one")
        if timed.events >= EVENTS and one is not None and one.rounds_done >= 2:
            break
    return timed


def main() -> None:
    """Print one line for each kind of round and number of workers."""
    options = command_line(__doc__).parse_args()
    rows: list[Row] = []
    for kind, shards_of in SHARDS.items():
        for workers in WORKERS:
            timed = drive(workers, shards_of(workers))
            each = timed.seconds / timed.events
            rows.append(
                {
                    "rounds": kind,
                    "workers": workers,
                    "shards": shards_of(workers),
                    "events_a_second": 1 / each,
                    "us_an_event": each * 1e6,
                    "ms_a_tick": timed.tick_seconds / timed.ticks * 1e3,
                }
            )
    show(rows, as_json=options.json)


def _update(name: str) -> Update:
    return Update(
        file=file(name),
        samples=1,
        steps=1,
        loss=0.0,
        load_seconds=0.0,
        train_seconds=0.0,
        publish_seconds=0.0,
    )


if __name__ == "__main__":
    main()
