"""The check at submission: two real steps, twice, before a worker gets a shard.

The first time, both steps are in one network, which then trains another task, as a worker's does.
The second time, a snapshot cuts them (docs/internals/decisions.md, "Preparation tries whether a
network repeats").
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from downpour.base import errors
from downpour.base.names import CPU
from downpour.base.states import unmeasured
from downpour.core.spec import Spec
from downpour.host.machine import told_limit
from downpour.learning import numerics
from downpour.learning.accelerators import is_plain
from downpour.learning.blame import users_errors
from downpour.learning.tasks.batches import Indices
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.tasks.own import overrides, theirs
from downpour.learning.training import epoch_order, evaluation, loop, repeating, step
from downpour.learning.training.parameters import Arrays, load_parameters, parameters_of

log = logging.getLogger(__name__)


_STEPS = 2
"""How many steps a trial takes of a shard."""
_ELSEWHERE = (
    "it must draw random numbers only from the global generators of torch, Python or "
    "numpy, and nothing outside of it may count its steps"
)
_BEFORE = (
    "a step may change only parameters and persistent buffers, because other workers "
    "continue from these"
)


def check_trains(
    loaded: LoadedTask, shards: Sequence[Indices], start: Arrays | None = None
) -> step.StepCost | None:
    """Refuse a network that cannot train, or does not train to the same bytes twice.

    It trains two steps and the smallest batch that a shard ends with, both twice, and evaluates a
    user's task on the first and the last batch of test examples. If memory does not suffice, it
    logs that and refuses nothing, because workers may have more. Bytes that differ on a GPU, or in
    a training that the spec does not call repeatable, are only logged.

    The networks begin with the parameters and buffers of `start`, which hold still meanwhile. This
    returns the cost of a step; None if none was taken.
    """
    if not any(map(len, shards)):
        return None
    processes = loaded.spec.inside.processes
    if processes > 1 and loaded.has_own_step:
        accepted = "must be 1, because the task's step() does everything itself"
        raise errors.SpecError("inside.processes", processes, accepted)
    trial = _Trial(loaded, shards, start)
    try:
        with numerics.lack_of_memory(), theirs(loaded.spec, "cannot be trained"):
            trial.cut()
            # Again, for another thread of the process may have drawn from a global generator.
            difference = trial.difference() and trial.difference()
            trial.evaluate()
            trial.compare_parts()
    except (errors.FileCorrupt, errors.NonFinite) as error:
        raise errors.SpecError(*loaded.spec.trained_code, f"cannot be trained: {error}") from None
    except errors.OutOfMemory as error:
        log.warning("could not try the network: %s (%s)", error, told_limit())
        return None
    except errors.UnfitWorker as error:
        accepted = f"its examples change during use: {error}"
        raise loaded.mistake("examples", accepted) from None
    if difference:
        report(loaded.spec, f"gives different bytes in two trainings: {difference}")
    return trial.cost


def report(spec: Spec, what: str) -> None:
    """Refuse a training whose bytes differ, unless the spec or the device excuses it."""
    field, name = spec.trained_code
    # Several kernels of accelerators add in any order, and the user cannot choose others.
    if spec.device == CPU and spec.repeatable:
        raise errors.SpecError(field, name, f"{what} (repeatable = false accepts that)")
    log.warning("%s %s %s", field, name, what)


_Look = tuple[str, str, dict[str, str]]
"""A moment, the likely cause of a difference in it, and its state as checksums by name."""


def _form(arrays: Arrays, name: str) -> str:
    return f"{arrays[name].dtype} {list(arrays[name].shape)}" if name in arrays else "absent"


class _Trial:
    """Holds one network at a time, and never more of a training than a worker does.

    So it takes the memory of a worker's training, and what that held at its hand-over.
    """

    def __init__(self, loaded: LoadedTask, shards: Sequence[Indices], start: Arrays | None) -> None:
        self._loaded = loaded
        self._start = start or {}
        self._spec = loaded.spec
        self._number = max(range(len(shards)), key=lambda shard: len(shards[shard]))
        self._shard = shards[self._number]
        ends = (step.last_batch(shard, self._spec) for shard in shards if len(shard))
        self._rest = min(ends, key=len)
        self._network: nn.Module | None = None
        self.cost: step.StepCost | None = None

    def difference(self) -> str:
        """Train twice; returns what differs and its likely cause, or nothing."""
        self._network = None
        network = self._loaded.network()
        self._start = self._start or parameters_of(network)
        before, frozen = repeating.aside(network), repeating.frozen_sums(network)
        straight_on = list(self._straight_on(network))
        self._check_frozen(frozen, repeating.frozen_sums(network))
        changed = repeating.changed(repeating.aside(network), before)
        del network
        for (moment, cause, known), sums in zip(straight_on, self._cut(), strict=True):
            if odd := repeating.changed(known, sums):
                named = changed and cause == _BEFORE
                what = f" ({', '.join(changed[:3])} changes)" if named else ""
                return f"{step.in_words(odd)} {moment}{what}; {cause}"
        return ""

    def _check_frozen(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Refuse steps that change tensors sent only once; other workers would miss the change."""
        if changed := sorted(after.keys() & repeating.changed(before, after)):
            accepted = (
                f"a step changes {changed[0]}, which requires no gradient, so Downpour "
                "sends it only once: let it require one, or make it a buffer"
            )
            raise self._loaded.mistake("model", accepted)

    def _check_form(self, network: nn.Module) -> None:
        """Refuse steps after which the network would no longer fit into the files of its model."""
        start, now = self._start, parameters_of(network, copy=False)
        changed = next(
            (n for n in sorted({**start, **now}) if _form(start, n) != _form(now, n)), ""
        )
        if changed:
            accepted = (
                f"a step makes {changed} {_form(now, changed)}, but it was "
                f"{_form(start, changed)}: let it begin so, as after one forward pass in model()"
            )
            raise self._loaded.mistake("model", accepted)

    def _check_parts(self, network: nn.Module, before: Mapping[str, int]) -> None:
        """Refuse helpers for a network whose first step they cannot share."""
        if self._spec.inside.processes == 1:
            return
        # Buffers that change follow from all examples, in their order.
        after = repeating.buffer_versions(network)
        why = [
            f"a step changes {name}, as batch normalization does, but processes that share a "
            "batch cannot"
            for name in repeating.changed(before, after)
        ] + [
            f"the gradients of {name} are sparse, and processes share dense ones"
            for name, value in network.named_parameters()
            if value.grad is not None and value.grad.is_sparse
        ]
        if why:
            accepted = f"must be 1: {why[0]}; use accumulate instead"
            raise errors.SpecError("inside.processes", self._spec.inside.processes, accepted)

    def _straight_on(self, network: nn.Module) -> Iterator[_Look]:
        yield "before the first step", _ELSEWHERE, repeating.begun(network)
        versions = repeating.buffer_versions(network)
        training = self._one_step(self._first(network))
        self._check_form(network)
        self._check_parts(network, versions)
        yield "after one step", _ELSEWHERE, repeating.state_of(training)
        self._timed_step(training, network)
        self._check_form(network)
        yield "once it was handed over", _BEFORE, repeating.state_of(training)
        del training
        yield "in the next task", _BEFORE, self._next_task(network)

    def cut(self) -> None:
        """Refuse a network that the spec's arrangement cannot cut."""
        arrangement = step.cutting(self._spec)
        if arrangement is not None:
            few = self._shard[: self._spec.batch_size]
            arrangement.check(self._loaded, step.batch_parts(few, self._spec.parts)[0])

    def evaluate(self) -> None:
        """Evaluate a user's task on the first and the last batch of the test examples."""
        if self._spec.task is None or self._network is None:
            return
        size, count = self._spec.evaluate_batch or self._spec.batch_size, self._loaded.count("test")
        last = count - (count % size or size)
        chosen = np.unique(np.r_[0 : min(size, count), last:count])
        before = repeating.begun(self._network)
        found = evaluation.evaluate_on(self._network, self._loaded, chosen)
        if not math.isfinite(found.loss):
            told = "the loss on the test examples is NaN or infinite"
            raise self._loaded.mistake("loss", told)
        if changed := repeating.changed(before, repeating.begun(self._network)):
            method = "metrics" if overrides(self._loaded.task, "metrics") else "loss"
            accepted = (
                "an evaluation must leave the network unchanged, but changes "
                f"{step.in_words(changed)}; metrics() may restore it"
            )
            raise self._loaded.mistake(method, f"{method}(): {accepted}")
        goal = self._spec.goal
        if goal is not None and goal.value(found) is None:
            raise errors.SpecError("keep_best", str(goal), unmeasured(found))

    def compare_parts(self) -> None:
        """Note if a batch in parts takes another step than the whole one."""
        if self._network is None or self.cost is None or self._loaded.has_own_step:
            return
        with suppress(*users_errors()):  # such as of a network that cannot train on so few examples
            few = self._shard[: self._spec.batch_size]
            line = parts_differ(self._loaded, self._network, few)
            self.cost = replace(self.cost, in_parts=line)

    def _timed_step(self, training: loop.ShardTraining, network: nn.Module) -> None:
        """Take a step, the second: the first one also allocates memory and chooses kernels."""
        kept: dict[int, int] = {}

        def keep(value: Tensor) -> Tensor:
            if is_plain(value):
                storage = value.untyped_storage()
                kept[storage.data_ptr()] = storage.nbytes()
            return value

        began = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
            self._one_step(training)
        seconds = time.perf_counter() - began
        for value in network.parameters():
            kept[value.data_ptr()] = value.nbytes * (2 if value.requires_grad else 1)
        state = sum(array.nbytes for array in training.optimizer_state(copy=False).values())
        self.cost = step.StepCost(seconds=seconds, memory_bytes=sum(kept.values()) + state)

    def _cut(self) -> Iterator[dict[str, str]]:
        network = self._loaded.network()
        yield repeating.begun(network)
        training = self._one_step(self._first(network))
        yield repeating.state_of(training)
        # The memory of the network and the optimizer, of which nothing else is left.
        snapshot = training.snapshot(copy=False)
        del network, training
        network = self._loaded.network()
        training = self._first(network)
        training.restore(snapshot)
        yield repeating.state_of(self._one_step(training))
        del training
        yield self._next_task(network)
        self._network = network

    def _first(self, network: nn.Module) -> loop.ShardTraining:
        steps = epoch_order.part_of(self._spec, len(self._shard), 0).steps
        share = min(1.0, _STEPS / max(1, steps))
        task = loop.LocalTask(indices=self._shard, round=0, shard=self._number, share=share)
        return loop.ShardTraining(self._loaded, network, task)

    def _next_task(self, network: nn.Module) -> dict[str, str]:
        """Train another task in a network; returns the state after it."""
        load_parameters(network, self._start)
        # The second epoch, if the spec has one: a task's rate() is promised shares below 1.
        round_ = min(1, self._spec.meetings.epochs_in_all - 1)
        task = loop.LocalTask(indices=self._rest, round=round_, shard=self._number)
        training = loop.ShardTraining(self._loaded, network, task)
        where = f"on a batch of {len(self._rest)}, with which a shard ends"
        try:
            with theirs(self._spec, f"cannot be trained {where}"):
                training.advance(1)
        except errors.NonFinite:
            raise self._infinite(where) from None
        return repeating.state_of(training)

    def _one_step(self, training: loop.ShardTraining) -> loop.ShardTraining:
        """Take the next step of the first task, if it has one; it must stay finite."""
        is_first = training.steps_done == 0
        try:
            with theirs(self._spec, f"cannot be trained in step {training.steps_done + 1}"):
                training.advance(1)
            training.parameters(copy=False)
        except errors.NonFinite as error:
            if is_first and not math.isfinite(training.mean_loss):
                raise self._infinite("on the first batch") from None
            raise errors.SpecError(
                "learning_rate", self._spec.learning_rate, f"too large: {error}"
            ) from None
        return training

    def _infinite(self, where: str) -> errors.SpecError:
        method = "step" if self._loaded.has_own_step else "loss"
        return self._loaded.mistake(method, f"its loss is NaN or infinite {where}")


