"""Rows in few bytes each, because a long experiment has millions of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from struct import calcsize, iter_unpack, pack
from typing import TypeVar, overload

import numpy as np

Row = TypeVar("Row")


class Packed(Sequence[Row]):
    """Rows of a word and numbers in few bytes each; a row is made when someone asks for it."""

    make: Callable[..., Row]
    """Makes a row from its word and its numbers."""

    def __init__(self, layout: str) -> None:
        self._layout = f"=i{layout}"  # not a `Struct`, which can be neither pickled nor copied
        self._content = bytearray()
        self._words: dict[str, int] = {}

    def add(self, word: str, *numbers: float) -> None:
        """Add a row."""
        place = self._words.setdefault(word, len(self._words))
        self._content += pack(self._layout, place, *numbers)

    def __len__(self) -> int:
        return len(self._content) // calcsize(self._layout)

    def __iter__(self) -> Iterator[Row]:
        return self._made(self._content)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, place: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(place, slice):
            return tuple(self[each] for each in range(len(self))[place])
        begin = range(len(self))[place] * calcsize(self._layout)
        return next(self._made(self._content[begin : begin + calcsize(self._layout)]))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def sort(self, *places: int) -> None:
        """Sort the rows by the numbers at these places, the most important one first."""
        columns = [(str(place), code) for place, code in enumerate(self._layout[1:], start=-1)]
        table = np.frombuffer(self._content, columns)
        order = np.lexsort([table[str(place)] for place in reversed(places)])
        if (np.diff(order) < 0).any():
            table[:] = table[order]

    def _made(self, content: bytes | bytearray) -> Iterator[Row]:
        words, make = [*self._words], self.make
        for place, *numbers in iter_unpack(self._layout, content):
            yield make(words[place], *numbers)
