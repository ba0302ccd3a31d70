"""Builds a trained model as a torch module, in the same way as for training, and exports it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from downpour.base.errors import OtherCode, SpecError, StoreError
from downpour.base.names import checked_call
from downpour.base.values import DatasetFacts
from downpour.core.spec import Spec
from downpour.experiments.client import Asked, spec_of
from downpour.experiments.running.surroundings import shared_path
from downpour.experiments.trained_model.locating import (
    FIELD,
    Source,
    TrainedModel,
    find,
    own_datasets,
)
from downpour.files.store import FINAL_NAME, SPEC_NAME, encode
from downpour.files.store.directory import read_regular
from downpour.files.store.model_files import read_model
from downpour.host.paths import empty_folder
from downpour.learning.accelerators import devices_here
from downpour.learning.blame import describe_error
from downpour.learning.datasets import PreparedDataset
from downpour.learning.datasets.array_folder import FACTS_FILE, parsed_facts, read_facts
from downpour.learning.datasets.prepared import without_examples
from downpour.learning.tasks import Data, prepare_data
from downpour.learning.tasks.agreement import TaskData
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.loaded import load as load_task
from downpour.learning.training.loop import begin_from, lacking
from downpour.learning.training.parameters import frozen_of, parameters_of, ties_of
from downpour.learning.user_code import check_code

log = logging.getLogger(__name__)

NO_DATA = TaskData(
    facts=DatasetFacts(
        train_samples=0, test_samples=0, sample_shape=(), classes=0, targets_per_sample=0
    ),
    labels=None,
    sketches={"train": {}, "test": {}},
)
"""The facts about a task's examples before anyone has looked at one."""


@checked_call()
def load_model(
    source: Source, *, shared: str | os.PathLike[str] | None = None, spec: Asked | None = None
) -> nn.Module:
    """Return a trained network with its parameters, on the CPU and in eval mode.

    Args:
        source: A result, the ID of an experiment, or a path: a model's file, an experiment's
            folder or one of `downpour export`. If an experiment has not ended, this loads its
            newest model. `ID@best` is the best model that it has kept, and `ID/FILE` another file
            of its folder.
        shared: The shared directory; by default DOWNPOUR_SHARED, or else ./shared_dir.
        spec: The spec that the file was trained with, if no `spec.toml` is next to it, in the forms
            that `run` takes.

    Raises:
        SpecError: the model does not exist, or its network cannot be built. Your own code must be
            on the allow-list, DOWNPOUR_ALLOW.
    """
    known = spec_of(spec) if spec is not None else None
    return load(find(source, shared_path(shared), known))


def load(trained: TrainedModel) -> nn.Module:
    """Return the network of a model that `find` returned; see `load_model`."""
    warn_of_other_code(trained.spec)
    model = task_of(trained).network()
    fill(model, trained)
    return model.eval()


def fill(model: nn.Module, trained: TrainedModel) -> None:
    """Copy a trained model's parameters into its network."""
    tensors = read_model(trained.file, trained.name, None, field=FIELD).tensors
    for remark in begin_from(model, tensors, trained.name, field=FIELD):
        log.warning("%s", remark)
    if missing := lacking(model, {*tensors, *frozen_of(model)}):
        raise SpecError(FIELD, trained.name, f"lacks {missing[0]}, which the network trains")


def task_of(trained: TrainedModel, data: Data | None = None) -> LoadedTask:
    """Make the task of a trained model, on this machine; by default without any examples."""
    spec = trained.spec.replace(device=devices_here().nearest(trained.spec.device))
    if data is None:
        data = known_data(trained) if spec.task is None else NO_DATA
    return load_task(spec, data)


def warn_of_other_code(spec: Spec) -> None:
    """Log which files of the user's code have changed since the model's training."""
    for field, name in spec.factories.items():
        try:
            check_code(field, name, spec.code)
        except OtherCode as error:
            log.warning("%s: the code has changed since this model was trained: %s", name, error)


def known_data(trained: TrainedModel) -> PreparedDataset:
    """Return the dataset that a model was trained on, with its facts but without its examples."""
    try:
        return without_examples(stated_facts(trained), trained.name)
    except StoreError as error:
        raise SpecError(FIELD, trained.name, f"its data cannot be read: {error}") from None


def stated_facts(trained: TrainedModel) -> Mapping[str, Any]:
    """Return what `facts.json` says about the data that a model was trained on."""
    beside = trained.file.parent / FACTS_FILE
    if not beside.is_file():
        return read_facts(trained.data_root / data_key(trained))
    return parsed_facts(read_regular(beside), FACTS_FILE)


def data_key(trained: TrainedModel, data_dir: Path | None = None) -> str:
    """Return the key of the data that a model was trained on; prepare the data again if gone."""
    root, key = trained.data_root, trained.data_key
    try:
        if root == own_datasets():
            root.mkdir(parents=True, exist_ok=True)
        return prepare_data(trained.spec, root, data_dir, key or None)
    except (StoreError, OSError) as error:
        raise SpecError(FIELD, trained.name, f"its data cannot be read: {error}") from None


PRETRAINED = "pretrained"


def export(trained: TrainedModel, folder: Path) -> list[Path]:
    """Write a trained model into a new or empty folder; return the written files.

    The folder holds the `state_dict` as safetensors, the spec, and the facts about the data that a
    program needs to build the network again. If the network has its own `save_pretrained`, the
    folder also holds the files that it writes.
    """
    model = load(trained)
    # Read this before writing anything: if the file is unreadable, no part of a folder stays.
    facts = None if trained.spec.task is not None else json.dumps(stated_facts(trained))
    empty_folder("to", folder)
    try:
        with (folder / FINAL_NAME).open("wb") as file:
            arrays = {**parameters_of(model), **frozen_of(model)}
            ties = {tied: arrays[name] for tied, name in ties_of(model).items()}
            file.writelines(encode({**arrays, **ties}, {}))
        (folder / SPEC_NAME).write_text(trained.spec.to_toml(), encoding="utf-8")
        if facts is not None:
            (folder / FACTS_FILE).write_text(facts, encoding="utf-8")
        save = getattr(model, "save_pretrained", None)
        if callable(save):
            _save_pretrained(save, folder / PRETRAINED, trained)
    except OSError as error:
        raise SpecError("to", str(folder), f"cannot be written: {error.strerror}") from None
    return sorted(folder.iterdir())


def _save_pretrained(save: Callable[[str], Any], folder: Path, trained: TrainedModel) -> None:
    try:
        save(str(folder))
    except Exception as error:
        accepted = f"its save_pretrained() fails: {describe_error(error)}"
        raise SpecError(FIELD, trained.name, accepted) from error
