"""Finds a trained model by the user's name for it, with the spec and the data next to it.

An experiment's folder has everything: the file, `spec.toml`, and a record that names the prepared
data in the same shared directory. An exported folder has the file, the spec, and the facts about
the data.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from downpour.base.errors import SpecError, StoreError
from downpour.core.spec import FORMERLY, Spec, toml_fields
from downpour.experiments.reading import Result
from downpour.files.records.record import has_record, read_record
from downpour.files.records.record_lines import PreparedLine
from downpour.files.store import RECORD_NAME, SPEC_NAME
from downpour.files.store.directory import read_regular
from downpour.files.store.location import own_folder
from downpour.files.store.named_model import NamedModel, experiments_at, find_model, read_model
from downpour.host.paths import path_of

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

    def read(self) -> NamedModel:
        """Return the model's parameters.

        Raises:
            SpecError: the file cannot be read, or is not a safetensors file.
        """
        return read_model(self.file, self.name, None, field=FIELD)


def find(source: Source, shared: Path, spec: Spec | None = None) -> TrainedModel:
    """Find a trained model.

    Args:
        source: names the model.
        shared: the shared directory in which to look up an ID.
        spec: the spec of its training, instead of the `spec.toml` next to it.

    Raises:
        SpecError: the model does not exist, or no spec of its training is known.
    """
    name = _name_of(source)
    directory = experiments_at(shared)
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
    """Return the spec in a folder with a model; `field` and `name` are the user's words.

    Raises:
        SpecError: the folder has no spec, or the spec cannot be used.
    """
    if not (folder / SPEC_NAME).is_file():
        accepted = f"has no {SPEC_NAME} next to it; name an experiment, or its folder"
        raise SpecError(field, name, accepted)
    try:
        fields = toml_fields(read_regular(folder / SPEC_NAME).decode())
        return Spec.make({**FORMERLY, **fields})
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
