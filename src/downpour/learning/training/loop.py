"""Training on one shard in one round, as a value that advances.

It can stop after any step, and gives its whole state (parameters, buffers, optimizer, position,
loss) as arrays, from which another process of the same numeric class continues. Everything else is
a function of the position. It knows nothing of files, messages or time. Discard the value after an
exception.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from downpour.base.errors import FileCorrupt, NonFinite, OutOfMemory
from downpour.base.names import CPU
from downpour.learning import numerics
from downpour.learning.accelerators import lacks_kernel
from downpour.learning.tasks import Position, ReadsAhead
from downpour.learning.tasks.batches import Indices
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training import epoch_order, parameters
from downpour.learning.training import step as single_step
from downpour.learning.training.loaders import BatchRequest, Loaders
from downpour.learning.training.optimizers import Optimizers
from downpour.learning.training.parameters import Arrays

log = logging.getLogger(__name__)

_LOOK_STEPS = 16
"""How many steps an accelerator computes between two looks at the loss, while this process prepares
the next ones."""

_POINTS_MAX, _OF_ROUND_MAX = 32, 256
"""The points of a task's curve, and of those of all shards, so that a long record stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalTask:
    """What to train on: a shard's indices of training examples [n], in one round.

    The round counts from the beginning of the whole training; it trains its part of the shard, and
    of that the first `share` of the steps. Only equal indices have equal `checksum`s.
    """

    indices: NDArray[np.integer[Any]]
    round: int
    shard: int
    share: float = 1.0
    checksum: str = ""


