"""What Downpour says in the lab: its command is typed as it is, and its record tells the rest.

The record is read as the first host sees it, four times a second, as a user would watch it. That
sends a few hundred bytes each time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from downpour.base.errors import DownpourError
from downpour.record.record import RecordReader
from peers.running import Event

if TYPE_CHECKING:
    from tests.lab.lab import Lab

_LOOK_SECONDS = 0.25


def followed(lab: Lab) -> Iterator[Event | None]:
    """Yield what is new in the record of the one experiment, and None where nothing is."""
    known, readers = 0, dict[Path, RecordReader]()
    while True:
        host = next((one for one in lab if one.is_up), None)
        # A host sees what it has written at once; the store gets it when the host likes.
        seen = Path(f"/proc/{host.process}/root{lab.folder}") if host else lab.export
        for line in _lines(seen, known, readers):
            known += 1
            if event := event_of(json.loads(line)):
                yield event
        yield None
        time.sleep(_LOOK_SECONDS)


def _lines(shared: Path, known: int, readers: dict[Path, RecordReader]) -> list[str]:
    """Return the lines of the record that are not known yet; none while it cannot be read."""
    with suppress(OSError, DownpourError):
        for folder in shared.glob("experiments/*"):
            return readers.setdefault(folder, RecordReader(folder)).lines(known)
    return []


def event_of(line: dict[str, Any]) -> Event | None:
    """Return the event that a line of the record stands for; none for most."""
    at = time.time()
    match line["kind"]:
        case "assigned":
            return {"event": "first", "at": at}
        case "measured":
            return {"event": "accuracy", "at": at, "accuracy": line["metrics"]["accuracy"]}
        case "finished":
            return {"event": "end", "at": at, "checksum": line["checksum"][:8]}
    return None
