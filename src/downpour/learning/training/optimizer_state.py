"""All that optimizers go on with, as named arrays, and back.

Torch's optimizers keep tensors by parameter, and these are named `parameter/what`. Others also
count in their groups or in attributes, keep lists, or wrap another optimizer. Of groups and
attributes we save tensors, and what differs from a new optimizer's, because the process that
continues makes a new one first. A value that is no tensor is a line of JSON, named `=place/what`.
The names of the tensors in it begin with `+place/what`.
"""

import json
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Any

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from downpour.base.errors import FileCorrupt
from downpour.learning.blame import is_lack_of_memory, users_errors
from downpour.learning.tasks.loaded import LoadedTask
from downpour.learning.training.parameters import Arrays, array_of, copy_into, shown_in

_PLAIN = {bool, int, float, str, type(None)}
_OF_TORCH = {
    "_need_device_dtype_check_for_fused",
    "_warned_capturable_if_run_uncaptured",
    "_zero_grad_profile_name",
}
"""Attributes that torch's own optimizers change without an effect on later steps."""
_ITEMS_MAX = 1000
_DEPTH_MAX = 5
"""How many parts of an unknown object we look at, and how far down."""

Written = tuple[str, Arrays]
"""A value that is no tensor: JSON, and the tensors that it names."""


class Unwritable(TypeError):
    """A value that is neither a number, text, a tensor, nor a list or dictionary of these."""