class ShardTraining:
    """One task's training; `model` holds the parameters it starts from, and is trained in place.

    A model serves one task after the other (`load_parameters` sets it to the next one's start),
    but only one at a time. One that `spills` keeps in the host's memory what its steps need later
    (`kept_on_host`). With `orders`, the tasks of an epoch permute a shard once.
    """

    def __init__(
        self,
        loaded: LoadedTask,
        model: nn.Module,
        task: LocalTask,
        optimizer_state: Mapping[str, NDArray[Any]] | None = None,
        helpers: single_step.StepHelp | None = None,
        loaders: Loaders | None = None,
        *,
        spills: bool = False,
        orders: epoch_order.KeptArrays | None = None,
    ) -> None:
        spec = loaded.spec
        self._loaded = loaded
        self._spec = spec
        self._task = task
        self._epoch = task.round // spec.meetings.each
        self._size = len(task.indices)
        self._part = epoch_order.part_of(spec, self._size, task.round, task.share)
        self._orders = orders
        self._order = self._ordered()
        numerics.place(model, spec, images=loaded.images)
        for parameter in model.parameters():
            parameter.grad = None  # the last task's, so that the new optimizer has their memory
        self._model = model
        self._modules = tuple(model.modules())
        self._modes: list[bool] = []
        self._constants = parameters.infinite_constants(model)
        self._optimizers = Optimizers(loaded, model)
        if optimizer_state:
            self._optimizers.load(optimizer_state)
        self._helpers = helpers
        self._spills = spills
        arrangement = single_step.cutting(spec)
        self._alone = None if arrangement is None else arrangement.alone(loaded, model)
        self._randomness = numerics.Randomness(
            numerics.task_seed(spec.seed, task.round, task.shard),
            spec.device,
            beyond_torch=spec.trains_own_code,
        )
        # On the device, because to read each loss would wait for every step to be computed.
        wide = numerics.sum_type(spec.device)
        # The sum of losses, the sum of the task's counts, and the learning rate at the last mark.
        self._sums = torch.zeros(3, dtype=wide, device=spec.device)
        self._loss_sum = self._sums[0]
        self.steps_done = 0
        """Optimizer steps so far."""
        self.steps_total = self._part.steps
        """Optimizer steps of the whole task: its part's batches, or `local_steps` if fewer."""
        points = min(_POINTS_MAX, self.steps_total, max(1, _OF_ROUND_MAX // (spec.shards or 1)))
        self._marks = self._sums.repeat(points, 1)
        self._ahead: ReadsAhead | None = None
        self._ahead_from = 0
        self._loaders = loaders
        if loaders is not None:
            loaders.begin(self._requests)

    def _ordered(self) -> Indices:
        """Return the shard's order in this epoch, as far as this task or a later one needs it."""
        task, each = self._task, self._spec.meetings.each
        # No more than is trained, because a shard may have a billion examples.
        if self._orders is None or each == 1:
            return self._made_order(self._place_after(self._part.steps))
        last = epoch_order.part_of(self._spec, self._size, each - 1)
        stop = epoch_order.samples_in(last.first + last.steps, self._size, self._spec)
        key = self._epoch, task.shard, task.checksum
        return self._orders.get(key, stop, partial(self._made_order, stop))

    def read_ahead(self) -> None:
        """Let the examples fetch what the rest of this task will read, if they can."""
        examples = self._loaded.examples("train")
        if isinstance(examples, ReadsAhead):
            self._ahead = examples
            self._ahead_from = self._place_after(self.steps_done)
            stop = self._place_after(self._part.steps)
            examples.expect(self._order[self._ahead_from : stop], self._later())

    def _later(self) -> Indices:
        """Return an example of each block that the shard needs after this task, in their order.

        They are those of its epoch's rest and of the epoch after that.
        """
        ends, window = self._loaded.data.block_ends, self._loaded.data.window_blocks
        task, meetings = self._task, self._spec.meetings
        after, number = divmod(task.round + 1, meetings.each)
        place = epoch_order.samples_in(
            epoch_order.part_of(self._spec, self._size, number).first, self._size, self._spec
        )
        epochs = [(after, place), (after + 1, 0)][: meetings.epochs_in_all - after]
        if ends is None or not epochs:
            return np.empty(0, np.int64)
        indices = np.asarray(task.indices, np.int64)
        return np.concatenate(
            [
                epoch_order.blocks_in_order(
                    indices, ends, window, first, self._spec.seed, epoch, task.shard
                )
                for epoch, first in epochs
            ]
        )

    def _made_order(self, stop: int) -> Indices:
        count, task = self._loaded.count("train"), self._task
        indices = np.asarray(task.indices, dtype=np.int64)
        if len(indices) and not 0 <= indices.min() <= indices.max() < count:
            raise FileCorrupt("indices", f"must be from 0 to {count - 1}")
        data = self._loaded.data
        about = self._epoch, task.shard, stop, data.block_ends, data.window_blocks
        return epoch_order.batch_order(self._spec, indices, data.labels, *about)

    @property
    def samples(self) -> int:
        """Examples trained on so far."""
        return self._place_after(self.steps_done) - self._place_after(0)

    @property
    def mean_loss(self) -> float:
        """The mean loss so far, over examples or what else the task counts; 0.0 before any."""
        total, counted, _ = self._sums.tolist()
        count = counted or self.samples
        return total / count if count else 0.0

    @property
    def curve(self) -> tuple[tuple[float, ...], ...]:
        """The mean losses of stretches of the whole task's steps, and the learning rates there."""
        points, steps = len(self._marks), self.steps_total
        ends = [self._place_after(-(-steps * each // points)) for each in range(1, points + 1)]
        marks = np.reshape(self._marks.tolist(), (points, 3))
        totals, counted, _ = np.diff(marks, axis=0, prepend=0.0).T
        counts = np.where(counted, counted, np.diff(ends, prepend=self._place_after(0)))
        columns = totals / counts, marks[:, 2]
        return tuple(tuple(float(f"{number:.6g}") for number in each) for each in columns)

    def advance(self, max_steps: int, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Train at most `max_steps` further steps, as long as `goes_on` says so after each."""
        stop = min(self.steps_done + max_steps, self.steps_total)
        try:
            if not self._gets_to(stop, goes_on):
                self._gets_to(stop, goes_on)
        except OutOfMemory as error:
            raise OutOfMemory(f"{error}; {single_step.advice(self._loaded)}") from error

    def _gets_to(self, stop: int, goes_on: Callable[[], bool]) -> bool:
        """Train until a step; false if an operation could not repeat its bits, and now need not."""
        keeping = single_step.kept_on_host(self._model) if self._spills else nullcontext()
        settings = numerics.settings(self._spec, strict=self._loaded.repeats)
        try:
            with settings, self._randomness.active(), keeping:
                while self.steps_done < stop:
                    self._set_to_train()
                    self._step()
                    if self._is_looked_at:
                        self._check_loss()
                    if not goes_on():
                        break
        except RuntimeError as error:
            if not (self._loaded.repeats and lacks_kernel(error)):
                raise
            self._loaded.repeats = False
            name = self._spec.trained_code[1]
            operation = str(error).partition(", but you set")[0]  # without torch's advice
            log.warning("%s may give different bytes each time: %s", name, operation)
            return False
        return True

    def _set_to_train(self) -> None:
        """Set the network to training, unless it still is as that left it.

        To set 166 modules took 3.6 ms on a slow core, and to look at them a hundredth of that.
        """
        if [module.training for module in self._modules] != self._modes:
            self._model.train()
            self._modes = [module.training for module in self._modules]

    @property
    def _is_looked_at(self) -> bool:
        """Whether to read the loss now: on an accelerator that waits until all is computed."""
        done = self.steps_done
        return self._spec.device == CPU or done in {1, self.steps_total} or done % _LOOK_STEPS == 0

    def _check_loss(self) -> None:
        if not math.isfinite(self._loss_sum.item()):
            raise NonFinite(f"the loss became NaN or infinite {self._where()}")

    def _step(self) -> None:
        indices = self._batch(self.steps_done)
        step = single_step.TrainingStep(
            loaded=self._loaded,
            model=self._model,
            indices=indices,
            number=self.steps_done,
            randomness=self._randomness,
            loaders=self._loaders,
            scaled=self._optimizers.scaled,
        )
        if self._loaders is not None:
            self._loaders.reach(self.steps_done)
        if self._ahead is not None:
            self._ahead.reach(self._place_after(self.steps_done) - self._ahead_from)
        step.seed()
        position = Position(
            epoch=self._epoch,
            epochs=self._spec.meetings.epochs_in_all,
            step=self._part.before + self.steps_done,
            steps=self._part.of_epoch,
        )
        self._optimizers.reach(self._model, position)
        loss = single_step.train_step(step, self._optimizers, self._helpers, self._alone)
        if loss.dim():  # a sum and a count
            self._sums[:2].add_(loss)
        else:
            self._loss_sum.add_(loss, alpha=len(indices))
        self.steps_done += 1
        self._mark()

    def _mark(self) -> None:
        """Keep the sums as they are now, on the device, if a stretch of steps has ended."""
        done, points = self.steps_done, len(self._marks)
        mark = done * points // self.steps_total
        if mark > (done - 1) * points // self.steps_total:
            first = next(iter(self._optimizers.by_name.values()))
            self._sums[2] = first.param_groups[0]["lr"]
            self._marks[mark - 1] = self._sums

    def _batch(self, step: int) -> Indices:
        start, stop = (self._place_after(step + more) for more in (0, 1))
        return self._order[start:stop]

    def _requests(self, step: int) -> Iterator[BatchRequest]:
        """Yield what loaders may prepare, from a step on."""
        for number in range(step, self.steps_total):
            for part in single_step.batch_parts(self._batch(number), self._spec.parts):
                yield BatchRequest(self._randomness.seed, number, part.number, part.indices)

    def _place_after(self, steps: int) -> int:
        """Return where in the epoch's order the examples after these steps begin."""
        return epoch_order.samples_in(self._part.first + steps, self._size, self._spec)

    def parameters(self, *, copy: bool = True) -> Arrays:
        """Return the parameters and buffers as they are now.

        Without `copy` they hold until the next step only, which suffices to write them to a file.
        """
        arrays = parameters.parameters_of(self._model, copy=copy)
        moved = parameters.moved_constant(arrays, self._constants)
        if moved is not None:
            accepted = (
                f"{moved} holds NaN or infinity that becomes a number {self._where()}; no average "
                "has both: let it begin with numbers, as after one forward pass in model()"
            )
            raise self._loaded.mistake("model", accepted)
        try:
            parameters.check_finite(arrays, self._constants)
        except NonFinite as error:
            raise NonFinite(f"{error} {self._where()}") from None
        return arrays

    def optimizer_state(self, *, copy: bool = True) -> Arrays:
        """Return the optimizer's state, see `parameters`; empty where it has none."""
        return self._optimizers.arrays(copy=copy)

    def snapshot(self, *, copy: bool = True) -> Arrays:
        """Return the whole state as arrays with distinct names, for `restore`; see `parameters`."""
        self._check_loss()
        parts: dict[str, Mapping[str, NDArray[Any]]] = {
            "model": parameters.parameters_of(self._model, copy=copy),
            "optimizer": self.optimizer_state(copy=copy),
            "progress": {
                "task": self._identity(),
                "steps_done": np.array([self.steps_done], dtype=np.int64),
                "loss_sum": np.array(self._sums.tolist(), np.float64),
                "marks": np.array(self._marks.tolist(), np.float64),
            },
        }
        return {f"{part}/{name}": array for part in parts for name, array in parts[part].items()}

    def restore(self, arrays: Arrays) -> None:
        """Continue from a snapshot of the same task, and empty it, to free its memory early."""
        progress = _taken("progress", arrays)
        if progress.keys() != {"task", "steps_done", "loss_sum", "marks"}:
            raise FileCorrupt("snapshot", "does not state its progress")
        if not np.array_equal(progress["task"], self._identity()):
            raise FileCorrupt("snapshot", "belongs to another task")
        parameters.load_parameters(self._model, _taken("model", arrays))
        self._optimizers.load(_taken("optimizer", arrays))
        self.steps_done = int(progress["steps_done"][0])
        self._sums.copy_(torch.tensor(progress["loss_sum"]))
        self._marks.copy_(torch.tensor(progress["marks"]))

    def _where(self) -> str:
        rate = f"learning_rate = {self._spec.learning_rate:g}"
        return f"by step {self.steps_done} of {self.steps_total}, with {rate}"

    def _identity(self) -> NDArray[np.int64]:
        task = self._task
        return np.array([task.round, task.shard, self._size], dtype=np.int64)


def _taken(part: str, arrays: Arrays) -> Arrays:
    names = [name for name in arrays if name.startswith(f"{part}/")]
    return {name.removeprefix(f"{part}/"): arrays.pop(name) for name in names}
