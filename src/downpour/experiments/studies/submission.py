"""A run at another manager, which continues if someone kills the process that submitted it.

We write the run's request to a file before we submit it. The same request leads to the same
experiment (`Client.submit`), so the next process finds the experiment again and does not train
twice. If the study no longer needs a run, we cancel its experiment.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from downpour.base.errors import DownpourError
from downpour.base.states import ExperimentState
from downpour.experiments.client import Client
from downpour.experiments.studies.run_folder import refusal, replace_file
from downpour.experiments.studies.study import Run
from downpour.files.store.os_errors import explain
from downpour.network.rpc.messages import ExperimentSummary

REQUEST_NAME = "request.json"


@contextmanager
def submitted(client: Client, run: Run, note: Path | None) -> Iterator[str]:
    """Submit a run, or find its experiment again; yield the experiment's identifier.

    If the block is interrupted, this cancels the experiment.

    Args:
        client: A client of the manager that trains it.
        run: What to train.
        note: The file for the request; None if the manager ends with this process.

    Raises:
        SpecError: the manager refuses the run, or the note cannot be written.
    """
    request = secrets.token_hex(4) if note is None else _request(client, run, note)
    experiment = client.submit(run.spec, request)
    try:
        yield experiment
    except BaseException:
        with suppress(DownpourError):
            client.cancel(experiment)
            _forget(note)
        raise
    _forget(note)


def _request(client: Client, run: Run, note: Path) -> str:
    """Return the run's request from the file, or write a new one to it."""
    former_run, former = _read(note)
    begun = _find(client, former) if former else None
    if former_run == run.id and not _is_lost(begun):
        return former
    if begun is not None:
        client.cancel(begun.experiment)
    request = secrets.token_hex(4)
    try:
        # Earlier versions called a run "cell", and they must be able to read the file.
        replace_file(note, json.dumps({"cell": run.id, "request": request}).encode())
    except OSError as error:
        raise refusal(note.parent, explain(error)) from None
    return request


def _find(client: Client, request: str) -> ExperimentSummary | None:
    """Return the experiment of a request at this manager, or None."""
    ending = f"-{request}"
    return next((one for one in client.newest() if one.experiment.endswith(ending)), None)


def _is_lost(begun: ExperimentSummary | None) -> bool:
    """Whether an experiment ended without a model.

    None means that the manager does not know it: the same request may submit it again.
    """
    state = begun.state if begun else None
    return state in (ExperimentState.FAILED, ExperimentState.CANCELLED)


def _read(note: Path) -> tuple[str, str]:
    """Return the run and the request in the file; two empty texts if there are none."""
    try:
        content = json.loads(note.read_bytes())
        return str(content["cell"]), str(content["request"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return "", ""


def _forget(note: Path | None) -> None:
    if note is not None:
        note.unlink(missing_ok=True)