class OptimizerState:
    """Reads and writes the state of some optimizers, which were just made."""

    def __init__(
        self, by_name: Mapping[str, Optimizer], model: nn.Module, loaded: LoadedTask
    ) -> None:
        self._loaded = loaded
        self._parameters = dict(model.named_parameters())
        self._names = {id(value): name for name, value in self._parameters.items()}
        self._optimizers = _with_wrapped(by_name)
        self._members = self._grouped()
        self.rates: dict[int, float] = {}
        """The learning rate that the schedule gave to each group, by its `id`."""
        self._new = {name: self._noted(name, value) for name, value in self._beside()}

    def arrays(self, *, copy: bool = True) -> Arrays:
        """Return the state; empty if it has none. Without `copy`, a step may change the arrays."""
        self.check_groups()
        found: Arrays = {}
        for place, held, parameter in self._by_parameter():
            for what, value in held.items():
                # Torch's plain optimizers count steps on the CPU, wherever the parameter is.
                if isinstance(value, Tensor) and (
                    value.device == parameter.device or what == "step"
                ):
                    found[f"{place}/{what}"] = self._array(f"{place}/{what}", value, copy=copy)
                else:
                    found |= self._lines(f"{place}/{what}", value)
        for name, value in self._beside():
            now = self._noted(name, value)
            # A new one's tensors may be copies of the parameters, which are others by then.
            has_tensors = not isinstance(now, str) and now[1]
            if has_tensors or name not in self._new or not _same(self._new[name], now):
                found |= self._lines(name, value)
        return found

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state by a result of `arrays`, whose memory it keeps if that is no copy."""
        for one in self._optimizers.values():
            one.state.clear()
        self._begin_anew()
        for full_name, array in arrays.items():
            if full_name.startswith("+"):
                continue
            name = full_name.removeprefix("=")
            holder, what, parameter = self._place_of(name)
            if full_name != name:
                holder[what] = self._read(name, array.tobytes().decode(), arrays)
            elif parameter is None:
                raise FileCorrupt("optimizer state", f"{name} belongs to no parameter")
            else:
                fused = self._is_fused(parameter)
                holder[what] = _beside_parameter(parameter, what, array, name, fused=fused)

    def check_groups(self) -> None:
        """Refuse optimizers whose groups have other parameters than in the beginning."""
        if self._grouped() != self._members:
            accepted = (
                "a step changes which parameters its optimizer trains, but another worker could "
                "not continue it: give all parameters to the optimizer from the beginning"
            )
            raise self._loaded.mistake("optimizer", accepted)

    def _grouped(self) -> list[list[list[int]]]:
        return [
            [list(map(id, group["params"])) for group in one.param_groups]
            for one in self._optimizers.values()
        ]

    # Places

    def _by_parameter(self) -> Iterator[tuple[str, MutableMapping[str, Any], nn.Parameter]]:
        for name, parameter in self._parameters.items():
            seen: set[int] = set()
            for optimizer, one in self._optimizers.items():
                held = one.state.get(parameter)
                if held is not None and id(held) not in seen:
                    seen.add(id(held))
                    yield self._place(name, optimizer, parameter), held, parameter

    def _place(self, name: str, optimizer: str, parameter: nn.Parameter) -> str:
        return name if self._owner(parameter) == optimizer else f":{optimizer}@{name}"

    def _owner(self, parameter: nn.Parameter) -> str | None:
        """Return the name of the first optimizer that trains a parameter."""
        for (name, _), groups in zip(self._optimizers.items(), self._members, strict=True):
            if any(id(parameter) in group for group in groups):
                return name
        return None

    def _beside(self) -> Iterator[tuple[str, Any]]:
        """Yield all values that belong to no parameter, with their names."""
        shared = {id(one.state) for one in self._optimizers.values()}
        shared |= {id(one.param_groups) for one in self._optimizers.values()}
        for place, holder in self._holders().items():
            for what, value in holder.items():
                is_known = isinstance(value, Optimizer) or id(value) in shared
                is_known |= isinstance(what, Tensor) or what in {"params", *_OF_TORCH}
                # To compare a tensor with a text, torch throws an error, and catches it.
                is_rate = not is_known and what == "lr" and type(value) is float
                is_the_schedules = is_rate and value == self.rates.get(id(holder))
                if not (is_known or is_the_schedules):
                    yield f"{place}/{what}", value

    def _holders(self) -> dict[str, MutableMapping[Any, Any]]:
        """Return where optimizers keep what belongs to no parameter, once each."""
        places: dict[str, MutableMapping[Any, Any]] = {}
        for name, one in self._optimizers.items():
            places[f":{name}"] = vars(one)
            places[f":{name}~"] = one.state
            places |= {f":{name}[{n}]": group for n, group in enumerate(one.param_groups)}
        first = {id(holder): place for place, holder in reversed(places.items())}
        return {place: holder for place, holder in places.items() if first[id(holder)] == place}

    def _place_of(self, name: str) -> tuple[MutableMapping[str, Any], str, nn.Parameter | None]:
        """Return where a value belongs: in what, as what, and of which parameter."""
        place, _, what = name.rpartition("/")
        holder = self._holders().get(place)
        if holder is not None:
            return holder, what, None
        optimizer, _, parameter_name = place.removeprefix(":").rpartition("@")
        parameter = self._parameters.get(parameter_name)
        owner = optimizer if parameter is None or optimizer else self._owner(parameter)
        if parameter is None or owner not in self._optimizers:
            raise FileCorrupt("optimizer state", f"{name} belongs to another network")
        return self._optimizers[owner].state.setdefault(parameter, {}), what, parameter

    def _begin_anew(self) -> None:
        """Give groups and attributes the values of a new optimizer."""
        holders = self._holders()
        for name, value in [*self._beside()]:
            place, _, what = name.rpartition("/")
            new = self._new.get(name)
            if new is None:
                del holders[place][what]
            elif not isinstance(new, str) and not _same(new, self._noted(name, value)):
                holders[place][what] = self._read(name, new[0], new[1])

    def _is_fused(self, parameter: nn.Parameter) -> bool:
        owner = self._owner(parameter)
        defaults = getattr(self._optimizers[owner], "defaults", {}) if owner else {}
        return bool(defaults.get("fused") or defaults.get("capturable"))

    # Values

    def _noted(self, name: str, value: Any) -> Written | str:
        """Return a value to compare it later; one that cannot be written as far as it is seen."""
        try:
            return self._written(name, value)
        except Unwritable:
            return _seen(value, self._names)

    def _lines(self, name: str, value: Any) -> Arrays:
        """Return the arrays of a value that is no tensor of a parameter's."""
        try:
            text, tensors = self._written(name, value)
        except Unwritable as odd:
            raise self._unwritable(name, odd) from None
        return {f"={name}": np.frombuffer(text.encode(), np.uint8), **tensors}

    def _array(self, name: str, value: Tensor, *, copy: bool) -> NDArray[Any]:
        try:
            return _plain_array(value, copy=copy)
        except Unwritable as odd:
            raise self._unwritable(name, odd) from None

    def _unwritable(self, name: str, odd: Unwritable) -> Exception:
        place, _, what = name.rpartition("/")
        of = f" of {place.rpartition('@')[2]}"
        if place.startswith(":") and "@" not in place:
            of = " in its groups" if place.endswith("]") else ""
        accepted = (
            f"its optimizer keeps {what}{of}, a {odd}: other workers can only continue with "
            "tensors, numbers and text, and lists or dictionaries of these"
        )
        return self._loaded.mistake("optimizer", accepted)

    def _written(self, name: str, value: Any) -> Written:
        tensors: Arrays = {}
        return json.dumps(self._form(f"+{name}", value, tensors)), tensors

    def _form(self, name: str, value: Any, tensors: Arrays) -> Any:
        """Return a value as JSON holds it, and add its tensors to others."""
        if type(value) in _PLAIN:
            return value
        if isinstance(value, Tensor) and id(value) in self._names:
            return {"parameter": self._names[id(value)]}
        if isinstance(value, Tensor):
            tensors[name] = _plain_array(value)
            return {"tensor": name, "device": value.device.type}
        if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
            tensors[name] = np.array(value)
            return {"array": name}
        if type(value) in {list, tuple}:
            items = [self._form(f"{name}/{n}", one, tensors) for n, one in enumerate(value)]
            return {type(value).__name__: items}
        if type(value) is dict:
            pairs = enumerate(value.items())
            return {
                "dict": [
                    [self._form("", key, {}), self._form(f"{name}/{n}", one, tensors)]
                    for n, (key, one) in pairs
                ]
            }
        raise Unwritable(type(value).__name__)

    def _read(self, name: str, text: str, tensors: Mapping[str, NDArray[Any]]) -> Any:
        try:
            return self._value(json.loads(text), tensors)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileCorrupt("optimizer state", f"{name} cannot be read: {error}") from None

    def _value(self, form: Any, tensors: Mapping[str, NDArray[Any]]) -> Any:
        """Return the value that `_form` wrote."""
        if not isinstance(form, dict):
            return form
        if "parameter" in form:
            return self._parameters[form["parameter"]]
        if "tensor" in form:
            there = self._loaded.spec.device if form["device"] != "cpu" else "cpu"
            return torch.tensor(tensors[form["tensor"]]).to(there)
        if "array" in form:
            return np.array(tensors[form["array"]])[()]
        if "dict" in form:
            return {self._value(k, {}): self._value(one, tensors) for k, one in form["dict"]}
        kind, items = ("tuple", tuple) if "tuple" in form else ("list", list)
        return items(self._value(one, tensors) for one in form[kind])


