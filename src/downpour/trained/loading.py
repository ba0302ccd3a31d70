"""A trained model as a torch module, built as it was for training."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from torch import nn

from downpour import datasets, models
from downpour.datasets.prepared import FACTS_FILE, read_facts
from downpour.errors import OtherCode, SpecError, StoreError
from downpour.factory_code import check_code
from downpour.manager.options import DEFAULT_SHARED
from downpour.paths import path_of
from downpour.spec import Spec
from downpour.trained.finding import FIELD, Source, TrainedModel, find
from downpour.training.start import begin_from
from downpour.values import DatasetFacts

log = logging.getLogger(__name__)


def load_model(
    source: Source, *, shared: str | os.PathLike[str] | None = None, spec: Spec | None = None
) -> nn.Module:
    """Return a trained network with its parameters, on the CPU and in eval mode.

    Args:
        source: A result, the ID of an experiment, or a path: a model's file, an experiment's
            folder or one of `downpour export`. An experiment that has not ended gives its newest
            model; `ID/FILE` names another file of its folder.
        shared: The shared directory; by default DOWNPOUR_SHARED, or else ./shared_dir.
        spec: What the file was trained as, if no `spec.toml` lies beside it.

    Raises:
        SpecError: there is no such model, or its network cannot be built; code of yours must be on
            the allow-list, DOWNPOUR_ALLOW.
    """
    return load(find(source, shared_path(shared), spec))


def shared_path(shared: str | os.PathLike[str] | None) -> Path:
    """Return the shared directory that is meant: the given one, the environment's, or the default.

    Raises:
        SpecError: it is no path.
    """
    named = os.environ.get("DOWNPOUR_SHARED") or DEFAULT_SHARED if shared is None else shared
    return path_of("shared", named)


def load(trained: TrainedModel) -> nn.Module:
    """Return the network of a model that was found; see `load_model`."""
    model = network(trained)
    missing = begin_from(model, trained.read().tensors, trained.name, field=FIELD)
    for remark in missing:
        log.warning("%s", remark)
    return model.eval()


def network(trained: TrainedModel) -> nn.Module:
    """Build the network of a trained model, with its initial parameters.

    Raises:
        SpecError: it cannot be built on this machine.
    """
    spec = trained.spec
    warn_of_other_code(spec)
    return models.build(spec, _facts(stated_facts(trained)))


def warn_of_other_code(spec: Spec) -> None:
    """Log which file of the user's code is not the one that the model was trained with."""
    for field, name in spec.factories.items():
        try:
            check_code(field, name, spec.code)
        except OtherCode as error:
            log.warning("%s: the model was trained with other code: %s", name, error)


def stated_facts(trained: TrainedModel) -> dict[str, Any]:
    """Return what is known of the data that a model was trained on, as its `facts.json` says it.

    Raises:
        SpecError: it is not there, and the data cannot be prepared again.
        StoreError: it cannot be read.
    """
    beside = trained.file.parent / FACTS_FILE
    if beside.is_file():
        try:
            stated = json.loads(beside.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SpecError(FIELD, trained.name, f"its {FACTS_FILE} is damaged: {error}") from None
        if isinstance(stated, dict):
            return stated
    return read_facts(trained.data_root / data_key(trained))


def data_key(trained: TrainedModel, data_dir: Path | None = None) -> str:
    """Return the key of the data that a model was trained on; they are made again where gone.

    Raises:
        SpecError: the data are gone, and their source too, or it has changed.
    """
    root, key = trained.data_root, trained.data_key
    try:
        return datasets.prepare(trained.spec, root, data_dir, key or None)
    except StoreError as error:
        raise SpecError(FIELD, trained.name, f"its data cannot be read: {error}") from None


def _facts(stated: dict[str, Any]) -> DatasetFacts:
    try:
        return DatasetFacts(
            train_samples=int(stated["train_samples"]),
            test_samples=int(stated["test_samples"]),
            sample_shape=tuple(int(length) for length in stated["sample_shape"]),
            classes=int(stated["classes"]),
            targets_per_sample=int(stated["targets_per_sample"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise SpecError(FIELD, FACTS_FILE, f"misses or garbles {error}") from None
