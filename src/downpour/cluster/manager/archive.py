"""Experiments that no manager continues: the entries that `downpour list` shows for them.

The ended ones are in one file, `ended-TERM.jsonl`, so that a start does not read thousands of
journals. It only saves time: if it is missing or damaged, the manager reads the journals instead.
Each manager writes a new file with everything that it knows. Later managers read only the file of
the highest term, because a manager that does not know of its successor may still write to its own.

The archive lists experiments that cannot continue, with the reason, and leaves their files alone.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.base.states import ExperimentState
from downpour.files.store import SharedDirectory
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.publish import publish
from downpour.network.rpc.messages import ExperimentSummary
from downpour.record.journal import seal, whole_lines
from downpour.record.record import RecordReader

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
        for text in whole_lines(content):
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
    return seal(_ENTRY.dump_json(entry))
