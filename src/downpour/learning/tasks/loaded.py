"""A spec's task, ready to train or to evaluate: its network, and its batches by index."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from torch import nn

from downpour.base.errors import FileCorrupt, SpecError, UnfitWorker
from downpour.base.names import AUTO
from downpour.core.spec import Spec
from downpour.learning import models, numerics
from downpour.learning.accelerators import devices_here
from downpour.learning.datasets import PreparedDataset
from downpour.learning.tasks import Batch, ExampleList, Task, resemble
from downpour.learning.tasks.agreement import Data, TaskData
from downpour.learning.tasks.batches import Classification, Columns, batch_of
from downpour.learning.tasks.own import (
    examples_of,
    fingerprint_of,
    limited,
    mistake,
    overrides,
    own_task,
    sketched,
    theirs,
)


def load(spec: Spec, data: Data, begun: Callable[[nn.Module], None] | None = None) -> LoadedTask:
    """Make the task of a spec; the device `auto` becomes this machine's best.

    `begun` sets a network that was just built to where training begins, if not as drawn.
    """
    if spec.device == AUTO:
        spec = spec.replace(device=devices_here().best)
    if isinstance(data, PreparedDataset):
        return LoadedTask(spec, Classification(spec, data), data, begun)
    return LoadedTask(spec, own_task(spec), data, begun)


class LoadedTask:
    """A task with its data and its spec, which has a device of this machine; see `load`."""

    def __init__(
        self, spec: Spec, task: Task, data: Data, begun: Callable[[nn.Module], None] | None = None
    ) -> None:
        self.spec = spec
        self.task = task
        self.data = data
        self._begun = begun
        self.images = isinstance(data, PreparedDataset) and data.images
        self.has_own_step = overrides(task, "step")
        self.repeats = True
        """Whether an accelerator has been found to repeat the bits of all its operations so far."""
        self.block_digests: dict[str, str] = {}
        """The digests of the training blocks read so far, in this process or its loaders."""
        self._examples = cache(self._opened)
        self._columns = cache(self._columns_of)

    def network(self) -> nn.Module:
        """Build the network on the CPU; its parameters follow from the spec's seed."""
        model = self.drawn()
        if self._begun is not None:
            self._begun(model)
        return model

    def drawn(self) -> nn.Module:
        """Build the network as drawn, wherever training begins."""
        if isinstance(self.task, Classification):
            return self.task.model()
        with theirs(self.spec, "model() fails"), numerics.seeded(self.spec.seed):
            model = self.task.model()
        if not isinstance(model, nn.Module):
            raise self.mistake("model", "model() must return a torch.nn.Module")
        try:
            with theirs(self.spec, "its network cannot be looked at"):
                models.check_travels(model, self.spec)
        except SpecError as error:
            raise self.mistake("model", error.accepted) from None
        return model

    def mistake(self, method: str, accepted: str) -> SpecError:
        """Return the refusal of a result of one of the task's methods, see `own.mistake`."""
        return mistake(self.spec, self.task, method, accepted)

    def check_fit(self, model: nn.Module) -> None:
        """Check that the built-in task's network fits its data; a trial tells of others."""
        if isinstance(self.data, PreparedDataset):
            with theirs(self.spec, "its network cannot be tried"):
                models.check_fit(model, self.spec, self.data.facts)

    def examples(self, part: str) -> ExampleList:
        """Return the examples of a part, "train" or "test"; opened once.

        "validation" are the training examples, of the built-in task without what training draws.
        """
        return self._examples(part)

    def note_blocks(self, digests: Iterable[tuple[str, str]]) -> None:
        """Note the digests of blocks that a loader has read."""
        for block, digest in digests:
            if self.block_digests.setdefault(block, digest) != digest:
                raise FileCorrupt(block, "has changed since it was first read")

    def look_again(self, number: int) -> None:
        """Check that one of a user's training examples is still the same, another one each time."""
        if isinstance(self.data, TaskData):
            with theirs(self.spec, 'an example of "train" cannot be read'):
                _check_examples(self.spec, self.data, "train", self.examples("train"), number)

    def count(self, part: str) -> int:
        """Return how many examples of a part are used."""
        facts = self.data.facts
        return facts.test_samples if part == "test" else facts.train_samples

    def batch(self, part: str, indices: NDArray[np.int64]) -> Batch:
        """Return the batch of some indices [b], on the spec's device."""
        columns = self._columns(part)
        if columns is not None:
            return columns.gathered(indices, self.spec.device)
        return batch_of(self.task, self.examples(part), part, indices, self.spec.device)

    def _columns_of(self, part: str) -> Columns | None:
        """Return a part's columns; None if its batches are made in another way."""
        return None if overrides(self.task, "collate") else Columns.of(self.examples(part))

    def _opened(self, part: str) -> ExampleList:
        if part == "validation" and not isinstance(self.task, Classification):
            return self.examples("train")
        examples = examples_of(self.task, self.spec, part)
        digests = getattr(examples, "digests", None)
        if part == "train" and isinstance(digests, dict):
            self.block_digests = digests
        if isinstance(self.data, TaskData):
            with theirs(self.spec, f'an example of "{part}" cannot be read'):
                _check_examples(self.spec, self.data, part, examples)
        return examples


def _check_examples(
    spec: Spec, data: TaskData, part: str, examples: ExampleList, number: int | None = None
) -> None:
    """Check that this machine's examples of a part are those of the manager.

    Of the manager's sketches, `number` says which one to compare; absent: all of them.
    """
    count = data.facts.train_samples if part == "train" else data.facts.test_samples
    here = limited(len(examples), spec, part)
    if here != count:
        raise UnfitWorker(f"{spec.task} has {here} {part} examples here, but {count} elsewhere")
    files = fingerprint_of(examples)
    if files != data.files.get(part, files):
        raise UnfitWorker(f"{spec.task}: the files of its {part} examples are different here")
    sketches = list(data.sketches[part].items())
    if number is not None and sketches:
        sketches = [sketches[number % len(sketches)]]
    for index, expected in sketches:
        if not resemble(sketched(examples, part, index), expected):
            raise UnfitWorker(f"{spec.task}: {part} example {index} is different here")
