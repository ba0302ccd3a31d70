"""The error of one field of a message; `wire.py` checks everything from the network."""

from __future__ import annotations

from downpour.base.errors import IncompatiblePeer


class FieldError(IncompatiblePeer):
    """A field of a message holds a value that the protocol does not allow there."""

    def __init__(self, field: str, value: object, accepted: str) -> None:
        super().__init__(field, value, accepted)
        self.field = field
        self.value = value
        self.accepted = accepted

    def __str__(self) -> str:
        return f"{self.field} = {shown(self.value)}: {self.accepted}"

    def inside(self, outer: str) -> FieldError:
        """Return the same error, seen from the message that holds the field's struct."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return FieldError(f"{outer}{dot}{self.field}", self.value, self.accepted)


def shown(value: object, limit: int = 200) -> str:
    """Return a value as text in one line, cut at `limit` characters."""
    text = value if isinstance(value, Shown) else repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"


class Shown(str):
    """Text that the peer has already rendered, so we don't quote it twice."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)
