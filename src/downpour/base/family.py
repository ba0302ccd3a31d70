"""A family: things of one kind that users choose by name, each in its own module.

We register a member once, by a name and the place of its definition; an installed package does so
with an entry point. We import a member's module at its first use, so names cost nothing, and a
layer may know the names of a family whose code is in a higher layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from downpour.base.errors import SpecError, did_you_mean


@dataclass(frozen=True, slots=True)
class Member:
    """A member's place, as "package.module:NAME", and a note on it for help texts."""

    home: str
    note: str = ""


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
        return (*self._others, *self)

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
        """Import a member if necessary, and return it."""
        if name in self._members:
            module, _, attribute = self._members[name].home.partition(":")
            return getattr(import_module(module), attribute)
        point = self._found[name]
        try:
            return point.load()
        except Exception as error:  # a package's module may raise anything
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            accepted = f"cannot be imported from {point.value} ({reason})"
            raise SpecError(self.field, name, accepted) from error

    def check(self, name: object, field: str | None = None) -> str:
        """Return a name if the field accepts it; errors mention `field` instead if it is given."""
        if isinstance(name, str) and (name in self._others or name in self):
            return name
        meant = did_you_mean(name, self.accepted) if isinstance(name, str) else ""
        raise SpecError(field or self.field, name, f"must be {_listed(self.accepted)}{meant}")

    def described(self) -> str:
        """Return all names in words, each with its note."""
        notes = {name: member.note for name, member in self._members.items() if member.note}
        return _listed([f"{n} ({notes[n]})" if n in notes else n for n in self.accepted])

    @cached_property
    def _found(self) -> dict[str, EntryPoint]:
        found = {point.name: point for point in _entry_points().select(group=self.group)}
        return {name: found[name] for name in sorted(found) if name not in self._members}


@cache
def _entry_points() -> Any:  # its type differs between Python 3.11 and 3.12
    """Return all installed packages' entry points; finding them takes 3 to 5 ms."""
    return entry_points()


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
