"""The surroundings of every computation on parameters: threads, precision, generators, memory.

All of it is process-wide state of torch, Python or numpy. Each context here sets it and restores
what was there before, so that training, evaluation and a user's code in one process do not affect
each other. Python's and numpy's generators have much state that is slow to copy, so it is never
saved: they are seeded again wherever draws must repeat.

The numeric class of this process is every known fact that decides the bits of results. Torch and
the libraries under it choose kernels by the processor, its vendor and environment variables, and
the kernels differ in the order of their sums. So the class has the instructions that torch reports
to use, not all instructions of the processor.
"""

import os
import platform
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import xxhash
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import nn

from downpour.base.errors import OutOfMemory
from downpour.base.names import CPU, Device
from downpour.base.values import NumericClass
from downpour.core.spec import Spec
from downpour.learning import accelerators
from downpour.learning.accelerators import card_of, in_use, module_of, repeatable
from downpour.learning.blame import is_lack_of_memory

ALONE = RLock()
"""Held while code draws from global generators, because a manager prepares in several threads."""

_LENT = np.random.MT19937(0)


@contextmanager
def lent() -> Iterator[None]:
    """Return a context in which code may seed Python's and numpy's generators."""
    python = random.getstate()
    # Copying the state of numpy's takes five times as long as lending it another generator. If
    # that is lent already, as when a step opens its examples, we can only copy.
    numpy = get_bit_generator()
    state = _LENT.state if numpy is _LENT else None
    set_bit_generator(_LENT)
    try:
        yield
    finally:
        random.setstate(python)
        set_bit_generator(numpy)
        if state is not None:
            _LENT.state = state


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Return a context in which all global generators are seeded, and no other code draws."""
    with ALONE, lent(), torch.random.fork_rng(devices=[]), accelerators.seeded(number):
        # Not `torch.manual_seed`: for each kind of device that was never used it keeps the stack
        # of the call, to seed it later. That takes a hundred times as long and is never freed.
        torch.default_generator.manual_seed(number)
        _seed(number)
        yield


class States(NamedTuple):
    """The states of torch's generator on the CPU, Python's and numpy's; equal if none has drawn."""

    torch: bytes
    python: tuple[Any, ...]
    numpy: tuple[Any, ...]

    @classmethod
    def now(cls) -> Self:
        """Take the present ones."""
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002
        numpy = kind, np.asarray(keys).tobytes(), *rest
        return cls(torch.get_rng_state().numpy().tobytes(), random.getstate(), numpy)

    def restore(self) -> None:
        """Set them."""
        torch.set_rng_state(torch.frombuffer(bytearray(self.torch), dtype=torch.uint8))
        random.setstate(self.python)
        kind, keys, *rest = self.numpy
        np.random.set_state((kind, np.frombuffer(keys, np.uint32), *rest))  # noqa: NPY002


def _seed(number: int) -> None:
    """Seed Python's and numpy's generators from the low 64 bits of a number."""
    number &= (1 << 64) - 1
    random.seed(number)
    # numpy's seed has 32 bits: the high ones.
    np.random.seed(number >> 32)  # noqa: NPY002 - it is the global one that is seeded


_WIDE = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16")
_DECISIVE = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "DNNL_DEFAULT_FPMATH_MODE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_MPS_FAST_MATH",
    "PYTORCH_MPS_PREFER_METAL",
    "PYTORCH_ENABLE_MPS_FALLBACK",
)


def numeric_class(device: str) -> NumericClass:
    """Return the class of this process, for training on a device.

    Which of several equal cards it is decides no bit, so the class has the kind and the card.
    """
    uses = torch.backends.cpu.get_cpu_capability()
    parts = [platform.machine(), *_processor(), f"torch uses {uses}"]
    parts += card_of(device)
    parts += [f"{name}={os.environ[name]}" for name in _DECISIVE if name in os.environ]
    return NumericClass(
        torch=f"{torch.__version__} build {_build()}",
        device=Device.of(device).kind,
        instruction_set=", ".join(parts),
    )


def _build() -> str:
    """Return a short digest of how torch was built: compiler, MKL, oneDNN, CUDA."""
    # Without the instructions in use: they are a separate part, and a variable may change them.
    lines = torch.__config__.show().splitlines()
    lasting = "\n".join(line for line in lines if "CPU capability usage" not in line)
    return xxhash.xxh3_64_hexdigest(lasting.encode())[:8]


