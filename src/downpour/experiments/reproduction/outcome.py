"""The outcome of a replay: how far it agrees, and where it first differs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from downpour.experiments.reproduction.history import TrainedTask
from downpour.host.text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first file whose bytes differ from the original's.

    `task` is the task of the file, if it is an update. It is None for a model version whose updates
    all agree. `then` and `now` are the file's checksums, and `numeric_class_then` and `_now` the
    classes that computed it; the former is empty in old records. If an earlier release has
    `summed_otherwise`, the version differs by rounding.
    """

    version: int
    what: str
    task: TrainedTask | None
    then: str
    now: str
    numeric_class_then: str
    numeric_class_now: str
    summed_otherwise: bool = False

    def __str__(self) -> str:
        """Say it in one line; the record may hold anything."""
        why = "; an earlier release made it, and added the updates in another order"
        return one_line(self._said() + (why if self.summed_otherwise else ""))

    def _said(self) -> str:
        by = f", which {self.task.worker} trained," if self.task else ""
        line = f"version {self.version} differs: {self.what}{by} had checksum {self.then}"
        if self.numeric_class_then not in {"", self.numeric_class_now}:
            where = f" in numeric class {self.numeric_class_then!r}, and has {self.now}"
            return f"{line}{where} in this machine's, {self.numeric_class_now!r}"
        return f"{line}, and now has {self.now} in the same numeric class"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """An experiment that was trained once more.

    `version` is the last version that the replay made. `checksum` is its file's, or, if the replay
    made all versions, that of the whole final model. `compared` counts the updates, versions and
    final models whose checksum the record has. `model_file` is the last model, if the user wanted
    to keep it.
    """

    experiment: str
    version: int
    checksum: str
    compared: int
    difference: Difference | None
    model_file: Path | None

    @property
    def same(self) -> bool:
        """Whether all compared files have the same bytes."""
        return self.difference is None and self.compared > 0

    def __repr__(self) -> str:
        """Say in one line which experiment it is, and how it compares."""
        return one_line(f"<Replay {self}>")

    def __str__(self) -> str:
        """Say in one line how it compares."""
        if self.difference is not None:
            return str(self.difference)
        known = f"{self.compared} checksums agree"
        if not self.compared:
            known = "its record has no checksum to compare with"
        return f"{self.experiment}: version {self.version} has checksum {self.checksum}; {known}"
