"""Continues the experiments of earlier managers of this directory, and lists the ones that ended.

It continues each one separately, but never a copy, another cluster's folder, or a run's own, which
only that run continues (`recover_run`). It does not touch the files of an experiment that cannot
continue, and removes files that only an earlier manager knew of.

No manager continues the experiments in the archive; `downpour list` shows its entries. The ended
ones are in one file, `ended-TERM.jsonl`, so that a start does not read thousands of journals. It
only saves time: if it is missing or damaged, the manager reads the journals instead. Each manager
writes a new file with everything that it knows. Later managers read only the file of the highest
term, because a manager that does not know of its successor may still write to its own.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError, StoreError
from downpour.base.states import ExperimentState
from downpour.cluster.manager import status
from downpour.cluster.manager.aggregation import Aggregation
from downpour.cluster.manager.work import last_versions, remove, sweep
from downpour.cluster.manager.workspace import Workspace, reopen_workspace
from downpour.core.node.journal import Line
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler.experiment import Experiment
from downpour.files.store import SharedDirectory, layout
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.lease import Leader
from downpour.files.store.publish import TEMPORARY_PREFIX, publish, reading
from downpour.files.store.shared_directory import RUN_LOCK_NAME, is_abandoned
from downpour.network.rpc.messages import ExperimentSummary
from downpour.record import journal as journal_files
from downpour.record.mirror import fetch_journals
from downpour.record.record import RecordReader, export_record, read_record
from downpour.record.record_lines import SubmittedLine, WorkerJoinedLine, WorkerLeftLine

log = logging.getLogger(__name__)

_NAME = re.compile(r"ended-(\d+)\.jsonl")
_RECORDS_OPEN = 8
"""The number of readers that stay open, because a new one first reads the whole record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveEntry:
    """A folder that a starting manager need not read.

    It belongs to an ended experiment, whose submission has this `place` among all submissions. Or
    it belongs to a run without a cluster, which no manager continues, and has no summary.
    """

    folder: str
    place: int = 0
    summary: ExperimentSummary | None = None


_ENTRY = TypeAdapter(ArchiveEntry)


