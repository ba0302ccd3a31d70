"""How a notebook shows a value; `show/notebook.py` supplies the code, from above."""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING

from downpour.base.errors import SpecError
from downpour.files.store.publish import explain
from downpour.host.paths import path_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FRAME_PIXELS = 640
"""The height of a page in a notebook."""


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """A whole HTML page that a notebook shows in a frame.

    The frame is sandboxed: the page's scripts run, but reach neither the notebook nor the network.
    """

    html: str

    def __repr__(self) -> str:
        """Say how large the page is."""
        return f"<NotebookPage {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        look = f"width: 100%; height: {_FRAME_PIXELS}px; border: 0"
        # We don't use `srcdoc`, because it resolves links to #places against the notebook's
        # address.
        source = f"data:text/html;charset=utf-8;base64,{b64encode(self.html.encode()).decode()}"
        return f'<iframe sandbox="allow-scripts" style="{look}" src="{source}"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page to a file that every browser shows without a network.

        Raises:
            SpecError: the file cannot be written.
        """
        file = path_of("path", path)
        try:
            file.write_text(self.html, encoding="utf-8")
        except OSError as error:
            raise SpecError("path", str(file), explain(error)) from None


@singledispatch
def html_of(value: object) -> str:
    """Return a value as HTML: its tables if they were imported, else its own short text."""
    return f"<pre>{escape(repr(value))}</pre>"


@singledispatch
def plot_of(value: object) -> Figure:
    """Draw how a value developed.

    Raises:
        TypeError: its figures have not been imported.
    """
    raise TypeError(f"cannot draw {value!r}")


@singledispatch
def timeline_of(value: object) -> Figure:
    """Draw a value's events over time.

    Raises:
        TypeError: its figures have not been imported.
    """
    raise TypeError(f"cannot draw {value!r}")


@singledispatch
def page_of(value: object) -> NotebookPage:
    """Return a page that shows a value.

    Raises:
        TypeError: its page has not been imported.
    """
    raise TypeError(f"cannot show {value!r}")
