"""A viewer's side of the contract: tables that are kept by frames."""

import json
from typing import Any

from downpour.show.dashboard.model import Frame, RecordTables

KEYS = {
    "workers": 1,
    "attempts": 1,
    "ends": 1,
    "forecasts": 1,
    "rounds": 1,
    "versions": 1,
    "evaluations": 2,
    "decisions": 1,
}
"""How many columns of a row are its key."""


class Viewer:
    """Keeps tables as a browser does: a later row of the same key replaces the earlier one."""

    def __init__(self) -> None:
        self.seq = 0
        self.experiment: dict[str, Any] = {}
        self.totals: dict[str, Any] = {}
        self.tables: dict[str, dict[tuple[Any, ...], Any]] = {name: {} for name in KEYS}
        self.rows_seen = 0

    def see(self, frame: Frame) -> None:
        """Take in a frame, as JSON carries it."""
        known = json.loads(json.dumps(frame, allow_nan=False))
        self.seq = known["seq"]
        self.experiment = known.get("experiment", self.experiment)
        self.totals = known.get("totals", self.totals)
        for name, width in KEYS.items():
            for row in known.get(name, ()):
                self.rows_seen += 1
                self.tables[name][tuple(row[:width])] = row

    def rows(self, name: str) -> list[Any]:
        """The rows of a table by their key."""
        return [row for _, row in sorted(self.tables[name].items())]

    @property
    def shown(self) -> Any:
        """All that the page could draw."""
        return self.experiment, self.totals, {name: self.rows(name) for name in KEYS}


def seen_at_once(model: RecordTables) -> Viewer:
    """A viewer that comes late, and gets all in one frame."""
    viewer = Viewer()
    viewer.see(model.since(0, model.line))
    return viewer
