"""How a notebook shows a value; `experiments/notebook.py` supplies the code, from above."""

from __future__ import annotations

import os
from base64 import b64encode
from dataclasses import dataclass
from functools import singledispatch
from html import escape
from typing import TYPE_CHECKING

from downpour.base.errors import SpecError
from downpour.files.store.os_errors import explain
from downpour.host.paths import path_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FRAME_PIXELS = 640
"""The height of a page in a notebook."""


@dataclass(frozen=True, slots=True)
class NotebookPage:
    """A whole HTML page, which a notebook shows in a frame.

    The frame is sandboxed: the page's scripts run, but reach neither the notebook nor the network.
    """

    html: str

    def __repr__(self) -> str:
        """Say how large it is."""
        return f"<NotebookPage {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        look = f"width: 100%; height: {_FRAME_PIXELS}px; border: 0"
        # Not as `srcdoc`: there, links to #places are resolved against the notebook's own address.
        source = f"data:text/html;charset=utf-8;base64,{b64encode(self.html.encode()).decode()}"
        return f'<iframe sandbox="allow-scripts" style="{look}" src="{source}"></iframe>'

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the page into a file, which every browser shows without a network.

        Raises:
            SpecError: it cannot be written.
        """
        file = path_of("path", path)
        try:
            file.write_text(self.html, encoding="utf-8")
        except OSError as error:
            raise SpecError("path", str(file), explain(error)) from None


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
    raise TypeError(f"cannot draw {value!r}")


@singledispatch
def timeline_of(value: object) -> Figure:
    """Draw what happened when.

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
