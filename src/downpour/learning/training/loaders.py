"""Loader processes: they prepare a task's next batches, to the same bytes as without them.

A worker knows all batches of its task, and the position seeds the draws for each. So any number of
processes can prepare any batch. The worker itself reads a batch that a loader cannot read or send,
so an error appears where it would without loaders. The processes, their queues and the pinned
memory are those of `torch.utils.data.DataLoader`.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import cache, partial
from math import ceil
from multiprocessing import forkserver
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from threading import Thread
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, Dataset
from torch.utils.data._utils import worker

from downpour.base.names import CPU
from downpour.base.options import LOADERS_MAX
from downpour.core.spec import Spec
from downpour.host import machine
from downpour.learning import blame, numerics, user_code
from downpour.learning.accelerators import is_plain, repeatable
from downpour.learning.shipping import folder_in_use, use
from downpour.learning.tasks import Batch
from downpour.learning.tasks.agreement import Reading, open_data
from downpour.learning.tasks.batches import Indices, batch_of, on_device
from downpour.learning.tasks.loaded import LoadedTask, load

log = logging.getLogger(__name__)

_AHEAD = 2
"""How many batches each loader prepares ahead; torch's own default."""
_SILENT_SECONDS = 120.0
"""How long to wait for a batch before the worker reads it on its own: a loader was stopped."""
_LOOK_SECONDS = 2.0
"""How often to look whether all loaders live. Another process forks them, so no signal tells us."""
_FAILURES_MAX = 3
_MEASURED_SECONDS = 1.0
_MEASURED_STEPS = 4
_CHEAP_SHARE = 0.05
_CHEAP_SECONDS = 0.005
"""Reading that takes less of a step's time, or of any time, is not worth a process: to hand over a
batch takes a millisecond."""
_SIGNALS = (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def load_again(toml: str, datasets: Path, data_key: str, code: Path | None = None) -> LoadedTask:
    """Make a task in another process from its spec, its data and the submitted code alone."""
    spec = Spec.from_toml(toml)
    if code is not None:
        use(code)
    for field, name in spec.factories.items():
        user_code.check_code(field, name, spec.code)
    return load(spec, open_data(spec, datasets, data_key))


class BatchRequest(NamedTuple):
    """A batch to prepare: the task's seed, the step, the part of its batch, and its indices [b].

    They are those of training `examples`, or of the test examples.
    """

    seed: int
    step: int
    part: int
    indices: Indices
    examples: str = "train"


class _Prepared(NamedTuple):
    batch: Batch
    drawn: numerics.States | None  # None: nothing was drawn
    is_shared: bool = True
    digests: tuple[tuple[str, str], ...] = ()  # of the blocks that were read for it

    def sendable(self) -> _Prepared:
        """Move its tensors into shared memory, or else let them travel as copies.

        Torch would move them when it sends them, and drop a batch for which there is no room: a
        container has 64 MiB of shared memory by default.
        """
        try:
            for leaf in tree_leaves(self.batch):
                if _is_plain(leaf):
                    leaf.share_memory_()
        except RuntimeError:
            batch = tree_map(lambda leaf: _Copy(leaf) if _is_plain(leaf) else leaf, self.batch)
            return self._replace(batch=batch, is_shared=False)
        return self


def _is_plain(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and is_plain(leaf)


class _Copy:
    """A tensor that travels by value, with its strides; at its destination, it is a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __reduce__(self) -> Any:
        value = self._tensor
        content = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).numpy().tobytes()
        return _restored, (
            content,
            value.dtype,
            value.storage_offset(),
            value.shape,
            value.stride(),
        )


def _restored(content: bytes, dtype: torch.dtype, *place: Any) -> Tensor:
    memory = torch.empty(len(content), dtype=torch.uint8)  # aligned as torch's kernels expect
    memory.numpy()[:] = np.frombuffer(content, np.uint8)
    return torch.empty(0, dtype=dtype).set_(memory.untyped_storage(), *place)


class _Batches(Dataset[_Prepared | str | None]):
    """The batches of requests, in a loader; or why the worker must read one on its own."""

    def __init__(self, source: Callable[[], LoadedTask]) -> None:
        self._source = source
        self._task = cache(source)
        self._can_be_sent = False
        self._told = 0, -1, 0  # the last request's seed and step, and how many digests went with it

    def __reduce__(self) -> Any:
        return _Batches, (self._source,)

    def __getitem__(self, request: BatchRequest | str) -> _Prepared | str | None:
        try:
            if isinstance(request, str):  # to get ready
                self._task().examples(request)
                return None
            prepared = _prepared(self._task(), request).sendable()
            digests, (seed, step, told) = self._task().block_digests, self._told
            # The worker may have dropped the last task's batches, and the digests with them.
            first = told if seed == request.seed and step <= request.step else 0
            if first < len(digests):  # most batches read no new block, of 100,000 maybe
                prepared = prepared._replace(digests=tuple(digests.items())[first:])
            if not self._can_be_sent:  # torch's queue would drop it, and leave the worker waiting
                ForkingPickler.dumps(prepared)
                self._can_be_sent = True
        except blame.users_errors() as error:
            return blame.describe_error(error)
        self._told = request.seed, request.step, len(digests)
        return prepared


def _prepared(loaded: LoadedTask, request: BatchRequest) -> _Prepared:
    spec = loaded.spec
    here = spec.replace(device=CPU)
    kernels = repeatable(spec.device, strict=False) if spec.repeatable else nullcontext()
    # Autocast of an accelerator changes nothing that is computed here.
    precision = numerics.precision(here) if spec.device == CPU else nullcontext()
    randomness = numerics.Randomness(request.seed, CPU, beyond_torch=True)
    with numerics.settings(here), kernels, randomness.active(), precision:
        randomness.begin(request.step, request.part)
        before = numerics.States.now()
        examples = loaded.examples(request.examples)
        batch = batch_of(loaded.task, examples, request.examples, request.indices, CPU)
        after = numerics.States.now()
    return _Prepared(batch, None if after == before else after)


def _begin(_: int) -> None:
    # A terminal's Ctrl-C goes to all processes; the worker decides when its loaders end.
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    # Examples and collations behave as in the worker. Torch's collation would otherwise put each
    # batch into shared memory, and fail where that is full.
    worker._worker_info = None  # noqa: SLF001 - no public name sets it


def _same(prepared: Any) -> Any:
    """Return it as it is; torch's default turns arrays into tensors."""
    return prepared


class _Requests:
    """The requests of the task at hand, for torch's sampler."""

    def __init__(self) -> None:
        self.remaining: Iterator[BatchRequest | str] = iter(())

    def __iter__(self) -> Iterator[BatchRequest | str]:
        return self

    def __next__(self) -> BatchRequest | str:
        return next(self.remaining)


def _awaited(batches: Iterator[_Prepared | str | None]) -> _Prepared | str | None:
    """Return the next batch; raises RuntimeError if a loader has ended, or all are silent."""
    began = perf_counter()
    while True:
        try:
            return next(batches)
        except RuntimeError as error:
            # Torch looks whether loaders live only when it has waited in vain.
            if not str(error).startswith("DataLoader timed out"):
                raise
            if perf_counter() - began >= _SILENT_SECONDS:
                raise RuntimeError(f"no batch came for {_SILENT_SECONDS:.0f} s") from None


class Loaders:
    """The loader processes of one experiment on one worker, or in its manager.

    Training never waits until they have started: it reads its own batches until all are ready.

    This process uses the task `loaded`, and `source` makes it in a loader. `count` are started;
    None: as many as pay off, which the first steps show. They first read of the part `examples`.
    The processes in `pids` are ready.
    """

    def __init__(
        self,
        loaded: LoadedTask,
        source: Callable[[], LoadedTask],
        count: int | None = None,
        examples: str = "train",
    ) -> None:
        self._source = source
        self._examples = examples
        self._loaded = loaded
        self._count = count
        self._cost: _ReadingCost | None = _ReadingCost() if count is None else None
        self._requests = _Requests()
        self._asked: Callable[[int], Iterator[BatchRequest]] = lambda _: iter(())
        self._step = 0
        self._starting: Thread | None = None
        self._loader: DataLoader[Any] | None = None
        self._batches: tuple[Iterator[BatchRequest], Iterator[_Prepared | str | None]] | None = None
        self._failures = 0
        self._is_closed = self._is_short = self._has_told_why = self._is_begun = False
        self.pids: set[int] = set()
        if count:
            self._start(count)

    def begin(self, requests: Callable[[int], Iterator[BatchRequest]]) -> None:
        """Begin a task; `requests` yields those of its batches that follow a number of steps."""
        self._asked, self._is_begun = requests, False

    def reach(self, step: int) -> None:
        """Take note that the step with this number begins."""
        self._step = step
        if self._cost is not None and (wanted := self._cost.wanted()) is not None:
            self._cost = None
            if wanted:
                log.info("starting %d loaders, because reading holds up the steps", wanted)
                self._start(wanted)

    def read(self, indices: Indices, examples: str = "train") -> Batch:
        """Return the batch of some indices [b] on the task's device: a loader's, or read here."""
        prepared = self._taken(indices)
        if prepared is None:
            began = perf_counter()
            batch = self._loaded.batch(examples, indices)
            if self._cost is not None:
                self._cost.reading_seconds += perf_counter() - began
            return batch
        if prepared.drawn is not None:
            prepared.drawn.restore()
        if not prepared.is_shared and not self._is_short:
            self._is_short = True
            log.warning("shared memory is full, so loaders send copies of batches: df /dev/shm")
        return on_device(prepared.batch, self._loaded.spec.device)

    def wait_until_ready(self) -> None:
        """Wait until all loaders have made the task; for tests and measurements."""
        if self._starting is not None:
            self._starting.join()

    def close(self) -> None:
        """End all loaders; a loader that is still starting ends once it has."""
        self._is_closed = True
        self._end()

    def _end(self) -> None:
        self._loader = self._batches = None  # torch ends its processes
        machine.HELPER_PIDS.difference_update(self.pids)
        self.pids = set()

    def _taken(self, indices: Indices) -> _Prepared | None:
        """Return the next batch of the loaders, if there is one and it is the one asked for."""
        loader = self._loader  # a manager may close them during an evaluation
        if loader is None:
            return None
        try:
            if self._batches is None or not self._is_begun:
                self._batches, self._is_begun = self._ahead(loader), True
            requests, batches = self._batches
            request, prepared = next(requests), _awaited(batches)
        except StopIteration:
            return None
        except (RuntimeError, OSError, EOFError) as error:  # a loader ended, or does not answer
            self._fail(str(error), f" (awaited: examples {indices.min()} to {indices.max()})")
            return None
        if isinstance(prepared, str):
            if not self._has_told_why:
                log.warning("a loader cannot give a batch, so this process reads it: %s", prepared)
            self._has_told_why, prepared = True, None
        if prepared is not None:
            self._loaded.note_blocks(prepared.digests)
        if not np.array_equal(request.indices, indices):
            self._is_begun = False
            return None
        # Parts draw in a row, so where a later one begins to draw is known to the worker alone.
        is_known = prepared is None or request.part == 0 or prepared.drawn is None
        return prepared if is_known else None

    def _ahead(
        self, loader: DataLoader[Any]
    ) -> tuple[Iterator[BatchRequest], Iterator[_Prepared | str | None]]:
        if self._batches is not None:
            # A stopped task's batches come first, and torch would wait _LOOK_SECONDS for each.
            self._requests.remaining, (_, stopped) = iter(()), self._batches
            with suppress(StopIteration):
                while True:
                    _awaited(stopped)
        self._requests.remaining = self._asked(self._step)
        return self._asked(self._step), iter(loader)

    def _start(self, count: int) -> None:
        # The process that forks them imports torch as well.
        most = max(0, machine.free_memory() // max(1, machine.own_memory()) - 1)
        if most < count:
            log.warning("memory has room for %d of %d loaders", most, count)
        self._count = min(count, most)
        if self._count:
            self._starting = Thread(target=self._started, args=(self._count,), daemon=True)
            self._starting.start()

    def _started(self, count: int) -> None:
        # Of more processes than cores: a user asked for them.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        loader: DataLoader[Any] = DataLoader(
            _Batches(self._source),
            batch_size=None,
            sampler=self._requests,
            num_workers=count,
            collate_fn=_same,
            pin_memory=self._loaded.spec.device.startswith("cuda"),
            timeout=_LOOK_SECONDS,
            worker_init_fn=_begin,
            multiprocessing_context=_context(),
            generator=torch.Generator(),  # without it torch draws from the training's own
            prefetch_factor=_AHEAD,
            persistent_workers=True,
        )
        before = _children()
        self._requests.remaining = iter([self._examples] * count)
        try:
            server: Any = forkserver._forkserver  # noqa: SLF001 - no public name tells its process
            server.ensure_running()
            machine.let_be_killed_first(server._forkserver_pid)  # noqa: SLF001 - and what it forks
            batches = iter(loader)
            with suppress(StopIteration):
                while True:
                    _awaited(batches)
        except (OSError, RuntimeError, EOFError) as error:
            log.warning("loaders cannot be started: %s", error)
            return
        if not self._is_closed:
            self.pids = _children() - before
            machine.HELPER_PIDS.update(self.pids)
            self._loader = loader

    def _fail(self, reason: str, awaited: str) -> None:
        line = (reason.splitlines()[0] if reason else "no reason is known") + awaited
        self._end()
        self._failures += 1
        if self._failures < _FAILURES_MAX:
            log.warning("new loaders start: %s", line)
            self._start(self._count or 1)
        else:
            log.warning("loaders have ended %d times; the worker reads on its own", self._failures)


class _ReadingCost:
    """How much of the time of its steps a worker spends on reading."""

    def __init__(self) -> None:
        self.reading_seconds = 0.0
        self._steps = -1  # the first one takes longer
        self._began = self._idle = 0.0

    def wanted(self) -> int | None:
        """Return how many loaders would pay off, from 0; None if that is not known yet."""
        now = perf_counter()
        self._steps += 1
        if self._steps <= 1:
            self._began, self._idle, self.reading_seconds = now, _idle_seconds(), 0.0
            return None
        whole = now - self._began
        if self._steps <= _MEASURED_STEPS or whole < _MEASURED_SECONDS:
            return None
        share = self.reading_seconds / whole
        if share < _CHEAP_SHARE or self.reading_seconds < _CHEAP_SECONDS * (self._steps - 1):
            return 0
        needed = ceil(share / max(1 - share, 1 / LOADERS_MAX)) + 1
        idle = round(min((_idle_seconds() - self._idle) / whole, machine.usable_cores() - 1))
        # A worker that mostly reads will leave its own core to them. On two cores, one loader alone
        # would read no faster than the worker did.
        return min(needed, idle and idle + round(share), LOADERS_MAX)


def loaders_for(loaded: LoadedTask, reading: Reading, examples: str = "train") -> Loaders | None:
    """Return the loaders of a user's task; built-in ones gather a batch in microseconds."""
    spec = loaded.spec
    if reading.loaders == 0 or spec.task is None or spec.inside.processes > 1:
        return None
    source = partial(load_again, spec.to_toml(), reading.datasets, reading.key, folder_in_use())
    return Loaders(loaded, source, reading.loaders, examples)


def _idle_seconds() -> float:
    """Return for how long this machine's processors were idle, all together."""
    times = psutil.cpu_times()
    return float(times.idle + getattr(times, "iowait", 0.0))


def _children() -> set[int]:
    return {one.pid for one in multiprocessing.active_children() if one.pid is not None}


@cache
def _context() -> Any:
    """Return how processes are started: forked from one that has imported torch, and no threads."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
