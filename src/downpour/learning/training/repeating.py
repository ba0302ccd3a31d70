"""Steps that every process of an experiment must train to the same bytes.

The manager decides their checksums at submission. Another process repeats them and compares. Its
process, its environment and its unseeded generators are other ones anyway. It also repeats them
under another clock, with the counters of the user's modules further on, and after another task on
the same examples. So all that is kept at first use differs.
"""

import datetime as dt
import logging
import reprlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn

from downpour.core.spec import Spec
from downpour.learning.accelerators import is_plain
from downpour.learning.blame import describe_error, place_of, users_errors
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import array_of, parameters_of
from downpour.learning.training.step import in_words

log = logging.getLogger(__name__)

_AHEAD = dt.timedelta(days=401, hours=5, minutes=7, seconds=11)
"""Every unit of a date differs, and an odd number of days, hours, minutes and seconds has passed.
It is ahead, because code that waits for a moment would wait for a year if the clock went back."""

_SECONDS = ("time", "monotonic", "perf_counter")
_DATES = ("localtime", "gmtime", "ctime", "strftime")


@contextmanager
def another_clock(modules: Sequence[ModuleType]) -> Iterator[list[str]]:
    """Yield the places that ask for the time, while the code of these modules meets another one.

    Only calls from the user's own files get the other time. Torch, other libraries, and our own
    threads get the real one. Dates change in these modules alone, because a library that is
    imported meanwhile would keep the classes that it finds. So an `import datetime` inside a
    function finds the real dates.
    """
    clock = _Clock({str(module.__file__) for module in modules})
    homes = (time, *modules)
    kept = [(home, name, value) for home in homes for name, value in vars(home).items()]
    replaced = clock.replaced()
    for home, name, value in kept:
        if id(value) in replaced:
            setattr(home, name, replaced[id(value)])
    try:
        yield clock.asked
    finally:
        clock.is_ahead = False
        for home, name, value in kept:
            if id(value) in replaced:
                setattr(home, name, value)


