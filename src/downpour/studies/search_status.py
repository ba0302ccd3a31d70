"""How far a search is, as a value: read from its folder, whoever runs it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from downpour.reports.tuned import Tuned
from downpour.studies.grid_status import outlook
from downpour.studies.lock import holder
from downpour.studies.search_display import seconds_left
from downpour.studies.search_folder import Folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What has been tried; `running` says who runs the search now.

    `seconds_left` is an estimate, None before the first trial has ended.
    """

    tuned: Tuned
    running: str | None
    seconds_left: float | None

    def to_dict(self) -> dict[str, Any]:
        """Turn it into values that JSON can hold."""
        told = {"running": self.running, "seconds_left": self.seconds_left}
        return {**self.tuned.to_dict(), **told}

    def __str__(self) -> str:
        told = [str(self.tuned)]
        if self.tuned.left:
            told.append(outlook(self.seconds_left, self.running))
        return ", ".join(told)


def standing_of(folder: Folder) -> Standing:
    """Look how far a search is."""
    tuned = folder.tuned()
    return Standing(tuned=tuned, running=holder(folder.path), seconds_left=seconds_left(tuned))
