"""Sums up an experiment in one line of a list, without reading all of its record."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from downpour.experiments.dashboard.model import RecordTables
from downpour.experiments.dashboard.plain import Fields
from downpour.experiments.dashboard.sources import NOT_A_LINE, parsed_line
from downpour.experiments.page_server.place import FoundExperiment
from downpour.files.store.directory import open_regular
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.os_errors import reading

_END_BYTES = 128 * 1024
"""At the end of a record: this holds the last version, the last evaluation and the ending."""

Summary = dict[str, Any]


def summary_of(found: FoundExperiment, model: RecordTables) -> Summary:
    """Sum up an experiment, as far as its record was folded."""
    about = model.about()
    done, rounds, epochs_done, epochs = model.rounds_done()
    return {
        "id": found.experiment,
        "name": about.get("name", found.experiment),
        "state": str(model.state),
        "reason": about.get("reason"),
        "rounds_done": done,
        "rounds": rounds,
        "epochs_done": epochs_done,
        "epochs": epochs,
        "measure": model.measure(),
        "changed_at": round(found.changed_ns / 1e9, 3),
        "running": not model.state.ended,
    }


def ends_of(folder: Path) -> RecordTables | None:
    """Fold the beginning and the end of an exported record; None if it does not exist.

    Raises:
        StoreError: the record cannot be read.
    """
    path = folder / RECORD_NAME
    if not path.exists():
        return None
    model = RecordTables()
    for fields in _ends(path):
        with suppress(ValueError):  # a damaged line costs the list nothing
            model.take(fields)
    return model


def _ends(path: Path) -> Iterator[Fields]:
    with reading(path.parent, path.name), open(open_regular(path), "rb") as file:
        first = [file.readline()]
        size = os.fstat(file.fileno()).st_size
        start = max(file.tell(), size - _END_BYTES)
        file.seek(start)
        rest = file.read().split(b"\n")
        # If the piece begins in the middle of a line, its first part is no line.
        last = rest[1:] if start > len(first[0]) else rest
    for text in first + last:
        if (fields := parsed_line(text)) is not NOT_A_LINE:
            yield fields
