"""Finds the experiment to replay, and checks it before any computation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from downpour.base.errors import SpecError, StoreError
from downpour.base.values import is_bare_name
from downpour.core.spec import ResolvedSpec
from downpour.experiments.reproduction.history import History, history_of
from downpour.files.records.record import read_record
from downpour.files.store import RECORD_NAME, SPEC_NAME, SharedDirectory
from downpour.files.store.directory import names_in, read_regular
from downpour.files.store.process_lock import RUN_LOCK_NAME, is_abandoned

FIELD = "ID"


@dataclass(frozen=True, slots=True)
class Past:
    """An ended experiment: its spec, and how its model came about."""

    shared: SharedDirectory
    spec: ResolvedSpec
    history: History


def past_of(experiment: str, shared: Path) -> Past:
    """Return an experiment of a shared directory.

    Raises:
        SpecError: the experiment does not exist, is still running, has lost or changed files, or
            its bytes depend on more than it keeps.
        SharedDirectoryError: the directory cannot be used.
    """
    directory = SharedDirectory(shared)
    names_in(shared)
    if not isinstance(experiment, str) or not is_bare_name(experiment):
        _refuse(experiment, "must be an experiment's ID")
    folder = directory.experiments / experiment
    if not folder.is_dir():
        _refuse(experiment, f"no such experiment in {shared}")
    try:
        history = history_of(line for _, line in read_record(folder / RECORD_NAME))
    except StoreError as error:
        _refuse(experiment, f"cannot be replayed: {error}")
    if not history.has_ended and not is_abandoned(folder / RUN_LOCK_NAME):
        _refuse(experiment, "is still running; replay it after its end")
    spec = _spec_of(experiment, folder, history)
    if not spec.repeatable:
        _refuse(experiment, "has repeatable = false, so its bytes differ each time")
    return Past(directory, spec, history)


def _spec_of(experiment: str, folder: Path, history: History) -> ResolvedSpec:
    """Return the folder's spec, which must be the one in the record."""
    if not (folder / SPEC_NAME).is_file():
        _refuse(experiment, f"cannot be replayed: its {SPEC_NAME} is missing")
    try:
        spec = ResolvedSpec.from_toml(read_regular(folder / SPEC_NAME).decode())
        submitted = ResolvedSpec.make(history.fields)
    except (SpecError, StoreError, UnicodeDecodeError) as error:
        _refuse(experiment, f"cannot be replayed: its {SPEC_NAME} cannot be used: {error}")
    for name, value in submitted.model_dump().items():
        if getattr(spec, name) != getattr(submitted, name):
            accepted = f"its {SPEC_NAME} was changed: {name} was {value!r}"
            _refuse(experiment, f"cannot be replayed: {accepted}")
    return spec


def _refuse(experiment: object, accepted: str) -> NoReturn:
    raise SpecError(FIELD, experiment, accepted)
