"""Continues the experiments of earlier managers of this directory, each one separately.

The manager continues a folder under `experiments/` if the journal shows that a manager of this
cluster wrote it, in this folder. So it never continues a copy, another cluster's folder, or a run's
own, which only that run continues (`recover_run`). If an experiment cannot continue, the manager
leaves it out, lists it with the reason, and does not touch its files. It removes files that only an
earlier manager knew of.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.base.states import ExperimentState
from downpour.cluster.manager import status
from downpour.cluster.manager.archive import Archive
from downpour.cluster.manager.work import remove, sweep
from downpour.cluster.manager.workspace import Workspace, reopen_workspace
from downpour.core.node.journal import Line
from downpour.core.scheduler import Scheduler, SchedulerOptions
from downpour.core.scheduler.experiment import Experiment
from downpour.files.store import SharedDirectory, layout
from downpour.files.store.directory import names_in
from downpour.files.store.lease import Leader
from downpour.files.store.presence import RUN_LOCK_NAME, is_abandoned
from downpour.files.store.publish import TEMPORARY_PREFIX, RetryPolicy, reading
from downpour.record.journal import (
    ReplayedJournals,
    belongs_elsewhere,
    next_order,
    read_journal,
    replay_each,
    replay_one,
    segments,
    segments_among,
    take_in,
)
from downpour.record.mirror import fetch_journals
from downpour.record.record import RecordReader, export_record, read_record
from downpour.record.record_lines import SubmittedLine, WorkerJoinedLine, WorkerLeftLine

log = logging.getLogger(__name__)

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


def recover(
    shared: SharedDirectory,
    core: Scheduler,
    leader: Leader,
    archive: Archive,
    check_leader: CheckLeader,
) -> RecoveredState:
    """Continue earlier experiments in an empty core and archive; `leader` is this manager.

    It may have stood still since it took the lead. So it calls `check_leader` before it removes
    files, which a later leader may need.
    """
    fetch_journals(shared)
    folders = _folders(shared)
    archive.read(set(folders))
    # Don't wait the minute for an outage here. A journal that this user may not read counts as an
    # outage (`files/store/publish.py`), so each such folder would delay the start by a minute.
    retry_policy = replace(shared.retry_policy, away_seconds=None)
    unread = [shared.experiments / name for name in folders if name not in archive]
    journals: dict[str, list[Line]] = {}
    for folder, journal in _journals(unread, leader.cluster, archive, retry_policy, check_leader):
        archive.places[folder] = journal[0].order
        # Read one journal at a time, and keep only those of unfinished experiments: the journals
        # and states of 20,000 ended experiments took 680 MB.
        if not _has_ended(shared, journal, core.state.options, archive, check_leader):
            journals[folder] = journal
    replayed = replay_each(journals, core.state.options)
    for name, reason in replayed.left_out.items():
        archive.leave_out(name, reason)
    going = replayed.experiments
    spaces = _opened(shared, going, leader, journals, archive, check_leader)
    # Begin once everything above has been read, because the archive writes nothing before.
    archive.begin(leader.term)
    # Leave out experiments that we could not open, because the core would continue them, too.
    opened = {space.experiment: going[space.experiment] for space in spaces}
    take_in(core, ReplayedJournals(opened, {}), journals)
    return RecoveredState(
        core=core,
        spaces=spaces,
        # Include the archive's places, because we did not read the journals of ended experiments.
        next_order=max([next_order(journals), *(place + 1 for place in archive.places.values())]),
    )


def recover_run(
    shared: SharedDirectory, core: Scheduler, leader: Leader, archive: Archive
) -> RecoveredState:
    """Continue the experiments of an embedded run whose manager has died.

    Their journals name the run as their cluster, and `leader` is its next manager.
    """
    journals: dict[str, list[Line]] = {}
    for folder in (shared.experiments / name for name in _folders(shared)):
        if segments(folder) and is_abandoned(folder / RUN_LOCK_NAME):
            journal = read_journal(folder)
            if journal and journal[0].cluster == leader.cluster:
                journals[folder.name] = journal
    going = replay_each(journals, core.state.options).experiments
    spaces = tuple(
        _open(shared, experiment, leader, journals[name], _only_leader, of_run=True)
        for name, experiment in going.items()
        if not _has_ended(shared, journals[name], core.state.options, archive, _only_leader)
    )
    opened = {space.experiment: going[space.experiment] for space in spaces}
    take_in(core, ReplayedJournals(opened, {}), journals)
    return RecoveredState(core=core, spaces=spaces, next_order=next_order(journals))


def _folders(shared: SharedDirectory) -> list[str]:
    with reading(shared.experiments), os.scandir(shared.experiments) as found:
        return sorted(each.name for each in found if each.is_dir() and each.name[0] != ".")


def _journals(
    folders: list[Path],
    cluster: str,
    archive: Archive,
    retry_policy: RetryPolicy,
    check_leader: CheckLeader,
) -> Iterator[tuple[str, list[Line]]]:
    """Read the journals of these folders, except foreign ones."""
    for folder in folders:
        try:
            names = names_in(folder)
            parts = segments_among(folder, names)
            if RUN_LOCK_NAME in names:
                _pass_by(folder, names, archive)
                continue
            journal = retry_policy.call_through_outage(partial(read_journal, folder))
            elsewhere = belongs_elsewhere(journal, folder.name, cluster) if journal else None
            if elsewhere is not None:
                log.warning(
                    "the manager does not continue experiments/%s: it is %s", folder.name, elsewhere
                )
            elif journal:
                yield folder.name, journal
            elif _was_never_begun(folder, names):
                check_leader()
                _remove(folder, names)
            # A folder without a segment belongs to no manager, so we don't list it.
            elif parts:
                archive.leave_out(folder.name, "its journal has no entry")
        except StoreError as error:
            check_leader()
            archive.leave_out(folder.name, str(error))


def _has_ended(
    shared: SharedDirectory,
    journal: list[Line],
    options: SchedulerOptions,
    archive: Archive,
    check_leader: CheckLeader,
) -> bool:
    """Whether a journal's experiment has ended; if so, put it into the archive."""
    try:
        experiment = replay_one(journal, options)
    except FileCorrupt:
        return False  # leave it out with the others that cannot continue
    if experiment.life.state.ended:
        check_leader()
        _tidy(shared, experiment)
        archive.conclude(status.summary(experiment))
        archive.end(experiment.name)
    return experiment.life.state.ended