_TOLERANCE = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}
"""How much gradients may differ by rounding, as a share of their length."""
_EXAMPLES_MAX = 8


def parts_differ(loaded: LoadedTask, network: nn.Module, indices: Indices) -> str:
    """Compare the gradient of a few examples with that of each alone; returns a line.

    It is the same if the loss is a mean over examples, or a sum and a count. It is another if the
    loss is a mean over tokens without padding, if it compares examples with each other, or with
    batch normalization. The few examples are no more than a part, because that much fits into
    memory. The line is empty if the gradients agree.
    """
    spec = loaded.spec
    few = indices[: max(2, min(_EXAMPLES_MAX, -(-len(indices) // spec.parts)))]
    if spec.parts == 1 or len(few) < 2:
        return ""
    with numerics.settings(spec):
        try:
            network.train()
            apart = _difference(loaded, network, few)
            if apart > _TOLERANCE[spec.precision] and _draws(loaded, network, few):
                network.eval()
                apart = _difference(loaded, network, few)
        finally:
            network.zero_grad()
    if apart <= _TOLERANCE[spec.precision]:
        return ""
    field = "accumulate" if spec.accumulate > 1 else "inside.processes"
    return (
        f"{field} = {spec.parts} is not the same step as a whole batch: gradients differ by "
        f"{apart:.2g} of their length; loss() can return (sum, count) if it is no mean of examples"
    )


def _difference(loaded: LoadedTask, network: nn.Module, few: Indices) -> float:
    """Return how far the gradient in parts is from the whole one, as a share of its length."""
    whole = _gradient(loaded, network, few, parts=1)
    try:
        cut = _gradient(loaded, network, few, parts=len(few))
    except users_errors():  # as of batch normalization, which needs two examples
        cut = _gradient(loaded, network, few, parts=2)
    length = whole.norm().item()
    return (whole - cut).norm().item() / length if length else 0.0


def _draws(loaded: LoadedTask, network: nn.Module, few: Indices) -> bool:
    """Whether a gradient follows from the seed, too."""
    one, other = (_gradient(loaded, network, few, parts=1, seed=seed) for seed in (0, 1))
    return not torch.equal(one, other)


def _gradient(
    loaded: LoadedTask, network: nn.Module, few: Indices, *, parts: int, seed: int = 0
) -> Tensor:
    """Return the gradient of a batch that is trained in `parts`, as one vector."""
    spec = loaded.spec
    network.zero_grad()
    randomness = numerics.Randomness(
        spec.seed + seed, spec.device, beyond_torch=spec.trains_own_code
    )
    with randomness.active():
        randomness.begin(0)
        losses = [step.add_gradient(loaded, network, part) for part in step.batch_parts(few, parts)]
    step.settled(losses, network)
    gradients = (value.grad for value in network.parameters() if value.grad is not None)
    return torch.cat([one.to_dense().flatten().double().cpu() for one in gradients])
