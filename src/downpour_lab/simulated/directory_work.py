"""A simulated manager's work in the shared directory, with retries and waits."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.base.values import PublishedFile
from downpour.core.node.effects import Answers
from downpour.core.node.journal import Journaling, JournalWriter, Line, Segment
from downpour.core.scheduler import Entry, Output, Scheduler
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.files.store import layout
from downpour.record.view import aggregating
from downpour_lab.simulated import fake_files
from downpour_lab.simulated.disk import CLUSTER, LOOK_AGAIN_SECONDS, Disk
from downpour_lab.simulated.environment import Environment
from downpour_lab.simulated.network import Process

Done = Callable[[], None]
Job = Callable[[Done], None]


class Lane:
    """Runs jobs one after the other; each job calls `done` at its end."""

    __slots__ = ("_busy", "_jobs")

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._busy = False

    def submit(self, job: Job) -> None:
        """Run a job after all earlier ones."""
        self._jobs.append(job)
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = bool(self._jobs)
        if self._jobs:
            self._jobs.popleft()(self._next)


class Commander(Process):
    """A process that orders commands, and gets their results as events."""

    core: Scheduler
    term: int

    @property
    @abstractmethod
    def now_seconds(self) -> float:
        """The experiment time."""

    @abstractmethod
    def post(self, event: on.Event) -> None:
        """Queue an event."""

    @abstractmethod
    def crash(self, why: str) -> None:
        """Die at once."""


class MemorySegments:
    """The segments of one experiment's journal in the simulated directory, for one manager."""

    def __init__(self, disk: Disk, writer: Process, experiment: str) -> None:
        self._disk = disk
        self._writer = writer
        self._experiment = experiment

    def append(self, segment: Segment, lines: Sequence[Line], *, durably: bool) -> None:
        """Append to a segment; if the directory fails, some of the lines may be written."""
        self._disk.write_lines(self._writer, self._experiment, segment, list(lines), sync=durably)


class SimulatedPersistence:
    """A manager's journals, as in `cluster/manager/driver.py`, with few observations.

    Args:
        disk: the simulated directory.
        writer: the manager.
        term: the manager's term.
        first_order: the place of the next entry among those of all experiments.
        rounds: the number of rounds between two checkpoints.
        journal_class: the class of writers; tests plant defects in it.
    """

    def __init__(
        self,
        disk: Disk,
        writer: Process,
        term: int,
        first_order: int,
        rounds: int,
        journal_class: type[JournalWriter] = JournalWriter,
    ) -> None:
        self.journaling = Journaling(self._journal_of, first_order, rounds)
        self._disk = disk
        self._writer = writer
        self._term = term
        self._journal_class = journal_class
        self._journals: dict[str, JournalWriter | None] = {}

    def take_up(self, experiment: str, story: list[Line], *, ended: bool) -> None:
        """Continue a journal; the next commit ends what counts of an earlier manager's lines.

        The journal of an ended experiment takes no more lines.
        """
        self._journals[experiment] = None if ended else self._writer_of(experiment, story)

    def begin(self) -> None:
        """Write to the journals that this manager continues."""
        for journal in filter(None, self._journals.values()):
            journal.commit()

    def keep(self, core: Scheduler, event: on.Event, output: Output) -> list[Entry]:
        """Gather what must be journaled; return the part of it that replay needs."""
        begun = [each for each in output.commands if isinstance(each, do.Aggregate)]
        story = event, *output.facts, *map(aggregating, begun)
        return [kept.entry for kept in self.journaling.keep(core, event, output.facts, story)]

    def commit(self) -> None:
        """Write all gathered entries; after a SharedDirectoryError, callers may repeat the call."""
        self.journaling.commit()

    def tear(self) -> None:
        """Write some of the lines, as a crash in the middle of a commit leaves them."""
        for experiment in self.journaling.touched:
            journal = self._journal_of(experiment)
            segment, lines = journal.under_way if journal is not None else ((0, 0), ())
            some = lines[: self._disk.chance(len(lines))]
            with suppress(SharedDirectoryError):
                MemorySegments(self._disk, self._writer, experiment).append(
                    segment, some, durably=False
                )

    def _journal_of(self, experiment: str) -> JournalWriter | None:
        if experiment not in self._journals:
            self._journals[experiment] = self._writer_of(experiment, [])
        return self._journals[experiment]

    def _writer_of(self, experiment: str, story: list[Line]) -> JournalWriter:
        segments = MemorySegments(self._disk, self._writer, experiment)
        return self._journal_class(segments, self._term, story, cluster=CLUSTER)


