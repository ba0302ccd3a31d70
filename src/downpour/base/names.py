"""Names that users give: of an argument, of a device, and of a family's members.

A mistaken name gets an error that names it and the likely intention. From a call, Python itself
would raise a TypeError, which has neither.

A spec asks for a kind of device (`cuda`), for one of several (`cuda:1`), or for the best (`auto`);
a worker has one device. Callers pass in a machine's devices, which `learning/accelerators.py`
finds.

A family has things of one kind, each in its own module. We register a member once, by a name and
the place of its definition; an installed package does so with an entry point. We import a member's
module at its first use, so names cost nothing, and a layer may know the names of a family whose
code is in a higher layer.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar

from downpour.base.errors import SpecError, closest, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

CPU = "cpu"
AUTO = "auto"
DEVICE_KINDS = CPU, "cuda", "mps", "xpu", AUTO
DEVICE_NAMES = "cpu|cuda|cuda:N|mps|xpu|xpu:N|auto"
"""The names, as the help shows them."""
DEVICE_PATTERN = r"^(?:auto|cpu|mps|(?:cuda|xpu)(?::(?:0|[1-9][0-9]?))?)$"
ACCEPTED_DEVICES = (
    "cpu, cuda, mps, xpu or auto, or one of several by its number, such as cuda:1 or xpu:1"
)


def whole_id(begin: str, ids: Iterable[str]) -> str:
    """Return the only experiment whose ID begins like this, or the text itself if none does."""
    begin_so = sorted(one for one in ids if one.startswith(begin))
    if begin in begin_so or not begin_so:
        return begin
    if len(begin_so) > 1:
        several = f"{len(begin_so)} experiments begin like this, such as {begin_so[0]}"
        raise SpecError("ID", begin, f"{several}; give more characters")
    return begin_so[0]


@dataclass(frozen=True, slots=True)
class Device:
    """A device of one machine: its kind and, if it is one of several, its number."""

    kind: str
    number: int | None = None

    @classmethod
    def of(cls, name: str) -> Self:
        """Read the name of a device other than `auto`."""
        kind, _, number = name.partition(":")
        return cls(kind, int(number) if number else None)


@dataclass(frozen=True, slots=True)
class Devices:
    """The accelerators of a machine: the number of each kind, the best kind first."""

    accelerators: Mapping[str, int] = field(default_factory=dict)

    @property
    def best(self) -> str:
        """The device that `auto` means here."""
        return next(iter(self.accelerators), CPU)

    def has(self, name: str) -> bool:
        """Whether this machine has a device of this name."""
        device = Device.of(name)
        return name == CPU or (device.number or 0) < self.accelerators.get(device.kind, 0)

    def chosen(self, asked: str) -> str:
        """Return the requested device."""
        if asked == AUTO:
            return self.best
        if not self.has(asked):
            raise SpecError("device", asked, f"torch finds no such device here, only {self}")
        return asked

    def spread(self, asked: str, place: int) -> str:
        """Return the device for worker number `place` of this machine, counted from 0.

        Workers take the machine's cards in turn, unless `asked` names one by its number.
        """
        device = self.chosen(asked)
        count = self.accelerators.get(device, 1)  # names with a number are not in the table
        return device if count == 1 else f"{device}:{place % count}"

    def cards(self, asked: str) -> int:
        """Return how many accelerators of this machine serve a requested device; 0 for the CPU."""
        device = self.nearest(asked)
        return 0 if device == CPU else self.accelerators.get(device, 1)

    def nearest(self, asked: str) -> str:
        """Return the requested device, or else another one of its kind, or the CPU."""
        if asked == AUTO or self.has(asked):
            return self.chosen(asked)
        kind = Device.of(asked).kind
        return kind if self.has(kind) else CPU

    @property
    def names(self) -> tuple[str, ...]:
        """All devices, the CPU first; devices have numbers if there are several of a kind."""
        names = [CPU]
        for kind, count in self.accelerators.items():
            names += [kind] if count == 1 else [f"{kind}:{number}" for number in range(count)]
        return tuple(names)

    def __str__(self) -> str:
        return ", ".join(self.names)


def check_device(name: str) -> None:
    """Refuse a text that is not the name of a device."""
    if not re.fullmatch(DEVICE_PATTERN, name):
        raise SpecError(
            "device", name, f"must be {ACCEPTED_DEVICES}{did_you_mean(name, DEVICE_KINDS)}"
        )


def trained_on(asked: str, own: str) -> str | None:
    """Return the device on which a worker trains a spec; None if the worker has a different one.

    Every worker has a CPU. `own` is its device; plain `cuda` is the first card.
    """
    if asked == CPU:
        return CPU
    if asked in {AUTO, own}:
        return own
    wanted, has = Device.of(asked), Device.of(own)
    fits = wanted.kind == has.kind and wanted.number in {None, has.number or 0}
    return own if fits else None


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


@dataclass(frozen=True, slots=True)
class Number:
    """A number in brackets behind a member's name: above 0, and below a limit.

    `name` stands for it in help texts, and `example` in suggestions: dirichlet(ALPHA) and
    dirichlet(0.5).
    """

    name: str
    example: float
    below: float


@dataclass(frozen=True, slots=True)
class Member:
    """A member's place, as "package.module:NAME", and a note on it for help texts.

    If a `number` follows its name, the place has a function from the number to the member.
    """

    home: str
    note: str = ""
    number: Number | None = None


class Family(Mapping[str, Any]):
    """The members by name: ours, then those of installed packages.

    A package registers members in its own `pyproject.toml`, under the family's `group`:

        [project.entry-points."downpour.policies"]
        mine = "my_package.my_policy:MINE"

    Args:
        field: the field that names a member, for errors.
        group: the group of entry points.
        members: Downpour's own members. A package cannot replace them.
        others: names that the field accepts beside members, such as "none".
    """

    def __init__(
        self, field: str, group: str, members: Mapping[str, Member], others: tuple[str, ...] = ()
    ) -> None:
        self.field = field
        self.group = group
        self._members = dict(members)
        self._others = others

    @property
    def built_in(self) -> tuple[str, ...]:
        """The names of Downpour's own members."""
        return tuple(self._members)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The values that the field accepts: members, and the other names."""
        return self._written(lambda number: number.name)

    @property
    def examples(self) -> tuple[str, ...]:
        """The same values, with an example of each number."""
        return self._written(lambda number: number.example)

    def __iter__(self) -> Iterator[str]:
        """Yield the members' names."""
        yield from self._members
        yield from self._found

    def __len__(self) -> int:
        """Return the number of members."""
        return len(self._members) + len(self._found)

    def __contains__(self, name: object) -> bool:
        """Whether a member has that name; imports nothing."""
        return name in self._members or name in self._found

    def __getitem__(self, name: str) -> Any:
        """Import a member if necessary, and return it; `name` may have a number."""
        known, number = self._parsed(name)
        if known in self._members:
            module, _, attribute = self._members[known].home.partition(":")
            member = getattr(import_module(module), attribute)
            return member if number is None else member(number)
        point = self._found[name]
        try:
            return point.load()
        except Exception as error:  # a package's module may raise anything
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            accepted = f"cannot be imported from {point.value} ({reason})"
            raise SpecError(self.field, name, accepted) from error

    def check(self, name: object, field: str | None = None) -> str:
        """Return a name if the field accepts it; errors mention `field` instead if it is given."""
        field, text = field or self.field, name if isinstance(name, str) else ""
        known, number = self._parsed(text)
        wanted = self._members[known].number if known in self._members else None
        if (text in self._others or known in self) and (number is None) == (wanted is None):
            if number is not None and wanted is not None and not 0 < number < wanted.below:
                limits = f"{wanted.name} above 0 and below {wanted.below:g}"
                raise SpecError(field, name, f"must be {known}({wanted.name}), {limits}")
            return text
        meant = self._misplaced(text) or did_you_mean(text, self.examples)
        raise SpecError(field, name, f"must be {_listed(self.accepted)}{meant}")

    def _misplaced(self, name: str) -> str:
        """Name a group with a typo, such as `downpour.policy`, in which a package has the name."""
        points = _entry_points()
        groups = (group for group in points.groups if group.startswith("downpour"))
        for group in groups if name else ():
            if points.select(group=group, name=name):
                return f"; a package has it in the group {group}, but it must be in {self.group}"
        return ""

    def described(self) -> str:
        """Return all values in words, each with its note."""
        notes = {name: member.note for name, member in self._members.items() if member.note}
        shown = zip((*self._others, *self), self.accepted, strict=True)
        return _listed([f"{text} ({notes[n]})" if n in notes else text for n, text in shown])

    def _written(self, written: Callable[[Number], object]) -> tuple[str, ...]:
        numbers = {name: member.number for name, member in self._members.items()}
        members = [f"{n}({written(one)})" if (one := numbers.get(n)) else n for n in self]
        return (*self._others, *members)

    def _parsed(self, text: str) -> tuple[str, float | None]:
        """Return a member's name and its number: "dirichlet(0.5)" → ("dirichlet", 0.5)."""
        found = re.fullmatch(r"(.*)\(([0-9.eE+-]+)\)", text)
        if found is None:
            return text, None
        try:
            return found[1], float(found[2])
        except ValueError:
            return found[1], 0.0

    @cached_property
    def _found(self) -> dict[str, EntryPoint]:
        found = {point.name: point for point in _entry_points().select(group=self.group)}
        return {name: found[name] for name in sorted(found) if name not in self._members}


@cache
def _entry_points() -> Any:  # its type differs between Python 3.11 and 3.12
    """Return all installed packages' entry points; finding them takes 3 to 5 ms."""
    from importlib.metadata import entry_points

    return entry_points()


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