class Archive:
    """The ended experiments; in memory only, until `begin`.

    `places` holds each submission's number among the journal entries of all experiments. `states`
    and `rounds_done` count over all experiments in the archive.
    """

    def __init__(self, shared: SharedDirectory) -> None:
        self.places: dict[str, int] = {}
        self.states: Counter[ExperimentState] = Counter()
        self.rounds_done = 0
        self._shared = shared
        self._ended: dict[str, ArchiveEntry] = {}
        self._left_out: dict[str, ExperimentSummary] = {}
        self._concluded: dict[str, ExperimentSummary] = {}
        self._path: Path | None = None
        self._record = lru_cache(_RECORDS_OPEN)(self._read_record)

    def read(self, folders: Collection[str]) -> None:
        """Read the previous manager's entries for folders that still exist."""
        files = _files(self._shared.root)
        if not files:
            return
        try:
            content = read_regular(files[-1])
        except StoreError as error:
            line = "cannot read %s, so the manager reads every journal: %s"
            log.warning(line, files[-1].name, error)
            return
        for text in journal_files.whole_lines(content):
            # Another version wrote an invalid line. It only costs a look at that folder.
            with suppress(ValidationError):
                entry = _ENTRY.validate_json(text)
                if entry.folder in folders:
                    self._note(entry)

    def begin(self, term: int) -> None:
        """Write the known experiments to this term's file, if we can; later calls append to it."""
        former = _files(self._shared.root)
        name = f"ended-{term:06d}.jsonl"
        try:
            publish(self._shared.root, name, [b"".join(map(_line, self._ended.values()))])
        # If the directory has failed, no manager can work. Otherwise this file only saves time.
        except SharedDirectoryError:
            raise
        except StoreError as error:
            log.warning("the next start reads every journal: %s", error)
            return
        self._path = self._shared.root / name
        for path in former:
            with suppress(OSError):  # a file that stays is never read: its term is lower
                path.unlink()

    def conclude(self, summary: ExperimentSummary) -> None:
        """Note how an experiment has ended; its folder is not cleaned up yet."""
        self._concluded[summary.experiment] = summary

    def end(self, experiment: str) -> None:
        """Note an experiment that has ended and whose folder is cleaned up."""
        summary = self._concluded.pop(experiment, None)
        if summary is not None:
            place = self.places.get(experiment, 0)
            self._add(ArchiveEntry(folder=experiment, place=place, summary=summary))

    def pass_by(self, folder: str) -> None:
        """Note a folder that belongs to a run without a cluster."""
        self._add(ArchiveEntry(folder=folder))

    def _add(self, entry: ArchiveEntry) -> None:
        self._note(entry)
        if self._path is not None:
            with suppress(OSError):  # its journal says the same, so nothing is lost
                # Open the file each time, and never create it: if someone removed it, the next
                # start should read the journals rather than a file that lacks its beginning.
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                try:
                    # Write once, without a sync. A torn or lost line only makes the next start look
                    # at that folder, and at the folder on the following line.
                    os.write(file, _line(entry))
                finally:
                    os.close(file)

    def _note(self, entry: ArchiveEntry) -> None:
        self._count(self.summary(entry.folder), -1)
        self._ended[entry.folder] = entry
        self._count(entry.summary, +1)
        if entry.summary is not None:
            self.places[entry.folder] = entry.place

    def _count(self, summary: ExperimentSummary | None, by: int) -> None:
        if summary is not None:
            self.states[summary.state] += by
            self.rounds_done += by * summary.rounds_done

    def leave_out(self, experiment: str, reason: str) -> None:
        """Note an experiment that cannot be continued, and why."""
        line = "the manager leaves out experiment %s and does not touch its files: %s"
        log.warning(line, experiment, reason)
        self._count(self.summary(experiment), -1)
        self._left_out[experiment] = ExperimentSummary(
            experiment=experiment,
            name=experiment,
            state=ExperimentState.FAILED,
            rounds_done=0,
            rounds_total=0,
            reason=f"left out: {reason}",
        )
        self._count(self.summary(experiment), +1)

    def __contains__(self, folder: str) -> bool:
        """Whether a starting manager can skip this folder, because its experiment has ended."""
        return folder in self._ended

    def summary(self, experiment: str) -> ExperimentSummary | None:
        """Return the summary of an experiment; None if it is not in the archive."""
        entry = self._ended.get(experiment)
        return entry.summary if entry is not None else self._left_out.get(experiment)

    def names(self) -> list[str]:
        """Return the names of all experiments in the archive."""
        # A copy: the thread that cleans up adds entries while a server's thread reads.
        ended = [name for name, entry in list(self._ended.items()) if entry.summary is not None]
        return [*ended, *self._left_out]

    def record(self, experiment: str) -> RecordReader | None:
        """Return the record of an experiment in the archive; None if it cannot be read."""
        with suppress(StoreError):
            return self._record(experiment)
        return None

    def _read_record(self, experiment: str) -> RecordReader:
        reader = RecordReader(self._shared.experiment_path(experiment))
        reader.lines(0)  # keep no reader that cannot read
        return reader


def _files(root: Path) -> list[Path]:
    """Return the files that managers have written; the highest term comes last."""
    # Sort by number: as text, a term of seven digits sorts before all terms of six.
    matches = filter(None, map(_NAME.fullmatch, names_in(root)))
    return [root / match[0] for match in sorted(matches, key=lambda match: int(match[1]))]


def _line(entry: ArchiveEntry) -> bytes:
    return journal_files.seal(_ENTRY.dump_json(entry))


CheckLeader = Callable[[], None]
"""Raises SharedDirectoryError if another manager leads."""
_BEFORE_ANYTHING = SubmittedLine, WorkerJoinedLine, WorkerLeftLine


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """A core with the experiments that continue, and their workspaces.

    `next_order` is the number of the next entry of a journal, counted over all experiments.
    """

    core: Scheduler
    spaces: tuple[Workspace, ...] = ()
    next_order: int = 1