def _with_wrapped(by_name: Mapping[str, Optimizer]) -> dict[str, Optimizer]:
    """Return the optimizers and the ones that they wrap, as Lookahead and SAM do."""
    found = dict(by_name)
    waiting = list(by_name.items())
    while waiting:
        name, one = waiting.pop()
        for what, value in vars(one).items():
            if isinstance(value, Optimizer) and not any(value is known for known in found.values()):
                found[f"{name}.{what}"] = value
                waiting.append((f"{name}.{what}", value))
    return found


def _plain_array(value: Tensor, *, copy: bool = True) -> NDArray[Any]:
    try:
        return array_of(value, copy=copy)
    except (TypeError, RuntimeError) as error:
        if is_lack_of_memory(error):
            raise
        # It is sparse or quantized, or of a type that numpy lacks.
        kind = value.dtype if value.layout is torch.strided else value.layout
        raise Unwritable(f"{kind} tensor") from None


def _beside_parameter(
    parameter: nn.Parameter, what: str, array: NDArray[Any], name: str, *, fused: bool
) -> Tensor:
    if array.shape == tuple(parameter.shape):
        # Fused kernels walk through memory: a buffer must have the layout of its parameter.
        held = shown_in(array)
        here = parameter.device, parameter.stride()
        if held is not None and (held.device, held.stride()) == here:
            return held
        kind = torch.from_numpy(np.empty(0, array.dtype)).dtype
        value = torch.empty_like(parameter, dtype=kind, requires_grad=False)
        copy_into(value, array, name)
        return value
    if what in {"momentum_buffer", "exp_avg", "exp_avg_sq"}:
        raise FileCorrupt("optimizer state", f"{name} should be {list(parameter.shape)}")
    if what == "step" and array.shape:
        raise FileCorrupt("optimizer state", f"{name} should be one number")
    counts_there = what != "step" or fused
    return torch.tensor(array).to(parameter.device if counts_there else "cpu")


def _same(one: Written | str, other: Written | str) -> bool:
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    (text, tensors), (other_text, others) = one, other
    return text == other_text and all(
        tensors[name].tobytes() == others[name].tobytes() for name in tensors
    )


def _seen(value: Any, names: Mapping[int, str], depth: int = 0) -> str:
    """Describe any object as far as we can see it; of others, name the type."""
    if type(value) in _PLAIN:
        return repr(value)
    if isinstance(value, Tensor):
        return names.get(id(value)) or _content(value)
    kind = type(value).__name__
    if depth == _DEPTH_MAX or isinstance(value, nn.Module | type) or callable(value):
        return kind
    if isinstance(value, dict):
        inner: Iterator[Any] = (part for pair in value.items() for part in pair)
    elif isinstance(value, list | tuple):
        inner = iter(value)
    else:
        try:
            # Copying asks for the same: attributes, items, or what a generator is at.
            parts = value.__reduce_ex__(4)
        except users_errors():
            return kind
        inner = (
            tuple(part) if isinstance(part, Iterator) else part
            for part in (parts if isinstance(parts, tuple) else ())
        )
    return (
        f"{kind}({', '.join(_seen(part, names, depth + 1) for part in islice(inner, _ITEMS_MAX))})"
    )


def _content(value: Tensor) -> str:
    try:
        return xxhash.xxh3_128_hexdigest(_plain_array(value, copy=False).data)
    except Unwritable:
        return type(value).__name__