def _pass_by(folder: Path, names: list[str], archive: Archive) -> None:
    """Leave a run's folder alone; remove it if the run was killed before it had begun."""
    if not is_abandoned(folder / RUN_LOCK_NAME):
        return
    if _was_never_begun(folder, names):
        _remove(folder, names)
    else:
        archive.pass_by(folder.name)


def _was_never_begun(folder: Path, names: list[str]) -> bool:
    """Whether a folder holds only files from before the acknowledgement of a submission.

    Someone may have killed a manager, or a run, just after it made the folder.
    """
    made = {layout.SPEC_NAME, layout.RECORD_NAME, RUN_LOCK_NAME}
    made |= {segment.name for segment in segments_among(folder, names)}
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
        kept, versions = ended.files_of_shards(), ended.files_of_versions()
        sweep(shared.store(ended.name), finished=finished, kept=kept, versions=versions)
    except StoreError as error:
        log.warning("%s: could not remove all files: %s", ended.name, error)


def _opened(
    shared: SharedDirectory,
    going: dict[str, Experiment],
    leader: Leader,
    journals: dict[str, list[Line]],
    archive: Archive,
    check_leader: CheckLeader,
) -> tuple[Workspace, ...]:
    """Open the workspaces of running experiments; raises if the directory itself cannot be used."""
    spaces = []
    for name, experiment in going.items():
        try:
            spaces.append(_open(shared, experiment, leader, journals[name], check_leader))
        except StoreError as error:
            # Is the fault in one experiment or in the whole directory? If we can write another
            # folder, and no later manager has begun, we leave out this experiment only.
            shared.prove_writable()
            check_leader()
            archive.leave_out(name, str(error))
    return tuple(spaces)


def _open(
    shared: SharedDirectory,
    experiment: Experiment,
    leader: Leader,
    journal: list[Line],
    check_leader: CheckLeader,
    *,
    of_run: bool = False,
) -> Workspace:
    space = reopen_workspace(shared, experiment, leader, journal, of_run=of_run)
    try:
        if space.journal is not None:
            # Commit this line first, because entries that an earlier manager writes after it don't
            # count. Otherwise a manager that still writes might name a file that we remove below.
            space.journal.commit()
        remove_unknown(space, experiment, check_leader)
    except StoreError:
        space.close()
        raise
    return space


def remove_unknown(space: Workspace, experiment: Experiment, check_leader: CheckLeader) -> None:
    """Remove published files that the journal does not name, if no later report can name them."""
    known, rounds = {file.name for file in experiment.files()}, experiment.rounds_done
    names = space.store.list()
    check_leader()
    remove(space.store, [n for n in names if n not in known and layout.is_spent(n, rounds)])


def _only_leader() -> None:
    """Pass, because a run has one manager, and its lock is on this machine."""
