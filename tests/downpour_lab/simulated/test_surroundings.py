"""Time, network and directory of a simulation: what they guarantee, and what they lose."""

from collections.abc import Callable
from contextlib import nullcontext
from queue import Empty
from random import Random
from typing import Any

import pytest

from downpour.base.errors import (
    DownpourError,
    FileCorrupt,
    FileMissing,
    Refused,
    SharedDirectoryError,
)
from downpour.base.values import PublishedFile
from downpour.core.node.journal import Line
from downpour.core.scheduler import Journaled
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.files.store.publish import RetryPolicy
from downpour.record.view import aggregating
from downpour_lab.simulated.disk import (
    AWAY,
    CLUSTER,
    ERRORS,
    OPERATIONS,
    Disk,
    DiskTimings,
    Operation,
    SimulatedStore,
    Trouble,
)
from downpour_lab.simulated.threads import Clock, Network, Process, SimulatedThreads
from downpour_lab.trials.checks import RecordCheck
from downpour_lab.trials.promises import Comparisons
from tests.specs import plain_spec


class Echo(Process):
    """Answers as the test has set, and remembers its calls."""

    def __init__(self, clock: Clock, host: str = "echo") -> None:
        super().__init__(clock, host)
        self.heard: list[str] = []
        self.hung_up: list[str] = []

    def connection_ended(self, host: str) -> None:
        """Remember which host has hung up."""
        self.hung_up.append(host)

    def say(self, word: str) -> str:
        """Answer, unless the test has set it silent."""
        self.heard.append(word)
        if word == "nothing":
            self.sleep(60.0)
        if word == "no":
            raise Refused("word", "not that")
        return word