@dataclass(frozen=True, slots=True)
class Takeover:
    """Continues experiments in an empty core and archive; `leader` is this manager.

    It may have stood still since it took the lead. So it calls `check_leader` before it removes
    files, which a later leader may need. A run has only one manager, so it has nothing to check.
    """

    shared: SharedDirectory
    core: Scheduler
    leader: Leader
    archive: Archive
    check_leader: CheckLeader = lambda: None

    def recover(self) -> RecoveredState:
        """Continue the experiments of this directory's earlier managers."""
        shared, archive = self.shared, self.archive
        fetch_journals(shared)
        folders = self._folders()
        archive.read(set(folders))
        journals: dict[str, list[Line]] = {}
        known: dict[str, Experiment] = {}
        for folder, journal in self._journals(name for name in folders if name not in archive):
            archive.places[folder] = journal[0].order
            # Read one journal at a time, and keep only those of unfinished experiments: the
            # journals and states of 20,000 ended experiments took 680 MB.
            with suppress(FileCorrupt):  # `replay_each` leaves it out
                known[folder] = journal_files.replay_one(journal, self.core.state.patience)
            if folder in known and self._has_ended(known[folder]):
                del known[folder]
            else:
                journals[folder] = journal
        replayed = journal_files.replay_each(journals, self.core.state.patience, known)
        for name, reason in replayed.left_out.items():
            archive.leave_out(name, reason)
        going = replayed.experiments
        spaces = self._opened(going, journals)
        # Begin once everything above has been read, because the archive writes nothing before.
        archive.begin(self.leader.term)
        # Include the archive's places, because we did not read the journals of ended experiments.
        places = [place + 1 for place in archive.places.values()]
        return self._continued(spaces, going, journals, places)

    def recover_run(self) -> RecoveredState:
        """Continue the experiments of an embedded run whose manager has died.

        Their journals name the run as their cluster, and the leader is its next manager.
        """
        journals: dict[str, list[Line]] = {}
        for folder in (self.shared.experiments / name for name in self._folders()):
            if journal_files.segments(folder) and is_abandoned(folder / RUN_LOCK_NAME):
                journal = journal_files.read_journal(folder)
                if journal and journal[0].cluster == self.leader.cluster:
                    journals[folder.name] = journal
        going = journal_files.replay_each(journals, self.core.state.patience).experiments
        spaces = [
            self._open(experiment, journals[name], of_run=True)
            for name, experiment in going.items()
            if not self._has_ended(experiment)
        ]
        return self._continued(spaces, going, journals)

    def _continued(
        self,
        spaces: Sequence[Workspace],
        going: Mapping[str, Experiment],
        journals: Mapping[str, list[Line]],
        orders: Sequence[int] = (),
    ) -> RecoveredState:
        # Leave out experiments that we could not open, because the core would continue them, too.
        opened = {space.experiment: going[space.experiment] for space in spaces}
        journal_files.take_in(self.core, journal_files.ReplayedJournals(opened, {}), journals)
        order = max([journal_files.next_order(journals), *orders])
        return RecoveredState(core=self.core, spaces=tuple(spaces), next_order=order)

    def _folders(self) -> list[str]:
        experiments = self.shared.experiments
        with reading(experiments), os.scandir(experiments) as found:
            return sorted(each.name for each in found if each.is_dir() and each.name[0] != ".")

    def _journals(self, names: Iterable[str]) -> Iterator[tuple[str, list[Line]]]:
        """Read the journals of these folders, except foreign ones."""
        # Don't wait for an outage here: a journal that this user may not read counts as one
        # (`files/store/publish.py`), and each such folder would delay the start by a minute.
        retry_policy = replace(self.shared.retry_policy, away_seconds=None)
        for folder in map(self.shared.experiments.joinpath, names):
            try:
                files = names_in(folder)
                parts = journal_files.segments_among(folder, files)
                if RUN_LOCK_NAME in files:
                    self._pass_by(folder, files)
                    continue
                journal = retry_policy.call_through_outage(
                    partial(journal_files.read_journal, folder)
                )
                cluster = self.leader.cluster
                elsewhere = (
                    journal_files.belongs_elsewhere(journal, folder.name, cluster)
                    if journal
                    else None
                )
                if elsewhere is not None:
                    line = "the manager does not continue experiments/%s: it is %s"
                    log.warning(line, folder.name, elsewhere)
                elif journal:
                    yield folder.name, journal
                elif _was_never_begun(folder, files):
                    self.check_leader()
                    _remove(folder, files)
                # A folder without a segment belongs to no manager, so we don't list it.
                elif parts:
                    self.archive.leave_out(folder.name, "its journal has no entry")
            except StoreError as error:
                self.check_leader()
                self.archive.leave_out(folder.name, str(error))

    def _has_ended(self, experiment: Experiment) -> bool:
        """Whether an experiment has ended; if so, put it into the archive."""
        if experiment.life.state.ended:
            self.check_leader()
            _tidy(self.shared, experiment)
            self.archive.conclude(status.summary(self.core.state, experiment))
            self.archive.end(experiment.name)
        return experiment.life.state.ended

    def _pass_by(self, folder: Path, names: list[str]) -> None:
        """Leave a run's folder alone; remove it if the run was killed before it had begun."""
        if not is_abandoned(folder / RUN_LOCK_NAME):
            return
        if _was_never_begun(folder, names):
            _remove(folder, names)
        else:
            self.archive.pass_by(folder.name)

    def _opened(
        self, going: Mapping[str, Experiment], journals: Mapping[str, list[Line]]
    ) -> list[Workspace]:
        """Open the workspaces of running experiments; raises if the directory can't be used."""
        spaces = []
        for name, experiment in going.items():
            try:
                spaces.append(self._open(experiment, journals[name]))
            except StoreError as error:
                # Is the fault in one experiment or in the whole directory? If we can write another
                # folder, and no later manager has begun, we leave out this experiment only.
                self.shared.prove_writable()
                self.check_leader()
                self.archive.leave_out(name, str(error))
        return spaces

    def _open(
        self, experiment: Experiment, journal: list[Line], *, of_run: bool = False
    ) -> Workspace:
        space = reopen_workspace(self.shared, experiment, self.leader, journal, of_run=of_run)
        try:
            if space.journal is not None:
                # Commit this line first: what an earlier manager writes after it doesn't count.
                # Otherwise that one might still name a file that we remove below.
                space.journal.commit()
            remove_unknown(space, experiment, self.check_leader)
        except StoreError:
            space.close()
            raise
        return space


