"""Refuses wrong arguments of a call from Python with one line that names them.

Python itself raises a TypeError, which names neither the value nor the likely intention.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from downpour.base.errors import SpecError, closest

_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_Class = TypeVar("_Class", bound=type)


def checked_call(fields: Iterable[str] = ()) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Let a function refuse unknown arguments with our own error, also `fields` of the spec."""
    of_spec = frozenset(fields)

    def decorated(function: Callable[_P, _R]) -> Callable[_P, _R]:
        signature = inspect.signature(function)
        name = getattr(function, "__qualname__", "").removesuffix(".__init__")

        @wraps(function)
        def called(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise _refusal(name, signature, args, kwargs, of_spec) or error from None
            return function(*args, **kwargs)

        return called

    return decorated


def checked_calls(made: _Class) -> _Class:
    """Apply `checked_call` to a class's constructor and public methods."""
    for name, function in list(vars(made).items()):
        if inspect.isfunction(function) and (name == "__init__" or not name.startswith("_")):
            setattr(made, name, checked_call()(function))
    return made


_ELSEWHERE = {
    "gpu": "device",
    "gpus": "device",
    "n_gpus": "device",
    "num_gpus": "device",
    "num_workers": "workers",
    "n_workers": "workers",
    "num_processes": "workers",
    "nproc_per_node": "workers",
    "wd": "weight_decay",
    "max_epochs": "epochs",
    "num_epochs": "epochs",
    "num_train_epochs": "epochs",
}
"""The names that other programs give to our settings."""


def meant(unknown: str, known: Iterable[str]) -> str | None:
    """Return the known name that a user probably means: by other programs, initials or letters."""
    names = list(known)
    initials = {"".join(word[0] for word in name.split("_")): name for name in names}
    by_habit = _ELSEWHERE.get(unknown) or (initials.get(unknown) if len(unknown) > 1 else None)
    if by_habit in names:
        return by_habit
    return closest(unknown, names)


def nearest(unknown: str, known: Iterable[str]) -> str:
    """Suggest the name that a user means, or else the nearest few."""
    names = list(known)
    if name := meant(unknown, names):
        return f"did you mean {name}?"
    *others, last = difflib.get_close_matches(unknown, names, cutoff=0) or ["none"]
    return f"the nearest are {', '.join(others)} and {last}" if others else f"there is {last}"


def _refusal(
    name: str,
    signature: inspect.Signature,
    args: tuple[object, ...],
    kwargs: dict[str, object],
    of_spec: frozenset[str],
) -> SpecError | None:
    """Return the first mistake in a call: an unknown name, a spare value or a missing one."""
    taken = signature.parameters.values()
    known = [one.name for one in taken if one.kind in _NAMED and one.name != "self"]
    takes_any = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken)
    for given, value in kwargs.items():
        if given in known or takes_any:
            continue
        accepted = f"no such argument of {name}(); {nearest(given, known)}"
        if given in of_spec:
            accepted = f"is a field of the spec, not an argument of {name}()"
        return SpecError(given, value, accepted)
    try:
        signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        value = args[-1] if args else None
        return SpecError(
            name, value, f"{error}; name each argument after the first, such as {known[-1]}=..."
        )
    needed = [one for one in known if signature.parameters[one].default is inspect.Parameter.empty]
    given_by_place = len(args) - ("self" in signature.parameters)
    missing = [one for one in needed if one not in kwargs and known.index(one) >= given_by_place]
    return SpecError(missing[0], None, f"is required by {name}()") if missing else None
