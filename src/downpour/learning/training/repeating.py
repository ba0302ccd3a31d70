"""Steps that every process of an experiment must train to the same bytes.

The manager decides their checksums at submission. Another process repeats them and compares. Its
process, its environment and its unseeded generators are other ones anyway. It also changes three
circumstances. First, it trains another task on the same examples, so all that is kept at first use
differs. Second, it trains the steps once under another clock. Third, it trains them once more with
the counters of the user's modules further on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import xxhash

from downpour.core.spec import Spec
from downpour.learning.blame import describe_error, users_errors
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.another_clock import another_clock
from downpour.learning.training.fingerprints import state_of, sums_of
from downpour.learning.training.loop import LocalTask, ShardTraining
from downpour.learning.training.parameters import parameters_of
from downpour.learning.training.step_cost import in_words

log = logging.getLogger(__name__)

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
        return _looks(loaded)
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
            ahead = _looks(loaded)
        if asked:
            found.append(("", _looks(loaded)))
            found.append((f"under another clock ({asked[0]})", ahead))
        else:
            found.append(("", ahead))
        if moved:
            with _standing_at(loaded, modules, moved):
                names = ", ".join(sorted({name for _, name in moved})[:3])
                found.append((f"once {names} has been counted further", _looks(loaded)))
    except users_errors() as error:
        log.warning("could not repeat all steps of the trial: %s", describe_error(error))
    return found


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


def _looks(loaded: LoadedTask) -> Looks:
    return _trained(loaded, shard=0)


def _trained(loaded: LoadedTask, shard: int) -> Looks:
    network = loaded.drawn()
    looks = [sums_of(parameters_of(network), "model")]
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


def _numbers(
    loaded: LoadedTask, modules: Sequence[ModuleType]
) -> dict[tuple[int, str], int | float]:
    """Return the numbers of all owners, by owner and name."""
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
    """Return a context in which numbers of owners have these values."""
    owners = {id(owner): owner for owner in _owners(loaded, modules)}
    before = _numbers(loaded, modules)
    try:
        for (owner, name), value in numbers.items():
            setattr(owners[owner], name, value)
        yield
    finally:
        for owner, name in numbers:
            setattr(owners[owner], name, before[owner, name])