class Place:
    """A clock, a network and a disk, with a caller and two servers; `ended_at` is of an answer."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.random = Random(1)
        self.network = Network(self.clock, self.random, deadline_seconds=3.0)
        self.disk = Disk(self.clock, self.random, DiskTimings(patience_seconds=5.0))
        self.caller, self.echo = Process(self.clock, "caller"), Echo(self.clock)
        self.other = Echo(self.clock, "other")
        self.ended_at = 0.0
        for server in (self.echo, self.other):
            self.network.serve(server.host, server, server)

    def ask(self, word: str, whom: str = "echo") -> Any:
        """Call, run all actions, and return the answer, or the name of the error."""
        return self.result_of(lambda: self.network.call(self.caller, whom, "say", word))

    def result_of(self, act: Callable[[], Any], process: Process | None = None) -> Any:
        """Act in a thread of a process, run all actions, and return the result."""
        results: list[Any] = []

        def run() -> None:
            try:
                results.append(act())
            except DownpourError as error:
                results.append(type(error).__name__)
            self.ended_at = self.clock.now_seconds

        (process or self.caller).begin(run)
        self.run()
        return results[0] if results else None

    def run(self) -> None:
        while self.clock.step():
            pass

    def store(self, process: Process | None = None) -> SimulatedStore:
        """Return the files of experiment `e`, as a process sees them."""
        process = process or self.caller
        policy = RetryPolicy(seconds=5.0, sleep=process.sleep)
        return SimulatedStore(self.disk, process, "e", policy)

    def publish(self, name: str) -> Any:
        """Publish a file, run all actions, and return the result."""
        return self.result_of(lambda: self.store().put_new(name, [b"some"]))


@pytest.fixture
def place() -> Place:
    """Make surroundings without faults."""
    return Place()


def test_things_happen_in_the_order_of_their_times(place: Place) -> None:
    """At one time, in the order in which they were added."""
    seen: list[str] = []
    for seconds, what in ((2.0, "c"), (1.0, "a"), (1.0, "b")):
        place.clock.after(seconds, seen.append, what)
    place.run()
    assert (seen, place.clock.now_seconds, place.clock.steps) == (["a", "b", "c"], 2.0, 3)


def test_a_process_that_stands_still_acts_later_and_a_dead_one_never(place: Place) -> None:
    """In the same order."""
    seen: list[str] = []
    place.caller.after(1.0, seen.append, "first")
    place.caller.after(2.0, seen.append, "second")
    place.caller.stand_still(10.0)
    place.run()
    assert (seen, place.clock.now_seconds) == (["first", "second"], 10.0)
    place.caller.after(1.0, seen.append, "third")
    place.caller.die()
    place.run()
    assert seen == ["first", "second"]


def test_a_process_that_dies_ends_its_threads(place: Place) -> None:
    """At the wait in which they are, and at the next one if they run."""
    steps: list[str] = []

    def work() -> None:
        try:
            steps.append("begun")
            place.caller.sleep(1.0)
            steps.append("slept")
        finally:
            steps.append("ended")
            place.caller.sleep(1.0)
            steps.append("cleaned up")

    place.caller.begin(work)
    place.caller.die()
    place.run()
    assert steps == ["begun", "ended"]


def test_a_thread_waits_for_another(place: Place) -> None:
    """For an item, no longer than its timeout, and for a result."""
    threads = SimulatedThreads(place.caller)
    queue, reply, seen = threads.queue(), threads.reply(), list[Any]()

    def get() -> None:
        seen.append(queue.get(timeout=1.0))
        with pytest.raises(Empty):
            queue.get(timeout=1.0)
        reply.set_result("done")

    threads.start("getting", get)
    place.clock.after(0.5, queue.put, "item")
    assert (place.result_of(reply.result), seen) == ("done", ["item"])
    assert place.clock.now_seconds == 1.5


def test_a_call_is_answered_or_refused_or_fails(place: Place) -> None:
    """Each ends once."""
    assert place.ask("hello") == "hello"
    assert place.ask("no") == "Refused"
    place.echo.die()
    assert place.ask("hello") == "Unreachable"


def test_a_lost_call_ends_at_the_deadline(place: Place) -> None:
    """The caller cannot know whether the call was lost or its answer."""
    place.network.cut("caller", "echo")
    assert place.ask("hello") == "DeadlineExceeded"
    place.network.mend("caller", "echo")
    assert place.ask("nothing") == "DeadlineExceeded"
    assert place.echo.heard == ["nothing"]
    place.network.cut("other", "caller")
    assert place.ask("hello", "other") == "DeadlineExceeded"
    assert place.other.heard == ["hello"]


def test_a_link_that_was_cut_twice_is_mended_twice(place: Place) -> None:
    """The end of one fault mends nothing of another."""
    for _ in range(2):
        place.network.cut("caller", "echo")
    place.network.mend("caller", "echo")
    assert place.ask("hello") == "DeadlineExceeded"
    place.network.mend("caller", "echo")
    assert place.ask("hello") == "hello"


def test_a_host_that_loses_messages_or_is_far_hinders_no_other(place: Place) -> None:
    """A request and its answer both take the way."""
    place.network.state.lost_at["echo"] = 1.0
    assert place.ask("hello") == "DeadlineExceeded"
    assert place.ask("hello", "other") == "hello"
    place.network.state.far["other"] = 1.0
    began = place.clock.now_seconds
    assert place.ask("hello", "other") == "hello"
    assert 2.0 < place.ended_at - began < 2.1


def test_callers_see_that_a_process_hangs_up(place: Place) -> None:
    """Long before the deadline; the servers that it called see it as well."""
    place.clock.after(0.1, place.network.hang_up, place.echo)
    assert place.ask("nothing") == "Unreachable"
    place.network.hang_up(place.caller)
    place.run()
    assert place.echo.hung_up == ["echo", "caller"]


def test_a_call_that_comes_twice_is_answered_once(place: Place) -> None:
    """The server gets the call twice."""
    place.network.state.doubled = 1.0
    assert place.ask("hello") == "hello"
    assert place.echo.heard == ["hello", "hello"]


def test_a_published_file_is_whole(place: Place) -> None:
    """It does not appear if its writer died before."""
    file = place.publish("update")
    assert place.disk.look(place.echo, "e", file) == b"some"
    place.caller.begin(place.store().put_new, "other", [b"some"])
    place.caller.die()
    place.run()
    assert place.disk.store("e").list() == ["update"]


def test_others_may_see_a_file_late(place: Place) -> None:
    """Its writer sees it at once, and a patient reader in the end."""
    place.disk.state.stale_seconds = 4.0
    file = place.publish("update")
    assert place.disk.look(place.caller, "e", file) == b"some"
    with pytest.raises(FileMissing):
        place.disk.look(place.echo, "e", file)
    assert place.result_of(lambda: place.store(place.echo).read(file), place.echo) == b"some"


def test_patience_with_a_directory_that_is_away_ends(place: Place) -> None:
    """For readers and writers; a damaged file is refused as well."""
    file = place.publish("update")
    place.disk.state.troubles.append(AWAY)
    assert place.publish("other") == "SharedDirectoryError"
    place.disk.state.troubles.clear()
    place.disk.damaged.add("update")
    assert place.result_of(lambda: place.store().read(file)) == "FileCorrupt"


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_the_directory_refuses_is_the_directorys(
    place: Place, error: str, operation: Operation
) -> None:
    """By the store's own rule; one file that is not visible is missing, and no more."""
    trouble = Trouble(error=error, operation=operation, host="caller")
    place.disk.state.once.append(trouble)
    for other in OPERATIONS:
        place.disk.ask("echo", other)
        if other != operation:
            place.disk.ask("caller", other)
    kind = FileMissing if (error, operation) == ("ENOENT", "read") else SharedDirectoryError
    with pytest.raises(kind):
        place.disk.ask("caller", operation, "update")
    place.disk.ask("caller", operation)


