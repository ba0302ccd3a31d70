"""Exports a trained model to a folder for programs that know nothing of Downpour.

The folder holds the `state_dict` as safetensors, the spec, and the facts about the data that a
program needs to build the network again. If the network has its own `save_pretrained`, the folder
also holds the files that it writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError
from downpour.experiments.trained_model.loading import load, stated_facts
from downpour.experiments.trained_model.locating import FIELD, TrainedModel
from downpour.files.store import FINAL_NAME, SPEC_NAME, encode
from downpour.host.paths import empty_folder
from downpour.learning.blame import describe_error
from downpour.learning.datasets.array_folder import FACTS_FILE
from downpour.learning.training.parameters import frozen_of, parameters_of, ties_of

PRETRAINED = "pretrained"


def export(trained: TrainedModel, folder: Path) -> list[Path]:
    """Write a trained model into a new or empty folder; return the written files.

    Raises:
        SpecError: the folder is not empty or cannot be written, or the network cannot be built.
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
