"""A trained model's predictions: one row per example, for people and programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from downpour.base.errors import SpecError
from downpour.experiments.trained_model.inputs import read_inputs
from downpour.experiments.trained_model.loading import fill, known_data, task_of, warn_of_other_code
from downpour.experiments.trained_model.locating import TrainedModel
from downpour.host.paths import path_of
from downpour.learning.datasets import Examples, PreparedDataset
from downpour.learning.models import generators
from downpour.learning.tasks.batches import batch_of
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import examples_of, theirs
from downpour.learning.training import numerics
from downpour.learning.training.evaluation import examples_together

INPUT = "INPUT"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Predictions:
    """Rows of plain values by column; the first column names the example of each row."""

    rows: tuple[Row, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.rows[0]) if self.rows else ()


def predict(trained: TrainedModel, given: str) -> Predictions:
    """Return a model's predictions for examples.

    Args:
        trained: the model.
        given: for a built-in model, a file or folder (see `inputs`); for a task, a part of its
            examples, such as "test".

    Raises:
        SpecError: the examples cannot be read, or do not fit the network; or a task's `predict`
            fails, or does not return a row for each example.
    """
    warn_of_other_code(trained.spec)
    if trained.spec.task is None:
        task, names = _built_in(trained, given)
        part = "test"
    else:
        task, part = task_of(trained), given
        with theirs(trained.spec, f'examples("{part}") fails'):
            names = tuple(map(str, range(len(examples_of(task.task, trained.spec, part)))))
    if not names:
        raise SpecError(INPUT, given, "has no examples")
    model = task.network()
    fill(model, trained)
    return Predictions(tuple(_rows(model, task, part, names)))


def _built_in(trained: TrainedModel, given: str) -> tuple[LoadedTask, tuple[str, ...]]:
    dataset: PreparedDataset = known_data(trained)
    inputs = read_inputs(path_of(INPUT, given), dataset, trained.spec, field=INPUT)
    count, known = len(inputs.x), dataset.train.y
    blank = np.zeros((count, *known.shape[1:]), known.dtype)
    test = Examples(x=inputs.x, y=blank)
    facts = replace(dataset.facts, test_samples=count)
    return task_of(trained, replace(dataset, facts=facts, test=test)), inputs.names


def _rows(model: nn.Module, task: LoadedTask, part: str, names: tuple[str, ...]) -> Iterator[Row]:
    spec = task.spec
    examples = examples_of(task.task, spec, part)
    numerics.place(model, spec, images=task.images)
    model.eval()
    with numerics.settings(spec), torch.no_grad(), generators.seeded(spec.seed):
        size = spec.batch_size if spec.task else examples_together(model, task)
        for start in range(0, len(names), size):
            chosen = np.arange(start, min(start + size, len(names)))
            with theirs(spec, "predict() fails"), numerics.precision(spec):
                batch = batch_of(task.task, examples, part, chosen, spec.device)
                said = task.task.predict(model, batch)
                columns = _columns(said, len(chosen), task)
            for row, number in enumerate(chosen):
                values = {name: column[row] for name, column in columns.items()}
                yield {"example": names[number], **values}


def _columns(said: object, count: int, task: LoadedTask) -> dict[str, list[Any]]:
    """Return a task's predictions as lists by name; a lone tensor is called "output"."""
    named = said if isinstance(said, Mapping) else {"output": said}
    columns = {}
    for name, value in named.items():
        kind = f"{list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        lone_number = isinstance(value, Tensor) and value.dim() == 0
        if not isinstance(value, Tensor | list) or lone_number or len(value) != count:
            accepted = f"predict() must return a row for each of {count} examples, not {kind}"
            raise SpecError(*task.spec.trained_code, accepted)
        if isinstance(value, Tensor):
            lone = value.dim() == 2 and value.shape[1] == 1
            value = (value[:, 0] if lone else value).tolist()  # noqa: PLW2901
        columns[str(name)] = value
    return columns
