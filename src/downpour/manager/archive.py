"""The experiments of a directory that no manager continues: what `downpour list` shows of them.

Those that have ended are read from one file, `ended-TERM.jsonl`, so that a start does not read
thousands of journals. The file has a line for each experiment (`records/sealed_lines.py`) and is
written by the manager of that term. It only saves time: where it is missing or damaged, the
journals are read instead. Each manager writes a new file with all that it knows, and later managers
read only the one of the highest term, because a manager that was replaced without its knowledge may
go on writing to an older one.

Experiments that cannot be continued are listed with the reason, and their files are not touched.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from downpour.errors import SharedDirectoryError, StoreError
from downpour.records.record import RecordReader
from downpour.records.sealed_lines import seal, whole_lines
from downpour.rpc.messages import ExperimentSummary
from downpour.store import SharedDirectory
from downpour.store.directory import names_in, read_regular
from downpour.store.layout import RECORD_NAME
from downpour.store.publish import publish
from downpour.values import ExperimentState

log = logging.getLogger(__name__)

_NAME = re.compile(r"ended-(\d+)\.jsonl")
_RECORDS_OPEN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveEntry:
    """A folder that needs no look at a start.

    It is that of an experiment that has ended, submitted at this `place` among all of them, or one
    in which a run of its own wrote, which is nobody's to take up: then there is no summary.
    """

    folder: str
    place: int = 0
    summary: ExperimentSummary | None = None


_ENTRY = TypeAdapter(ArchiveEntry)


class Archive:
    """What is known of them; in memory alone, until `begin`.

    `places` are those of submissions among all entries of journals, of all experiments.

    Args:
        shared: the shared directory.
    """

    def __init__(self, shared: SharedDirectory) -> None:
        self.places: dict[str, int] = {}
        self._shared = shared
        self._ended: dict[str, ArchiveEntry] = {}
        self._left_out: dict[str, ExperimentSummary] = {}
        self._concluded: dict[str, ExperimentSummary] = {}
        self._path: Path | None = None
        self._record = lru_cache(_RECORDS_OPEN)(self._read_record)

    def read(self, folders: Collection[str]) -> None:
        """Take in what the manager before this one has written of folders that are there.

        Raises:
            SharedDirectoryError: the directory cannot be listed.
        """
        files = _files(self._shared.root)
        if not files:
            return
        try:
            content = read_regular(files[-1])
        except StoreError as error:
            log.warning("%s cannot be read, so every journal is: %s", files[-1].name, error)
            return
        for text in whole_lines(content):
            with suppress(ValidationError):
                entry = _ENTRY.validate_json(text)
                if entry.folder in folders:
                    self._note(entry)

    def begin(self, term: int) -> None:
        """Write what is known to a file of one's own, which later ends are added to.

        Where that cannot be, the next start reads more.

        Raises:
            SharedDirectoryError: the directory cannot be used.
        """
        former = _files(self._shared.root)
        name = f"ended-{term:06d}.jsonl"
        try:
            publish(self._shared.root, name, [b"".join(map(_line, self._ended.values()))])
        except SharedDirectoryError:
            raise
        except StoreError as error:
            log.warning("the next start reads every journal: %s", error)
            return
        self._path = self._shared.root / name
        for path in former:
            with suppress(OSError):  # what stays is not read
                path.unlink()

    def conclude(self, summary: ExperimentSummary) -> None:
        """Take in how an experiment has ended; its folder still needs a look."""
        self._concluded[summary.experiment] = summary

    def end(self, experiment: str) -> None:
        """Note an experiment that has ended, and of which nothing is left to be done."""
        summary = self._concluded.pop(experiment, None)
        if summary is not None:
            place = self.places.get(experiment, 0)
            self._add(ArchiveEntry(folder=experiment, place=place, summary=summary))

    def pass_by(self, folder: str) -> None:
        """Note a folder that is a run's own."""
        self._add(ArchiveEntry(folder=folder))

    def _add(self, entry: ArchiveEntry) -> None:
        self._note(entry)
        if self._path is not None:
            with suppress(OSError):  # its journal says the same
                file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                try:
                    os.write(file, _line(entry))
                finally:
                    os.close(file)

    def _note(self, entry: ArchiveEntry) -> None:
        self._ended[entry.folder] = entry
        if entry.summary is not None:
            self.places[entry.folder] = entry.place

    def leave_out(self, experiment: str, reason: str) -> None:
        """Note an experiment that cannot be taken up, and why."""
        log.warning("experiment %s is left out, its files stay as they are: %s", experiment, reason)
        self._left_out[experiment] = ExperimentSummary(
            experiment=experiment,
            name=experiment,
            state=ExperimentState.FAILED,
            rounds_done=0,
            rounds_total=0,
            reason=f"left out: {reason}",
        )

    def __contains__(self, folder: str) -> bool:
        """Whether a folder needs no look at a start."""
        return folder in self._ended

    def summary(self, experiment: str) -> ExperimentSummary | None:
        """Return what is listed of an experiment; None where nothing is."""
        entry = self._ended.get(experiment)
        return entry.summary if entry is not None else self._left_out.get(experiment)

    def summaries(self) -> Iterator[ExperimentSummary]:
        """Yield what is listed of each experiment."""
        for entry in list(self._ended.values()):
            if entry.summary is not None:
                yield entry.summary
        yield from self._left_out.values()

    def record(self, experiment: str) -> RecordReader | None:
        """Return the record of one that is known here; None where it has none."""
        with suppress(StoreError):
            return self._record(experiment)
        return None

    def _read_record(self, experiment: str) -> RecordReader:
        return RecordReader(self._shared.experiment_path(experiment) / RECORD_NAME)


def _files(root: Path) -> list[Path]:
    """Return the files that managers have written, the latest one last."""
    found = ((_NAME.fullmatch(name), name) for name in names_in(root))
    return [
        root / name for _, name in sorted((int(match[1]), name) for match, name in found if match)
    ]


def _line(entry: ArchiveEntry) -> bytes:
    return seal(_ENTRY.dump_json(entry))
