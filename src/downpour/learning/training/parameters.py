"""A network's parameters as tensors of a file, and their memory.

The arrays go into files, so they are plain, contiguous and on the CPU, for any device and memory
layout of the network. Values are copied, never converted. Parameters that need no gradient are
apart, because they never change: they are sent once. A tensor that the network has under several
names, as tied weights are, goes by the first of them.

Once `Tensor.numpy` has shown a tensor, its storage keeps its size. But the observers of a quantized
network resize their buffers. So numpy gets the memory itself (`_Memory`).
"""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from downpour.base.errors import FileCorrupt, NonFinite, SpecError, listed
from downpour.learning.accelerators import is_plain

Arrays = dict[str, NDArray[Any]]
Tensors = Mapping[str, NDArray[Any]]
"""Read-only arrays by name."""


def parameters_of(model: nn.Module, *, copy: bool = True) -> Arrays:
    """Return what a network's training changes: parameters that are trained, and buffers, by name.

    Without `copy` they are the network's own memory where its layout allows, and change with it:
    enough for a caller that writes them to a file at once.
    """
    return {name: array_of(value, copy=copy) for name, value in _state(model).items()}


def buffers_of(model: nn.Module) -> list[str]:
    """Return the names of the arrays of `parameters_of` that no optimizer trains."""
    state = model.state_dict(keep_vars=True)
    return [name for name, value in state.items() if not isinstance(value, nn.Parameter)]


def frozen_of(model: nn.Module) -> Arrays:
    """Return copies of the parameters that need no gradient, by their names in the state_dict."""
    return {name: array_of(value) for name, value in _state(model, frozen=True).items()}


def ties_of(model: nn.Module) -> dict[str, str]:
    """Return the other names of tensors that have several, by each the name that they go by."""
    return _ties(model.state_dict(keep_vars=True))


def _ties(state: Mapping[str, Tensor]) -> dict[str, str]:
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(value), name) for name, value in state.items()}
    return {name: known for name, known in names.items() if name != known}


def load_frozen(model: nn.Module, arrays: Tensors) -> None:
    """Copy arrays into the parameters that are not trained."""
    _load(_state(model, frozen=True), arrays)


def load_parameters(model: nn.Module, arrays: Tensors) -> None:
    """Copy what `parameters_of` returned into a network, which is not rebuilt."""
    _load(_state(model), arrays)


def _state(model: nn.Module, *, frozen: bool = False) -> dict[str, Tensor]:
    """Return the tensors that training may change, or the frozen ones, without second names."""
    state = model.state_dict(keep_vars=True)
    ties = _ties(state)
    return {
        name: value
        for name, value in state.items()
        if name not in ties
        and (isinstance(value, nn.Parameter) and not value.requires_grad) == frozen
    }


def _load(state: Mapping[str, Tensor], arrays: Tensors) -> None:
    if state.keys() != arrays.keys():
        odd = ", ".join(sorted(state.keys() ^ arrays.keys())[:3])
        raise FileCorrupt("parameters", f"do not fit this network: {odd}")
    for name, value in state.items():
        copy_into(value, arrays[name], name)


def check_finite(arrays: Tensors, constants: Tensors | None = None) -> None:
    """Raise NonFinite where an array holds NaN or infinity, and is not as it is in `constants`."""
    constants = constants or {}
    for name, array in arrays.items():
        if is_finite(array):
            continue
        if name not in constants or array.tobytes() != constants[name].tobytes():
            raise NonFinite(f"{name} holds NaN or infinity")


def moved_constant(arrays: Tensors, constants: Tensors) -> str | None:
    """Return the name of an array in which NaN or infinity has become a number, if there is one.

    Sums of updates are sums of differences from the model that they began from, and the difference
    of a number from infinity is none.
    """
    for name in arrays.keys() & constants.keys():
        was, now = constants[name], arrays[name]
        if was.shape == now.shape and bool((np.isfinite(now) & ~np.isfinite(was)).any()):
            return name
    return None


def infinite_constants(model: nn.Module) -> Arrays:
    """Return copies of untrained tensors that hold infinities or NaN, such as causal masks."""
    state = {**_state(model), **_state(model, frozen=True)}.items()
    untrained = {n: v for n, v in state if not (isinstance(v, nn.Parameter) and v.requires_grad)}
    return {name: array_of(value) for name, value in untrained.items() if not _all_finite(value)}


def _all_finite(value: Tensor) -> bool:
    if value.device.type == "cpu":
        return is_finite(array_of(value, copy=False))
    # There, because frozen weights may be gigabytes; a sum needs no memory, and may overflow.
    is_sum = not value.is_floating_point() or bool(value.sum().isfinite())
    return is_sum or bool(value.isfinite().all())


