"""Taking up what an earlier manager has left in the shared directory.

The journals of all experiments are put in order and replayed; the core then stands where the other
one ended, and the workspaces are opened again. Files that only the other one knew of are removed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from downpour.errors import FileCorrupt
from downpour.manager.workspace import Workspace, reopen_workspace, sweep
from downpour.runtime.journal import Line, read_journal
from downpour.runtime.recovery import next_order, replay
from downpour.scheduler import Replay
from downpour.scheduler import events as on
from downpour.store import SharedDirectory, layout

log = logging.getLogger(__name__)

_ENDED = {"finished", "failed", "cancelled"}


@dataclass(frozen=True, slots=True)
class Legacy:
    """What was left: a core that has taken it all in, and each experiment's lines."""

    core: Replay
    stories: dict[str, list[Line]]

    @property
    def next_order(self) -> int:
        """The place of the next entry among those of all experiments."""
        return next_order(self.stories)

    def submitted_at(self) -> dict[str, float]:
        """Return the experiments that go on, with the time of their submission."""
        return {
            name: story[0].at_seconds
            for name, story in self.stories.items()
            if not self._has_ended(name)
        }

    def workspaces(self, shared: SharedDirectory, term: int) -> list[Workspace]:
        """Open every experiment's folder again, to go on under a term of one's own.

        Raises:
            SharedDirectoryError: it cannot be written to, or another manager has taken over.
        """
        spaces = [_opened(shared, name, term, story) for name, story in self.stories.items()]
        for space in spaces:
            space.concluded = self._has_ended(space.experiment)
            if space.concluded:
                self._finish_concluding(space)
            else:
                # First: else what an earlier manager still writes might name what is removed.
                space.journal.commit()
                self._remove_unknown(space)
        return spaces

    def _finish_concluding(self, space: Workspace) -> None:
        """Close an experiment that has ended; its end may have been journaled and not more."""
        space.close()
        state = self.core.experiments[space.experiment].life.state
        sweep(space, finished=state == "finished")

    def _has_ended(self, experiment: str) -> bool:
        return self.core.experiments[experiment].life.state in _ENDED

    def _remove_unknown(self, space: Workspace) -> None:
        """Remove what was published and not journaled before the end, if nobody will name it."""
        experiment = self.core.experiments[space.experiment]
        known = {file.name for file in experiment.files()}
        for name in set(space.store.list()) - known:
            if layout.is_spent(name, experiment.rounds_done):
                space.store.delete(name)


def recover(shared: SharedDirectory, core: Replay) -> Legacy:
    """Read the journals in a shared directory and replay them into an empty core.

    An experiment whose journal is damaged before its end is left out, and a warning names it.

    Raises:
        SharedDirectoryError: the directory cannot be read.
    """
    stories = _stories(shared)
    replay(core, stories)
    return Legacy(core, stories)


def _stories(shared: SharedDirectory) -> dict[str, list[Line]]:
    found: dict[str, list[Line]] = {}
    for folder in sorted(path for path in shared.experiments.iterdir() if path.is_dir()):
        try:
            story = read_journal(folder)
        except FileCorrupt as error:
            log.warning("experiment %s cannot be taken up: %s", folder.name, error)
            continue
        if story:
            found[folder.name] = story
    return found


def _opened(shared: SharedDirectory, name: str, term: int, story: list[Line]) -> Workspace:
    first, last = story[0].entry, story[-1]
    if not isinstance(first, on.ExperimentSubmitted):
        raise FileCorrupt("journal", f"of {name} does not begin with a submission")
    space = reopen_workspace(shared, name, first.spec, term, story)
    space.record.truncate(last.record_lines)
    return space