class _Clock:
    def __init__(self, files: set[str]) -> None:
        self._files = files
        self.asked: list[str] = []
        self.is_ahead = True

    def replaced(self) -> dict[int, Any]:
        """Return what the user's code gets, by the identity of the original."""
        by = _AHEAD.total_seconds()
        shifts = dict.fromkeys(_SECONDS, by) | {f"{n}_ns": int(by) * 10**9 for n in _SECONDS}
        found: dict[int, Any] = {}
        for real in (getattr(time, name) for name in (*shifts, *_DATES)):
            shift = shifts.get(real.__name__)
            found[id(real)] = self._dated(real) if shift is None else self._ahead(real, shift)
        dates = ModuleType(dt.__name__, dt.__doc__)
        vars(dates).update(vars(dt))
        for real in (dt.datetime, dt.date):
            found[id(real)] = self._dates(real)
            setattr(dates, real.__name__, found[id(real)])
        return {**found, id(dt): dates}

    def _is_theirs(self) -> bool:
        """Whether the user's code called our caller; notes where. No longer after the context."""
        frame = sys._getframe(2)  # noqa: SLF001
        code = frame.f_code
        if not self.is_ahead or code.co_filename not in self._files:
            return False
        self.asked.append(place_of(code.co_filename, frame.f_lineno, code.co_name))
        return True

    def _ahead(self, real: Callable[..., Any], by: float) -> Callable[..., Any]:
        def told(*given: Any) -> Any:
            return real(*given) + (by if self._is_theirs() else 0)

        return told

    def _dated(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Replace a function that takes the current time if its caller gives none."""
        now, convert = time.time, time.localtime
        without_time = int(real is time.strftime)

        def told(*given: Any) -> Any:
            if len(given) > without_time or not self._is_theirs():
                return real(*given)
            later = now() + _AHEAD.total_seconds()
            return real(*given, convert(later) if without_time else later)

        return told

    def _dates(self, real: Any) -> type:
        is_theirs = self._is_theirs

        class Kind(type(real)):  # type: ignore[misc]
            def __instancecheck__(cls, value: object) -> bool:
                return isinstance(value, real)

        class Ahead(real, metaclass=Kind):  # type: ignore[misc]
            @classmethod
            def today(cls) -> Any:
                return real.today() + (_AHEAD if is_theirs() else dt.timedelta())

            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return real.now(tz) + (_AHEAD if is_theirs() else dt.timedelta())

            @classmethod
            def utcnow(cls) -> Any:
                return real.utcnow() + (_AHEAD if is_theirs() else dt.timedelta())

        Ahead.__name__ = Ahead.__qualname__ = real.__name__
        return Ahead


def state_of(training: ShardTraining) -> dict[str, str]:
    """Return what a training would go on from."""
    return {name: _sum(array) for name, array in training.snapshot(copy=False).items()}


def begun(network: nn.Module) -> dict[str, str]:
    """Return the part of `state_of` that a network has before its training."""
    arrays = parameters_of(network, copy=False)
    return {f"model/{name}": _sum(array) for name, array in arrays.items()}


def _sum(array: NDArray[Any]) -> str:
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(array).data)


def buffer_versions(network: nn.Module) -> dict[str, int]:
    """Return how often each buffer was written, by name."""
    buffers = {name: one for name, one in network.named_buffers() if not one.is_inference()}
    return {name: value._version for name, value in buffers.items()}  # noqa: SLF001


def frozen_sums(network: nn.Module) -> dict[str, str]:
    """Return checksums of the parameters that require no gradient."""
    parameters = network.named_parameters()
    return {n: tensor_sum(p) for n, p in parameters if not p.requires_grad and is_plain(p)}


def aside(network: nn.Module) -> dict[str, str]:
    """Return the state of a network's modules that is in no file, as text by name.

    It only serves to name a cause. So it leaves out what it cannot see, such as a sparse tensor.
    """
    state = {}
    for path, module in network.named_modules():
        hidden = {name: module._buffers[name] for name in module._non_persistent_buffers_set}  # noqa: SLF001
        for name, value in {**vars(module), **hidden}.items():
            if isinstance(value, Tensor) and is_plain(value):
                state[f"{path}.{name}".lstrip(".")] = tensor_sum(value)
            elif isinstance(value, list | tuple):
                state[f"{path}.{name}".lstrip(".")] = f"{len(value)}: {reprlib.repr(value)}"
            elif isinstance(value, bool | int | float | str) and name != "training":
                state[f"{path}.{name}".lstrip(".")] = repr(value)[:1000]
    return state


def tensor_sum(value: Tensor) -> str:
    """Return a sum of a plain tensor's bytes, also of a type that numpy lacks."""
    return _sum(array_of(value.detach().reshape(-1).view(torch.uint8), copy=False))


Looks = list[dict[str, str]]
"""The state as checksums by name: as built, and after each step."""

Circumstances = list[tuple[str, Looks]]
"""The looks in a process, each with its circumstance; the first has none but the process."""

RULE = (
    "it must follow from the spec, the examples and the global generators of torch, Python and "
    "numpy alone"
)

_STEPS = 2
_MOMENTS = ("as built", "after one step", "after two steps")
_ANOTHER_SHARD = 1_000_003
_FURTHER = 1_000
"""How many times as far a number goes that steps change. A loop that counts to it still ends."""


def as_tried(spec: Spec) -> Spec:
    """Return a spec of one meeting: an epoch has the same batches, however many tasks it makes."""
    return spec if spec.meet == 1 else spec.replace(meet=1, local_steps=None)


def decided(loaded: LoadedTask) -> Looks | None:
    """Train the steps; None if they cannot be trained here.

    They train the network as drawn on the first examples. So a process needs only the spec and the
    data.
    """
    try:
        return _trained(loaded)
    except users_errors() as error:
        log.warning("could not train the steps that processes compare: %s", describe_error(error))
        return None


def repeated(loaded: LoadedTask) -> Circumstances:
    """Train the steps in this process under other circumstances; as far as they can be trained."""
    found: Circumstances = []
    modules = _modules_of(loaded.spec)
    try:
        # All that is computed at first use is computed now, for another task.
        before = _numbers(loaded, modules)
        _trained(loaded, _ANOTHER_SHARD)
        moved = {
            key: value + (value - before.get(key, 0)) * _FURTHER
            for key, value in _numbers(loaded, modules).items()
            if value != before.get(key, 0)
        }
        with another_clock(modules) as asked:
            ahead = _trained(loaded)
        if asked:
            found.append(("", _trained(loaded)))
            found.append((f"under another clock ({asked[0]})", ahead))
        else:
            found.append(("", ahead))
        if moved:
            with _standing_at(loaded, modules, moved):
                names = ", ".join(sorted({name for _, name in moved})[:3])
                found.append((f"once {names} has been counted further", _trained(loaded)))
    except users_errors() as error:
        log.warning("could not repeat all steps of the trial: %s", describe_error(error))
    return found


def changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the names whose values are not the same after as before, or are gone."""
    return [name for name, value in before.items() if after.get(name) != value]


def difference(known: Looks, found: Circumstances) -> str:
    """Say what differs, when and under which circumstance; nothing if all agree."""
    for circumstance, looks in found:
        for moment, one, other in zip(_MOMENTS, known, looks, strict=False):
            if one != other:
                odd = [n for n in {**one, **other} if one.get(n) != other.get(n)]
                return " ".join(filter(None, (in_words(odd), moment, circumstance)))
    return ""


def in_short(looks: Looks) -> tuple[str, ...]:
    """Return a checksum of each moment."""
    return tuple(xxhash.xxh3_128_hexdigest(repr(sorted(look.items())).encode()) for look in looks)


def from_short(checksums: Sequence[str]) -> Looks:
    """Return what can be compared with other checksums of the moments."""
    return [{"its state": checksum} for checksum in checksums]


def _trained(loaded: LoadedTask, shard: int = 0) -> Looks:
    network = loaded.drawn()
    looks = [begun(network)]
    few = min(_STEPS * loaded.spec.batch_size, loaded.count("train"))
    task = LocalTask(indices=np.arange(few), round=0, shard=shard)
    training = ShardTraining(loaded, network, task)
    for _ in range(min(_STEPS, training.steps_total)):
        training.advance(1)
        looks.append(state_of(training))
    return looks


def _modules_of(spec: Spec) -> list[ModuleType]:
    """Return the modules of the user's project that this process has imported."""
    files = (path.removesuffix(".py").removesuffix("/__init__") for path in spec.code)
    names = {spec.trained_code[1].partition(":")[0], *(file.replace("/", ".") for file in files)}
    found = (sys.modules.get(name) for name in sorted(names))
    return [module for module in found if module is not None]


def _owners(loaded: LoadedTask, modules: Sequence[ModuleType]) -> Iterator[Any]:
    """Yield what may count steps beside the network: modules, their classes, task and examples."""
    for module in modules:
        yield module
        values = list(vars(module).values())
        yield from (v for v in values if isinstance(v, type) and v.__module__ == module.__name__)
    yield loaded.task
    yield loaded.examples("train")


def _numbers(loaded: LoadedTask, modules: Sequence[ModuleType]) -> dict[tuple[int, str], float]:
    return {
        (id(owner), name): value
        for owner in _owners(loaded, modules)
        for name, value in getattr(owner, "__dict__", {}).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


@contextmanager
def _standing_at(
    loaded: LoadedTask, modules: Sequence[ModuleType], numbers: Mapping[tuple[int, str], float]
) -> Iterator[None]:
    owners = {id(owner): owner for owner in _owners(loaded, modules)}
    before = _numbers(loaded, modules)
    try:
        for (owner, name), value in numbers.items():
            setattr(owners[owner], name, value)
        yield
    finally:
        for owner, name in numbers:
            setattr(owners[owner], name, before[owner, name])
