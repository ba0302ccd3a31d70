"""What a notebook shows of a value; `tables/notebook.py` knows how, and is above this room."""

from __future__ import annotations

from functools import singledispatch
from html import escape


@singledispatch
def html_of(value: object) -> str:
    """Return HTML of a value: its own short text, unless its tables have been imported."""
    return f"<pre>{escape(repr(value))}</pre>"
