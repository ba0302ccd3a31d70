"""A run at a manager elsewhere, which goes on although whoever submitted it was killed.

Before it is submitted, its request is written down. The same request leads to the same experiment
(`Client.submit`), so who comes next finds it again and need not train twice. What is not wanted any
more is cancelled.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from downpour.api import Client
from downpour.errors import DownpourError
from downpour.rpc.messages import ExperimentState, ExperimentSummary
from downpour.store.trouble import explain
from downpour.studies.grid import Cell
from downpour.studies.run_folder import refusal, replace_file

REQUEST_NAME = "request.json"


@contextmanager
def submitted(client: Client, cell: Cell, note: Path | None) -> Iterator[str]:
    """Submit a run, or find it again, for as long as the block; yields its experiment.

    Where the block is interrupted, the experiment is cancelled.

    Args:
        client: Whoever trains it.
        cell: The run.
        note: The file to write its request into, where it may outlive this process.

    Raises:
        SpecError: the manager sees that the run cannot be, or the note cannot be written.
    """
    request = secrets.token_hex(4) if note is None else _request(client, cell, note)
    experiment = client.submit(cell.spec, request)
    try:
        yield experiment
    except BaseException:
        with suppress(DownpourError):
            client.cancel(experiment)
            _forget(note)
        raise
    _forget(note)


def _request(client: Client, cell: Cell, note: Path) -> str:
    """Return the request under which the run goes on, or else a new one, which is written down."""
    former_cell, former = _read(note)
    found = _find(client, former) if former else None
    if former_cell == cell.id and not _is_lost(found):
        return former
    if found is not None:
        client.cancel(found.experiment)
    request = secrets.token_hex(4)
    try:
        replace_file(note, json.dumps({"cell": cell.id, "request": request}).encode())
    except OSError as error:
        raise refusal(note.parent, explain(error)) from None
    return request


def _find(client: Client, request: str) -> ExperimentSummary | None:
    """Return what a request has led to at this manager."""
    ending = f"-{request}"
    return next((one for one in client.experiments() if one.experiment.endswith(ending)), None)


def _is_lost(found: ExperimentSummary | None) -> bool:
    """Whether an experiment has come to nothing; one that never arrived may yet."""
    state = found.state if found else None
    return state in (ExperimentState.FAILED, ExperimentState.CANCELLED)


def _read(note: Path) -> tuple[str, str]:
    """Return the cell and the request that were written down; empty where nothing is to be read."""
    try:
        told = json.loads(note.read_bytes())
        return str(told["cell"]), str(told["request"])
    except (OSError, ValueError, TypeError, KeyError):
        return "", ""


def _forget(note: Path | None) -> None:
    if note is not None:
        note.unlink(missing_ok=True)
