"""What the manager does with an experiment's network: tries it, draws it, evaluates it.

The one module of the manager that imports torch; `workspace.py` says why it is imported late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from downpour import models
from downpour.datasets import PreparedDataset
from downpour.spec import Spec
from downpour.training.evaluation import evaluate
from downpour.training.numeric_class import numeric_class
from downpour.training.parameters import Arrays, load_parameters, parameters_of
from downpour.training.trial import check_trains
from downpour.values import Evaluation

_TRIED_ELSEWHERE = 16
"""Examples in a batch."""

Shard = NDArray[np.int64]


class GlobalModel:
    """An experiment's network on the manager's machine, on the spec's device where it is there."""

    def __init__(self, spec: Spec, dataset: PreparedDataset) -> None:
        """Build the network, with the initial parameters that follow from the spec's seed.

        Raises:
            SpecError: network, options, data and loss do not fit together.
        """
        torch.set_num_threads(spec.threads)
        self._spec = spec
        self._dataset = dataset
        self._network = self._build()
        models.check_fit(self._network, spec, dataset.facts)
        self.trained_numbers = sum(p.numel() for p in self._network.parameters())
        self.numeric_class = numeric_class("cpu")

    def check_trains(self, shards: Sequence[Shard]) -> None:
        """Refuse what does not train, see `training.trial`; its parameters stay as they are.

        Where the spec's device is not here, few examples must do: what takes an accelerator a
        second may take a processor a minute.

        Raises:
            SpecError: says what is wrong, and where in the user's code.
        """
        tried = _where_it_can(self._spec)
        if tried.device != self._spec.device:
            few = min(self._spec.batch_size, _TRIED_ELSEWHERE)
            tried = tried.replace(batch_size=few, batches="shuffled")
        check_trains(tried, self._dataset, shards, self._build)

    def parameters(self) -> Arrays:
        """Return parameters and buffers; they are the network's own memory, and change with it."""
        return parameters_of(self._network, copy=False)

    def evaluate(self, parameters: Mapping[str, NDArray[Any]]) -> Evaluation:
        """Evaluate these parameters and buffers on the test examples.

        Raises:
            FileCorrupt: they are not those of this network.
            NonFinite: the loss is NaN or infinite.
            OutOfMemory: memory did not suffice.
        """
        load_parameters(self._network, parameters)
        return evaluate(self._network, _where_it_can(self._spec), self._dataset)

    def _build(self) -> torch.nn.Module:
        return models.build(self._spec, self._dataset.facts)


def _where_it_can(spec: Spec) -> Spec:
    """Evaluate on the spec's device, or on the CPU where the manager's machine lacks it."""
    if spec.device == "cuda" and not torch.cuda.is_available():
        return spec.replace(device="cpu")
    return spec
