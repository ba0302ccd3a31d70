"""What a notebook shows of a value; `experiments/notebook.py` knows how, and is above this room."""

from __future__ import annotations

from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@singledispatch
def html_of(value: object) -> str:
    """Return HTML of a value: its own short text, unless its tables have been imported."""
    return f"<pre>{escape(repr(value))}</pre>"


@singledispatch
def plot_of(value: object) -> Figure:
    """Draw how a value became what it is.

    Raises:
        TypeError: its figures have not been imported.
    """
    raise TypeError(f"nothing is known that would draw {value!r}")


@singledispatch
def timeline_of(value: object) -> Figure:
    """Draw what happened when.

    Raises:
        TypeError: its figures have not been imported.
    """
    raise TypeError(f"nothing is known that would draw {value!r}")