def is_finite(array: NDArray[Any]) -> bool:
    """Whether all numbers of an array are finite; numbers other than floats always are."""
    if array.dtype.kind != "f":
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum()
    # A sum is finite only if its terms are, and takes two thirds of the time. It may overflow.
    return bool(np.isfinite(total)) or bool(np.isfinite(array).all())


def array_of(value: Tensor, *, copy: bool = True) -> NDArray[Any]:
    """Return a tensor as a contiguous array on the CPU; without `copy` maybe its own memory."""
    here = value.detach().cpu()
    if value.device.type == "cpu":
        if not copy and here.numel() and here.is_contiguous() and is_plain(here):
            seen = np.asarray(_Memory(here))
            seen.flags.writeable = False
            return seen
        here = here.clone(memory_format=torch.contiguous_format)
    return np.array(here.numpy(), order="C", copy=None)


def shown_in(array: NDArray[Any]) -> Tensor | None:
    """Return the tensor whose own memory an array of `array_of` is; None if it is a copy."""
    return array.base.tensor if isinstance(array.base, _Memory) else None


class _Memory:
    """A tensor's own memory for numpy, which does not fix the size of its storage."""

    def __init__(self, tensor: Tensor) -> None:
        kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype
        self.tensor = tensor  # keeps the memory
        self.__array_interface__ = {
            "version": 3,
            "data": (tensor.data_ptr(), False),
            "shape": tuple(tensor.shape),
            "strides": tuple(kind.itemsize * stride for stride in tensor.stride()),
            "typestr": kind.str,
        }


def copy_into(target: Tensor, array: NDArray[Any], name: str) -> None:
    """Copy an array into a tensor of the same shape and type; their memory layouts may differ."""
    # Numpy copies it, because torch warns of read-only memory, such as a mapped file's. Torch also
    # writes to no tensor whose elements share memory, nor to one made in inference mode.
    here = (
        target.detach() if target.device.type == "cpu" else torch.empty_like(target, device="cpu")
    )
    view = np.asarray(_Memory(here))
    if view.shape != array.shape or view.dtype != array.dtype:
        raise FileCorrupt(
            "parameters",
            f"{name} should be {view.dtype} {view.shape}, but is {array.dtype} {array.shape}",
        )
    np.copyto(view, array, casting="no")
    if target.device.type != "cpu":
        with torch.no_grad():
            target.copy_(torch.from_numpy(view))


def begin_from(
    model: nn.Module, tensors: Tensors, source: str, *, field: str = "init_from"
) -> tuple[str, ...]:
    """Copy tensors into a network's parameters and buffers of the same names.

    Names decide. Tensors that the file lacks keep their seeded draw. Remarks name these, and the
    file's tensors that the network lacks. So the body of a network can begin from another one's
    while its head is new. Floats are converted to the network's own type; nothing else is.

    The user calls the file `source`, and names it in `field`.
    """
    state = model.state_dict(keep_vars=True)
    shared = state.keys() & tensors.keys()
    if not shared:
        has, needs = _some(tensors), _some(state)
        raise SpecError(field, source, f"belongs to another network: it has {has}; needed: {needs}")
    for name in sorted(shared):
        _copy(state[name], tensors[name], name, source, field)
    missing = lacking(model, tensors)
    left = [name for name in tensors if name not in shared]
    remarks = []
    if missing:
        remarks.append(
            f"{source} lacks {_some(missing)}, so these start with random values from the seed"
        )
    if left:
        remarks.append(f"{source} also holds {_some(left)}, which the network lacks")
    return tuple(remarks)


def lacking(model: nn.Module, names: Collection[str]) -> list[str]:
    """Return which of a network's parameters and buffers are not among some names."""
    state = model.state_dict(keep_vars=True)
    # Tied tensors are one under several names, and other programs keep one of these.
    filled = {_place(state[name]) for name in state.keys() & set(names)}
    return [name for name, value in state.items() if _place(value) not in filled]


def _copy(target: Tensor, given: NDArray[Any], name: str, source: str, field: str) -> None:
    own = array_of(target)
    if own.shape != given.shape:
        shapes = f"{name} has shape {list(given.shape)} in it, but {list(own.shape)} in the network"
        raise SpecError(field, source, shapes)
    if own.dtype != given.dtype and (own.dtype.kind, given.dtype.kind) != ("f", "f"):
        types = f"{name} is {given.dtype} in it, but {own.dtype} in the network"
        raise SpecError(field, source, types)
    converted = given.astype(own.dtype)
    if not is_finite(converted) and (target.requires_grad or is_finite(own)):
        raise SpecError(field, source, f"{name} holds NaN or infinity as {own.dtype}")
    copy_into(target, converted, name)


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape)


def _some(names: Collection[str]) -> str:
    return listed(sorted(names)) or "nothing"