def lines(count: int) -> list[Line]:
    """Make journal lines."""
    entry = on.ExperimentSubmitted(at_seconds=0.0, experiment="e", spec=plain_spec(shards=1))
    return [
        Line(number=n, order=n, at_seconds=0.0, entry=entry, cluster=CLUSTER)
        for n in range(1, count + 1)
    ]


def test_a_machine_that_dies_loses_what_it_had_not_synced(place: Place) -> None:
    """And nothing that was synced since."""
    disk, made = place.disk, lines(40)
    disk.write_lines(place.caller, "e", (1, 1), made[:2], sync=True)
    disk.write_lines(place.caller, "e", (1, 1), made[2:], sync=False)
    disk.lose_unsynced("another host")
    assert disk.stories() == {"e": made}
    disk.lose_unsynced("caller")
    kept = disk.stories()["e"]
    assert 2 <= len(kept) < 40
    disk.settle()
    disk.lose_unsynced("caller")
    assert disk.stories() == {"e": kept}


def test_a_directory_that_is_away_takes_lines_in_part_and_says_so(place: Place) -> None:
    """As a write that fails in the middle does."""
    place.disk.state.troubles.append(AWAY)
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        place.disk.write_lines(place.caller, "e", (1, 1), lines(40), sync=True)
    assert len(place.disk.stories().get("e", [])) < 40


@pytest.mark.parametrize(
    ("rounds", "lost", "sentence"),
    [
        ((0, 1), (), ""),
        ((0, 0), (), "tells of versions \\[1, 1\\]"),
        ((0, 1, 2), (), "tells of version \\[3\\]"),
        ((0, 1), (2,), "entry 2 is missing"),
    ],
)
def test_a_record_that_is_not_of_one_piece_is_found(
    place: Place, rounds: tuple[int, ...], lost: tuple[int, ...], sentence: str
) -> None:
    """Two versions were made: it tells of each once, and no entry of the journal is missing."""
    entries: list[Journaled] = [lines(1)[0].entry]
    file = PublishedFile(name="model", size_bytes=1, checksum="0")
    for number in rounds:
        event = on.Aggregated(at_seconds=1.0, experiment="e", round=number, model=file)
        command = out.Aggregate(
            experiment="e", round=number, model=file, pushes=(), train_seconds=1.0
        )
        entries += [aggregating(command), event]
    log = [
        Line(number=number, order=number, at_seconds=1.0, entry=entry)
        for number, entry in enumerate(entries, start=1)
    ]
    kept = [line for line in log if line.number not in lost]
    place.disk.write_lines(place.caller, "e", (1, 1), kept, sync=True)
    errors = AssertionError, FileCorrupt
    with pytest.raises(errors, match=sentence) if sentence else nullcontext():
        RecordCheck(Comparisons(), place.disk)._look("e", 2, log)


def test_one_process_holds_the_lock_until_it_dies(place: Place) -> None:
    """After the machine's death, until the server notices."""
    disk = place.disk
    assert disk.lock(place.caller)
    assert not disk.lock(place.echo)
    disk.unlock_later(place.caller, 5.0)
    place.caller.die()
    assert not disk.lock(place.echo)
    place.clock.after(5.0, lambda: None)
    place.run()
    assert disk.lock(place.echo)
    disk.lose_lock()
    assert disk.lock(Process(place.clock, "third"))


def test_only_a_dead_worker_s_late_file_may_stay_behind() -> None:
    """What is published after an experiment was swept is removed by its report, if that comes."""
    place = Place()
    disk, dying, living = place.disk, Process(place.clock, "dying"), Process(place.clock, "living")

    def publish(writer: Process, name: str) -> None:
        place.result_of(lambda: disk.publish(writer, "e1", name, b""), writer)

    publish(dying, "early")
    disk.delete("manager", "e1", "early")
    disk.sweep("e1")
    publish(dying, "late")
    publish(living, "later")
    assert not any(map(disk.may_stay, ("early", "late", "later")))
    dying.alive = False
    assert [name for name in ("early", "late", "later") if disk.may_stay(name)] == ["late"]


def test_the_directory_may_be_slow_for_one_host(place: Place) -> None:
    """Where it is slow for all as well, the slower of both counts."""
    disk = place.disk
    disk.state.slower, disk.state.slower_at["caller"] = 10.0, 100.0
    assert 50 <= disk.takes(1.0, "caller") <= 150
    assert 5 <= disk.takes(1.0, "echo") <= 15


def test_a_lease_ends_only_for_its_holder(place: Place) -> None:
    """A host that no longer holds the lock cannot end the lease of the host that does."""
    disk = place.disk
    assert disk.lock(place.caller)
    disk.lose_lock(place.echo)
    assert not disk.lock(place.echo)
    disk.lose_lock(place.caller)
    assert disk.lock(place.echo)