def _processor() -> list[str]:
    """Return the processor's vendor and its wide instructions, as Linux lists them."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return [platform.processor()] if platform.processor() else []
    fields: dict[str, str] = {}
    for line in info.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    vendor = fields.get("vendor_id") or fields.get("CPU implementer") or "unknown vendor"
    flags = set((fields.get("flags") or fields.get("Features") or "").split())
    return [vendor, " ".join(name for name in _WIDE if name in flags)]


_STRIDE = 0x9E3779B97F4A7C15
"""Between the seeds of two steps; odd and irregular, so that both halves of a seed differ."""

_PART_STRIDE = 0xD1B54A32D192ED03
"""Between the seeds of two parts of a batch, in the same way."""

_SEED_MAX = (1 << 64) - 1

_RANDOMNESS = 3
"""Tells the generators of a task from others that are seeded alike."""


@contextmanager
def settings(spec: Spec, *, strict: bool = False) -> Iterator[None]:
    """Compute with the spec's threads, repeatably; a lack of memory becomes OutOfMemory.

    Operations of an accelerator that cannot repeat their bits fail if `strict`.

    Other threads of this process wait, because these settings are all threads'.
    """
    # Its benchmark would choose kernels by their times, and another kernel gives other bytes.
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    kernels = repeatable(spec.device, strict=strict) if spec.repeatable else nullcontext()
    with (
        lack_of_memory(),
        ALONE,
        _threads(spec.threads),
        flags,
        kernels,
        in_use(spec.device),
    ):
        yield


@contextmanager
def lack_of_memory() -> Iterator[None]:
    """Return a context in which a lack of memory becomes OutOfMemory, in one line."""
    try:
        yield
    except MemoryError as error:
        raise OutOfMemory(_first_line(error)) from error
    except RuntimeError as error:
        if is_lack_of_memory(error):
            raise OutOfMemory(_first_line(error)) from error
        raise


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    if before != number:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        if before != number:
            torch.set_num_threads(before)


def precision(spec: Spec) -> torch.autocast:
    """Return the context of a forward pass; a new one each step, as it keeps cast weights."""
    return torch.autocast(
        Device.of(spec.device).kind,
        dtype=torch.float16 if spec.precision == "float16" else torch.bfloat16,
        enabled=spec.precision != "float32",
        cache_enabled=False,
    )


def place(model: nn.Module, spec: Spec, *, images: bool) -> None:
    """Move a network to the spec's device and memory layout, where it is not there already."""
    tensors = chain(model.parameters(), model.buffers())
    # Torch refuses to move a module to where it is already if it keeps a tensor on `meta`.
    if spec.device != CPU or any(one.device.type not in {CPU, "meta"} for one in tensors):
        model.to(spec.device)
    if images and spec.images_channels_last:
        for value in model.parameters():
            if value.dim() == 4:
                value.data = value.data.contiguous(memory_format=torch.channels_last)


def sum_type(device: str) -> torch.dtype:
    """Return the widest type in which a device adds up: Apple's has no float64."""
    return torch.float32 if device == "mps" else torch.float64


class Randomness:
    """The random generators of one task, separate from the process's own.

    They are seeded again before each step, so their state is a function of the position and no part
    of a snapshot. That costs about 10 us for torch; Python's and numpy's, which only users' code
    draws from, cost tens. They are this task's only if it draws `beyond_torch`.
    """

    def __init__(self, seed: int, device: str, *, beyond_torch: bool = False) -> None:
        self.seed = seed
        self._beyond_torch = beyond_torch
        self._device = device
        # The modules that hold torch's generators: the CPU's, and an accelerator's.
        self._homes = (torch,) if device == CPU else (torch, module_of(device))

    @contextmanager
    def active(self) -> Iterator[None]:
        """Return a context in which the global generators are this task's."""
        others = lent() if self._beyond_torch else nullcontext()
        with ALONE, in_use(self._device), others:
            before = [home.get_rng_state() for home in self._homes]
            try:
                yield
            finally:
                for home, state in zip(self._homes, before, strict=True):
                    home.set_rng_state(state)

    def begin(self, step: int, part: int = 0) -> None:
        """Seed all generators for a part of a step's batch, both counted from 0; only while active.

        Because each part has its own seed, another process may compute it.
        """
        seed = (step_seed(step, self.seed) + part * _PART_STRIDE) & _SEED_MAX
        # Not `torch.manual_seed`, which takes five times as long to look at all devices.
        torch.default_generator.manual_seed(seed)
        for home in self._homes[1:]:
            home.manual_seed(seed)
        if self._beyond_torch:
            _seed(seed)


def task_seed(seed: int, round_: int, shard: int) -> int:
    """Return what the generators of a task are seeded from, by the spec's seed."""
    words = np.random.SeedSequence((_RANDOMNESS, seed, round_, shard))
    return int(words.generate_state(1, np.uint64)[0]) >> 1


def step_seed(step: int, seed: int) -> int:
    """Return what all generators are seeded with before a step of the task with a seed."""
    return (seed + step * _STRIDE) & _SEED_MAX


def _first_line(error: BaseException) -> str:
    line = (str(error).splitlines() or [type(error).__name__])[0]
    # Of an accelerator torch goes on with its own account of the memory, and with advice.
    return re.sub(r"(?<=\bis free\.).*", "", line).rstrip(".")
