"""Finds a trained model by the user's name for it, and continues its experiment.

An experiment's folder has everything: the file, `spec.toml`, and a record that names the prepared
data in the same shared directory. An exported folder has the file, the spec, and the facts about
the data.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError, StoreError
from downpour.base.names import checked_call
from downpour.base.values import is_bare_name
from downpour.cluster.manager.start_file import best_before, journaled, rounds_of_versions
from downpour.core.spec import Spec, stored_fields
from downpour.experiments.surroundings import shared_path
from downpour.files.store import RECORD_NAME, SPEC_NAME, ModelName, SharedDirectory, parse_name
from downpour.files.store.directory import read_regular
from downpour.files.store.model_files import experiments_at, find_model
from downpour.files.store.shared_directory import is_at_work, own_folder
from downpour.host.paths import path_of
from downpour.record import Result
from downpour.record.record import has_record, is_exported, read_record
from downpour.record.record_lines import PreparedLine

FIELD = "model"

Source = Result | str | os.PathLike[str]
"""A result, the ID of an experiment, or a path: a file, or a folder with a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """A trained model: its file, the spec that it was trained with, and the place of its data.

    `data_root` and `data_key` name the prepared data; the key is empty if none are named.
    """

    name: str
    file: Path
    spec: Spec
    data_root: Path
    data_key: str


def find(source: Source, shared: Path, spec: Spec | None = None) -> TrainedModel:
    """Find a trained model."""
    directory = experiments_at(shared)
    name = _whole(_name_of(source), directory)
    file = find_model(name, directory, field=FIELD)
    folder = file.parent
    experiment = has_record(folder)
    beside = folder.parents[1] / "datasets" if experiment else None
    data_root = beside or (directory.datasets if directory else shared / "datasets")
    return TrainedModel(
        name=name,
        file=file,
        spec=spec or spec_in(folder, name),
        data_root=data_root if data_root.is_dir() else own_datasets(),
        data_key=data_key_in(folder),
    )


def _whole(name: str, directory: SharedDirectory | None) -> str:
    """Complete the ID in `ID`, `ID@best` or `ID/FILE`, unless the name is the path of something."""
    begin = re.split("[@/]", name)[0]
    if directory is None or not begin or Path(name).exists():
        return name
    return directory.whole_id(begin) + name.removeprefix(begin)


def own_datasets() -> Path:
    """Return this machine's folder for data of models whose shared directory is not here."""
    return own_folder() / "datasets"


def _name_of(source: Source) -> str:
    if isinstance(source, Result):
        return str(source.model_file) if source.model_file else source.experiment
    if isinstance(source, str):
        return source
    return str(path_of(FIELD, source))


def spec_in(folder: Path, name: str, *, field: str = FIELD) -> Spec:
    """Return the spec in a folder with a model; `field` and `name` are the user's words."""
    if not (folder / SPEC_NAME).is_file():
        accepted = f"has no {SPEC_NAME} next to it; name an experiment, or its folder"
        accepted += "; Python takes spec=, too" if field == FIELD else ""
        raise SpecError(field, name, accepted)
    try:
        return Spec.make(stored_fields(read_regular(folder / SPEC_NAME).decode()))
    except (SpecError, StoreError, UnicodeDecodeError) as error:
        raise SpecError(field, name, f"its {SPEC_NAME} cannot be used: {error}") from None


def data_key_in(folder: Path) -> str:
    """Return the key of the data that an experiment's folder names; empty if it names none."""
    try:
        lines = [line for _, line in read_record(folder / RECORD_NAME)]
    except StoreError:
        return ""
    keys = [line.dataset for line in lines if isinstance(line, PreparedLine)]
    return keys[-1] if keys else ""


_DATA_FIELDS = {
    "task",
    "task_options",
    "dataset",
    "dataset_options",
    "data_path",
    "image_size",
    "train_limit",
    "test_limit",
}
"""The fields that a user changes to train on other examples."""


