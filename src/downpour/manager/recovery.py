"""Taking up what earlier managers of this directory have left, each experiment by itself.

What lies under `experiments/` is taken up where its journal says that a manager of this cluster
wrote it, in this folder: not a copy, not another cluster's, and not what a run of its own writes,
which keeps no journal. An experiment that cannot be taken up is left out, by name and with the
reason, and its files stay as they are. Files that only an earlier manager knew of are removed.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from downpour.errors import FileCorrupt, FileMissing, StoreError
from downpour.manager import status
from downpour.manager.archive import Archive
from downpour.manager.workspace import Workspace, reopen_workspace, sweep
from downpour.node.journal import Line
from downpour.records.journal import read_journal, segments, term_of
from downpour.records.record import read_record
from downpour.records.record_lines import SubmittedLine, WorkerJoinedLine, WorkerLeftLine
from downpour.records.recovery import Told, belongs_elsewhere, take_in, told
from downpour.scheduler import Scheduler
from downpour.scheduler.experiment import Experiment
from downpour.store import SharedDirectory, layout
from downpour.store.directory import names_in
from downpour.store.lease import Leader, highest_term
from downpour.store.os_errors import reading
from downpour.store.process_lock import RUN_LOCK_NAME, is_abandoned
from downpour.store.publish import TEMPORARY_PREFIX
from downpour.store.retry import RetryPolicy
from downpour.values import ExperimentState

log = logging.getLogger(__name__)

_BEFORE_ANYTHING = SubmittedLine, WorkerJoinedLine, WorkerLeftLine


@dataclass(frozen=True, slots=True)
class RecoveredState:
    """What was left: a core that has taken in what goes on, and the folders of that.

    `next_order` is the place of the next entry among those of all experiments, `submitted_at` the
    time of each one's submission.
    """

    core: Scheduler
    spaces: tuple[Workspace, ...] = ()
    next_order: int = 1
    submitted_at: tuple[tuple[str, float], ...] = ()


def recover(
    shared: SharedDirectory, core: Scheduler, leader: Leader, archive: Archive
) -> RecoveredState:
    """Take up what was left, with an empty core and an empty archive; `leader` is this manager.

    Raises:
        SharedDirectoryError: the directory cannot be used, or another manager has taken over.
    """
    folders = _folders(shared)
    archive.read(set(folders))
    retry_policy = replace(shared.retry_policy, away_seconds=None)
    unread = [shared.experiments / name for name in folders if name not in archive]
    stories = _stories(unread, leader.cluster, archive, retry_policy)
    known = told(stories, core.state.options)
    for name, reason in known.left_out.items():
        archive.leave_out(name, reason)
    archive.places.update((name, story[0].order) for name, story in stories.items())
    for name, experiment in known.experiments.items():
        if experiment.life.state.ended:
            _tidy(shared, experiment)
            archive.conclude(status.summary(experiment))
            archive.end(name)
    going = {n: one for n, one in known.experiments.items() if not one.life.state.ended}
    spaces = _opened(shared, going, leader, stories, archive)
    archive.begin(leader.term)
    take_in(
        core, Told({space.experiment: going[space.experiment] for space in spaces}, {}), stories
    )
    orders = (line.order for story in stories.values() for line in story)
    return RecoveredState(
        core=core,
        spaces=spaces,
        next_order=max((*orders, *archive.places.values()), default=0) + 1,
        submitted_at=tuple(
            (space.experiment, stories[space.experiment][0].at_seconds) for space in spaces
        ),
    )


def _folders(shared: SharedDirectory) -> list[str]:
    with reading(shared.experiments), os.scandir(shared.experiments) as found:
        return sorted(each.name for each in found if each.is_dir() and each.name[0] != ".")


def _stories(
    folders: list[Path], cluster: str, archive: Archive, retry_policy: RetryPolicy
) -> dict[str, list[Line]]:
    """Read the journals that count, of folders that need a look."""
    found: dict[str, list[Line]] = {}
    for folder in folders:
        try:
            names = names_in(folder)
            if _is_a_runs(folder, names):
                _pass_by(folder, names, archive)
                continue
            story = retry_policy.call_through_outage(partial(read_journal, folder))
            elsewhere = belongs_elsewhere(story, folder.name, cluster) if story else None
            if elsewhere is not None:
                log.warning("experiments/%s is passed by: it is %s", folder.name, elsewhere)
            elif story:
                found[folder.name] = story
            elif _was_never_begun(folder, names):
                _remove(folder, names)
            elif segments(folder):
                archive.leave_out(folder.name, "its journal has no entry")
        except StoreError as error:
            archive.leave_out(folder.name, str(error))
    return found


def _is_a_runs(folder: Path, names: list[str]) -> bool:
    """Whether a folder belongs to a run; those of earlier versions kept a journal of term 0."""
    journal = segments(folder)
    return RUN_LOCK_NAME in names or (journal != [] and all(term_of(each) == 0 for each in journal))


def _pass_by(folder: Path, names: list[str], archive: Archive) -> None:
    """Leave a run's folder to it; where it was killed before it had begun, there is nothing."""
    if RUN_LOCK_NAME in names and not is_abandoned(folder / RUN_LOCK_NAME):
        return
    if _was_never_begun(folder, names):
        _remove(folder, names)
    else:
        archive.pass_by(folder.name)


def _was_never_begun(folder: Path, names: list[str]) -> bool:
    """Whether nothing is there but what is made before an experiment is acknowledged.

    A manager, or a run, may have been killed when it had made the folder.
    """
    made = {
        layout.SPEC_NAME,
        layout.RECORD_NAME,
        RUN_LOCK_NAME,
        *(s.name for s in segments(folder)),
    }
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
    log.info("experiments/%s was never begun, and is removed", folder.name)
    with suppress(OSError):  # it is there still when the next manager comes
        for name in names:
            (folder / name).unlink(missing_ok=True)
        folder.rmdir()


def _tidy(shared: SharedDirectory, ended: Experiment) -> None:
    """Do what follows the end: an earlier manager may have journaled that and not more."""
    try:
        sweep(shared.store(ended.name), finished=ended.life.state is ExperimentState.FINISHED)
    except StoreError as error:
        log.warning("%s: files are left over: %s", ended.name, error)


def _opened(
    shared: SharedDirectory,
    going: dict[str, Experiment],
    leader: Leader,
    stories: dict[str, list[Line]],
    archive: Archive,
) -> tuple[Workspace, ...]:
    """Open the folders of those that go on; raises where it is the directory that cannot serve."""
    spaces = []
    for name, experiment in going.items():
        try:
            spaces.append(_open(shared, experiment, leader, stories[name]))
        except StoreError as error:
            shared.prove_writable()
            if highest_term(shared.terms) > leader.term:
                raise
            archive.leave_out(name, str(error))
    return tuple(spaces)


def _open(
    shared: SharedDirectory, experiment: Experiment, leader: Leader, story: list[Line]
) -> Workspace:
    space = reopen_workspace(shared, experiment, leader, story)
    try:
        if space.journal is not None:
            # First: else what an earlier manager still writes might name what is removed.
            space.journal.commit()
        space.record.truncate(story[-1].record_lines)
        _remove_unknown(space, experiment)
    except StoreError:
        space.close()
        raise
    return space


def _remove_unknown(space: Workspace, experiment: Experiment) -> None:
    """Remove what was published and not journaled before the end, if nobody will name it."""
    known = {file.name for file in experiment.files()}
    for name in set(space.store.list()) - known:
        if layout.is_spent(name, experiment.rounds_done):
            space.store.delete(name)
