"""How a notebook shows a result; `show/notebook.py` supplies the drawings, from above."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from downpour.base.errors import SpecError
from downpour.files.store.publish import explain
from downpour.host.paths import path_of

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
        """Write the page to a file that every browser shows without a network."""
        file = path_of("path", path)
        try:
            file.write_text(self.html, encoding="utf-8")
        except OSError as error:
            raise SpecError("path", str(file), explain(error)) from None


DRAWINGS: dict[str, Callable[[Any], Any]] = {}
"""The functions that draw a result, by the name of its method."""