class DirectoryWork:
    """Reads and publishes files for a manager, however often the directory refuses."""

    def __init__(self, environment: Environment, manager: Commander) -> None:
        self._environment = environment
        self._manager = manager
        self._answers = Answers(manager.post, lambda: manager.now_seconds)

    def _publish_as(
        self,
        as_name: str,
        experiment: str,
        model: PublishedFile,
        leading: Sequence[PublishedFile],
        published: Callable[[PublishedFile], None],
        done: Done,
    ) -> None:
        disk = self._environment.disk

        def copy(content: bytes) -> None:
            if as_name not in disk.names(self._manager.host, experiment):
                self._put(experiment, as_name, content, published, done)
                return
            there = disk.store(experiment).describe(as_name)
            if bytes(disk.store(experiment).read(there)) != content:
                raise RuntimeError(f"{as_name} of {experiment} is there, and another one")
            published(there)

        self._read_version(
            experiment,
            model,
            leading,
            lambda content: self._insist(lambda: copy(content), done),
            done,
        )

    def _give_out(self, done: Done) -> None:
        """End the manager, because the directory stays away; the next manager continues."""
        self._manager.crash("because the shared directory stays away")
        done()

    def _insist(self, act: Callable[[], None], done: Done, waited: float = 0.0) -> None:
        """Repeat an action while the directory fails; end the manager when its patience ends."""
        try:
            act()
        except SharedDirectoryError:
            self._wait(partial(self._insist, act, done), done, waited)

    def _wait(self, again: Callable[[float], None], done: Done, waited: float) -> None:
        if waited >= self._environment.disk.timings.patience_seconds:
            self._give_out(done)
        else:
            self._manager.after(LOOK_AGAIN_SECONDS, again, waited + LOOK_AGAIN_SECONDS)

    def _takes(self, seconds: float) -> float:
        return self._environment.disk.takes(seconds, self._manager.host)

    def _put_version(
        self,
        experiment: str,
        number: int,
        model: bytes,
        outer: bytes | None,
        then: Callable[[PublishedFile, Sequence[PublishedFile]], None],
        done: Done,
        own: Mapping[int, bytes] | None = None,
    ) -> None:
        """Publish a model version, after the outer state and the shards' own parameters."""
        token = self._environment.token()
        files = deque([(layout.outer_name(number, token), outer)] if outer is not None else [])
        files += ((layout.own_name(number, n, token), made) for n, made in (own or {}).items())
        published: list[PublishedFile] = []

        def next_one(file: PublishedFile | None = None) -> None:
            published.extend([file] if file is not None else [])
            if files:
                self._put(experiment, *files.popleft(), next_one, done)
            else:
                name = layout.model_name(number, token)
                self._put(experiment, name, model, lambda made: then(made, published), done)

        next_one()

    def _put(
        self,
        experiment: str,
        name: str,
        content: bytes,
        then: Callable[[PublishedFile], None],
        done: Done,
    ) -> None:
        def failed(_: StoreError) -> None:
            self._give_out(done)

        patience = self._environment.disk.timings.patience_seconds
        publish = self._environment.disk.publish
        publish(self._manager, experiment, name, content, then, failed, patience)

    def _read(
        self, experiment: str, file: PublishedFile, then: Callable[[bytes], None], done: Done
    ) -> None:
        def failed(error: StoreError) -> None:
            if isinstance(error, SharedDirectoryError):
                self._give_out(done)
                return
            self._answers.failed(experiment, str(error))
            done()

        patience = self._environment.disk.timings.patience_seconds
        read = self._environment.disk.read
        read(self._manager, experiment, file, then, failed, patience, patience)

    def _read_version(
        self,
        experiment: str,
        file: PublishedFile,
        leading: Sequence[PublishedFile],
        then: Callable[[bytes], None],
        done: Done,
    ) -> None:
        """Read a version and, if it is a step, the versions that lead to it."""

        def read(content: bytes) -> None:
            if not fake_files.is_step(content):
                then(content)
                return
            follow = partial(fake_files.led_to, step=content)
            before, earlier = leading[-1], leading[:-1]
            self._read_version(experiment, before, earlier, lambda base: then(follow(base)), done)

        self._read(experiment, file, read, done)
