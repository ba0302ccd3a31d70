"""Measures a trained model: on its experiment's test examples, or on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError, StoreError
from downpour.base.evaluations import Evaluation
from downpour.core.spec import Spec
from downpour.experiments.trained_model.inputs import read_labelled
from downpour.experiments.trained_model.loading import (
    NO_DATA,
    data_key,
    fill,
    known_data,
    task_of,
    warn_of_other_code,
)
from downpour.experiments.trained_model.locating import FIELD, TrainedModel
from downpour.learning.datasets import open_prepared
from downpour.learning.tasks.agreement import limited
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import own_task, theirs
from downpour.learning.training.evaluation import evaluate


def measure(
    trained: TrainedModel,
    *,
    data: Path | None = None,
    data_dir: Path | None = None,
    options: Mapping[str, Any] | None = None,
) -> Evaluation:
    """Measure a trained model as its experiment did, after training.

    Args:
        trained: the model.
        data: examples for a built-in model, in place of its test examples.
        data_dir: where the files of datasets are, if Downpour must prepare them again.
        options: `task_options` that differ from the training's, such as the place of a task's
            examples.

    Raises:
        SpecError: model, examples or options do not fit together.
        NonFinite: the loss is NaN or infinite.
    """
    warn_of_other_code(trained.spec)
    if trained.spec.task is None:
        task = _built_in(trained, data, data_dir, options or {})
    else:
        task = _own(trained, data, options or {})
    model = task.network()
    fill(model, trained)
    return evaluate(model, task)


def _built_in(
    trained: TrainedModel, data: Path | None, data_dir: Path | None, options: Mapping[str, Any]
) -> LoadedTask:
    if options:
        raise SpecError("task_options", dict(options), "only a task has them")
    if data is not None:
        known = known_data(trained)
        examples = read_labelled(data, known, trained.spec, field="data")
        facts = replace(known.facts, test_samples=len(examples))
        return task_of(trained, replace(known, facts=facts, test=examples))
    try:
        return task_of(trained, open_prepared(trained.data_root, data_key(trained, data_dir)))
    except StoreError as error:
        raise SpecError(FIELD, trained.name, f"its data cannot be read: {error}") from None


def _own(trained: TrainedModel, data: Path | None, options: Mapping[str, Any]) -> LoadedTask:
    spec = trained.spec
    if data is not None:
        accepted = "is for built-in models; a task's options give the path of its examples"
        raise SpecError("data", str(data), accepted)
    spec = spec.replace(task_options={**spec.task_options, **options})
    facts = replace(NO_DATA.facts, test_samples=_test_examples(spec))
    return task_of(replace(trained, spec=spec), replace(NO_DATA, facts=facts))


def _test_examples(spec: Spec) -> int:
    with theirs(spec, 'examples("test") fails'):
        return limited(len(own_task(spec).examples("test")), spec, "test")
