"""The manager's work with an experiment's network: initialize, try and evaluate it.

This is the only module of the manager that imports torch; `work.py` says why it comes late.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from downpour.base import errors, names, states, values
from downpour.core.spec import Spec
from downpour.files.store import WHOLE, model_metadata
from downpour.host.machine import failing_instead_of_dying, told_limit
from downpour.learning.accelerators import devices_here, release
from downpour.learning.numerics import lack_of_memory, numeric_class
from downpour.learning.tasks.agreement import Data, Reading
from downpour.learning.tasks.loaded import LoadedTask, load
from downpour.learning.training import repeating
from downpour.learning.training.evaluation import evaluate_on
from downpour.learning.training.loaders import Loaders, loaders_for
from downpour.learning.training.optimizers import without_effect
from downpour.learning.training.parameters import (
    Arrays,
    begin_from,
    buffers_of,
    frozen_of,
    load_frozen,
    load_parameters,
    parameters_of,
    ties_of,
)
from downpour.learning.training.step import StepCost
from downpour.learning.training.trial import check_trains

log = logging.getLogger(__name__)

_CPU_TRIAL_BATCH = 16
"""Examples in a trial batch on the CPU, if the spec names a device that this machine lacks."""

Shard = NDArray[np.int64]


class GlobalModel:
    """An experiment's network on this machine, on the spec's device if the machine has that."""

    def __init__(self, spec: Spec, dataset: Data) -> None:
        """Build the network; its initial parameters follow from the spec's seed."""
        # The spec gives the number of threads, not this machine's cores. All rounds depend on the
        # initial parameters, so these must follow from the spec alone.
        torch.set_num_threads(spec.threads)
        self._spec = spec
        self._dataset = dataset
        self._start: Mapping[str, NDArray[Any]] = {}
        self.tried = repeating.as_tried(_on_this_machine(spec))
        self.looks: repeating.Looks | None = None
        self.circumstances: repeating.Circumstances = []
        self._loaded = load(_on_this_machine(spec), dataset)
        self._loaders: Loaders | None = None
        self._network = self._loaded.network()
        self._loaded.check_fit(self._network)
        self.trained_numbers = sum(p.numel() for p in self._network.parameters())
        # The CPU's class even if the spec names a device, because we build networks on the CPU.
        self.numeric_class = numeric_class("cpu")

    def begin_from(self, tensors: Mapping[str, NDArray[Any]]) -> tuple[str, ...]:
        """Use these as the initial parameters, see `training.start`; returns its remarks."""
        remarks = begin_from(self._network, tensors, str(self._spec.init_from))
        # Keep them, because `check_trains` rebuilds the network and must try them, too.
        self._start = tensors
        return remarks

    def check_trains(
        self, shards: Sequence[Shard], *, again: bool = False, cost: StepCost | None = None
    ) -> StepCost | None:
        """Refuse a network that does not train, see `training.trial`; the parameters don't change.

        With `again`, this repeats what another process decides, see `training.repeating`. `cost` is
        that of a step, if another process has tried it; the same is returned, if we can take one.
        """
        tried = self.tried
        if tried.device == names.CPU and self._spec.device not in {names.CPU, names.AUTO}:
            # Fewer, because an accelerator's second may be a processor's minute.
            few = min(self._spec.batch_size, _CPU_TRIAL_BATCH)
            tried = tried.replace(batch_size=few, batches="shuffled")
        # Rebuild the network, because steps in this one would change the parameters of version 0.
        loaded = load(tried, self._dataset, self._begun)
        # The manager serves others, so the kernel must not kill it for a trial.
        with failing_instead_of_dying():
            cost = cost or check_trains(loaded, shards, self.parameters())
            if self._spec.trains_own_code and cost is not None:
                self._repeat(loaded, again=again)
        release(tried.device)
        return cost

    def _repeat(self, loaded: LoadedTask, *, again: bool) -> None:
        """Take the steps that other processes repeat, if there is memory for them."""
        try:
            with lack_of_memory():
                self.circumstances = repeating.repeated(loaded) if again else []
                self.looks = None if again else repeating.decided(loaded)
        except errors.OutOfMemory as error:
            log.warning("could not repeat the trial: %s (%s)", error, told_limit())

    @property
    def trial(self) -> values.TrialSums | None:
        """The sums with which other processes compare their steps, if this one tried any."""
        if self.looks is None:
            return None
        its = str(numeric_class(self.tried.device))
        return values.TrialSums(numeric_class=its, looks=repeating.in_short(self.looks))

    def without_effect(self) -> tuple[str, ...]:
        """Say which of the spec's fields have no effect, see `training.optimizers`."""
        return without_effect(self._loaded, self._network)

    def parameters(self) -> Arrays:
        """Return parameters and buffers as views of the network's memory, which change with it."""
        return parameters_of(self._network, copy=False)

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a model version's file: its buffers, if that matters."""
        spec = self._spec
        is_all_whole = spec.in_step and spec.update_codec == WHOLE and not spec.publishes_steps
        return {} if is_all_whole else model_metadata(buffers_of(self._network))

    def trained(self) -> tuple[str, ...]:
        """Return the names of the trained parameters; all other tensors that travel are buffers."""
        buffers = buffers_of(self._network)
        return tuple(name for name in self.parameters() if name not in buffers)

    def frozen(self) -> Arrays:
        """Return the parameters that are never trained; no model version contains them."""
        return frozen_of(self._network)

    def ties(self) -> dict[str, str]:
        """Return the names that files of this network leave out, see `training.parameters`."""
        return ties_of(self._network)

    def load_frozen(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Set the never-trained parameters, for a manager that did not draw them itself."""
        load_frozen(self._network, arrays)

    def evaluate(
        self,
        parameters: Mapping[str, NDArray[Any]],
        held_out: Shard | None = None,
        reading: Reading | None = None,
    ) -> states.Evaluation:
        """Evaluate on the test or the `held_out` examples; `reading` says who reads ahead."""
        load_parameters(self._network, parameters)
        device = self._loaded.spec.device
        if self._loaders is None and reading is not None:
            self._loaders = loaders_for(self._loaded, reading, "test")
        try:
            return self._measured(held_out)
        except errors.OutOfMemory as error:
            # Workers may hold the card's memory. The CPU can evaluate, too: that changes no model.
            if device == names.CPU:
                raise
            log.warning("the manager evaluates on the CPU from here on: %s", error)
        finally:
            release(device)
        self.close()
        self._loaded = load(self._spec.replace(device=names.CPU), self._dataset)
        return self._measured(held_out)

    def close(self) -> None:
        """End the loaders."""
        if self._loaders is not None:
            self._loaders.close()
            self._loaders = None

    def _measured(self, held_out: Shard | None) -> states.Evaluation:
        if held_out is None:
            chosen = np.arange(self._loaded.count("test"))
            return evaluate_on(self._network, self._loaded, chosen, "test", self._loaders)
        return evaluate_on(self._network, self._loaded, held_out, "validation", self._loaders)

    def _begun(self, network: torch.nn.Module) -> None:
        if self._start:
            begin_from(network, self._start, str(self._spec.init_from))


def _on_this_machine(spec: Spec) -> Spec:
    """Return the spec with a device of this machine: the spec's own, or else the CPU."""
    return spec.replace(device=devices_here().nearest(spec.device))
