"""Starts from the parameters in a file instead of random ones.

Names decide. We copy the tensors that the file holds, and the ones that it lacks keep their seeded
draw. Remarks name these, and the file's tensors that the network lacks. So the body of a network
can begin from another one's while its head is new. Floats are converted to the network's own type;
nothing else is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from numpy.typing import NDArray
from torch import Tensor, nn

from downpour.base.errors import SpecError
from downpour.learning.training.parameters import array_of, fill, is_finite

_NAMED = 3


def begin_from(
    model: nn.Module, tensors: Mapping[str, NDArray[Any]], source: str, *, field: str = "init_from"
) -> tuple[str, ...]:
    """Copy tensors into a network's parameters and buffers of the same names.

    Args:
        model: The network, with its own initial parameters.
        tensors: What the file holds, by name.
        source: What the user calls the file.
        field: Where the user names it.

    Returns:
        What people should know, a line each: what the file lacks, and what it holds besides.

    Raises:
        SpecError: no name is the network's, or a tensor has another shape or type, or holds NaN.
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
    fill(target, converted, name)


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape)


def _some(names: Collection[str]) -> str:
    """Name the first few, and count the others."""
    shown = ", ".join(sorted(names)[:_NAMED])
    return f"{shown} and {len(names) - _NAMED} more" if len(names) > _NAMED else shown or "nothing"