@checked_call()
def resumed(
    experiment: str, *, shared: str | os.PathLike[str] | None = None, **changes: Any
) -> Spec:
    """Return the spec that continues an ended experiment after its last round.

    `downpour.run(downpour.resumed(ID, epochs=20))` trains up to the twentieth epoch.

    Args:
        experiment: Its ID.
        shared: The shared directory; by default DOWNPOUR_SHARED, or else ./shared_dir.
        changes: Fields that differ from its own. `epochs` includes the epochs that it has had.

    Raises:
        SpecError: the experiment does not exist, it has no model, or no rounds remain.
    """
    return resumed_spec(experiment, shared_path(shared), changes)


def resumed_spec(experiment: str, shared: Path, changes: Mapping[str, Any]) -> Spec:
    """Return the spec that continues an experiment.

    The new experiment's first round counts as the one after the old experiment's last, even in the
    middle of an epoch. We refuse examples that differ from the old ones, unless the user also
    changes the fields that name them.

    `changes` are fields that differ from its own. `epochs` includes the epochs that it has had; by
    default, it is as many as the experiment should have had.
    """
    directory = SharedDirectory(shared)
    experiment = directory.whole_id(str(experiment))
    folder = directory.experiments / experiment
    if not is_bare_name(experiment) or not folder.is_dir():
        raise SpecError("resume", experiment, f"no such experiment in {shared}")
    if is_at_work(folder) and not is_exported(folder / RECORD_NAME):
        raise SpecError("resume", experiment, "still trains; it can be continued after its end")
    versions = {
        parsed.version: entry.name
        for entry in folder.iterdir()
        if isinstance(parsed := parse_name(entry.name), ModelName)
    }
    if not versions:
        raise SpecError("resume", experiment, "has no model, because it never began to train")
    spec, last = spec_in(folder, experiment, field="resume"), max(versions)
    # Only what the journal has leads to the outer optimizer's state at a version.
    former = journaled(folder) if spec.publishes_steps else None
    if former is not None and former.version in versions:
        last = former.version
    each = spec.meetings.each
    try:
        done = spec.rounds_before + rounds_of_versions(spec, folder, last)[-1]
    except StoreError as error:
        accepted = f"its record says how many rounds of mode '{spec.mode}' are done: {error}"
        raise SpecError("resume", experiment, accepted) from None
    epochs_done, wanted = done // each, changes.get("epochs", spec.meetings.epochs_in_all)
    if isinstance(wanted, int) and wanted <= epochs_done:
        accepted = f"{experiment} has trained {epochs_done} epochs; set a larger total"
        raise SpecError("epochs", wanted, accepted)
    begin = {
        "init_from": f"{experiment}/{versions[last]}",
        "init_checksum": None,
        "outer_checksum": None,
        "states_checksum": None,
        "best_checksum": None,
        "epochs": wanted - epochs_done if isinstance(wanted, int) else wanted,
        "data_key": None if changes.keys() & _DATA_FIELDS else data_key_in(folder) or spec.data_key,
    }
    goes_on = spec.replace(**{**changes, **begin, "rounds_before": done})
    if goes_on.meet != each:
        if done % each or goes_on.meet == "auto":
            accepted = f"must be {each}, because {experiment} trained with {each} rounds per epoch"
            raise SpecError("meet", goes_on.meet, accepted)
        goes_on = goes_on.replace(rounds_before=epochs_done * goes_on.meetings.each)
    _refuse_spent_patience(experiment, goes_on, folder / versions[last], last)
    return goes_on


def _refuse_spent_patience(experiment: str, spec: Spec, model: Path, version: int) -> None:
    """Refuse to continue an experiment that `stop_after` would end at once."""
    if spec.stop_after is None:
        return
    before = best_before(spec, model, version)
    since = before.epochs_since(spec) if before is not None else 0
    if since >= spec.stop_after:
        accepted = f"{experiment} ended with {since} epochs without a better model; set a larger"
        raise SpecError("stop_after", spec.stop_after, f"{accepted} number to go on")