def _was_never_begun(folder: Path, names: list[str]) -> bool:
    """Whether a folder has only files from before an acknowledged submission, as after a kill."""
    made = {layout.SPEC_NAME, layout.RECORD_NAME, RUN_LOCK_NAME}
    made |= {segment.name for segment in journal_files.segments_among(folder, names)}
    if any(name not in made and not name.startswith(TEMPORARY_PREFIX) for name in names):
        return False
    try:
        facts = read_record(folder / layout.RECORD_NAME)
    except FileMissing:
        return True
    except FileCorrupt:
        return False
    return all(isinstance(fact, _BEFORE_ANYTHING) for _, fact in facts)


def _remove(folder: Path, names: list[str]) -> None:
    log.info("removing experiments/%s, which never began", folder.name)
    with suppress(OSError):  # the next manager retries the rest
        for name in names:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _tidy(shared: SharedDirectory, ended: Experiment) -> None:
    """Clean up an ended experiment, because its manager may have died before it could."""
    folder = shared.experiment_path(ended.name)
    try:
        if not (folder / layout.RECORD_NAME).exists():
            export_record(folder, RecordReader(folder).all_lines())
        finished = ended.life.state is ExperimentState.FINISHED
        store, kept = shared.store(ended.name), ended.files_of_shards()
        sums, versions = Aggregation(ended.spec, store), ended.files_of_versions()
        versions = last_versions(store, sums, versions, ended.since_outer)
        sweep(store, finished=finished, kept=kept, versions=versions)
    except StoreError as error:
        log.warning("%s: could not remove all files: %s", ended.name, error)


def remove_unknown(space: Workspace, experiment: Experiment, check_leader: CheckLeader) -> None:
    """Remove published files that the journal does not name, if no later report can name them."""
    known, rounds = {file.name for file in experiment.files()}, experiment.rounds_done
    names = space.store.list()
    check_leader()
    remove(space.store, [n for n in names if n not in known and layout.is_spent(n, rounds)])
