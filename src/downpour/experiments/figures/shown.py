"""Figures for notebooks, even if the user has never imported pyplot."""

from __future__ import annotations

import io
from base64 import b64encode
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DPI = 110
"""The resolution in a notebook: as wide as its text, on a fine screen."""


def new_figure(width_inches: float, height_inches: float) -> Figure:
    """Return an empty figure of this size, in the layout that leaves room for every label."""
    return _shown_figure()(figsize=(width_inches, height_inches), layout="constrained")


@cache
def _shown_figure() -> type[Figure]:
    """Return the class; we must not import its base before someone needs it."""
    from matplotlib.figure import Figure as Base

    class ShownFigure(Base):
        """A figure that draws its own image for a notebook.

        IPython can show figures only after someone has imported pyplot, which changes global
        settings.
        """

        def _repr_html_(self) -> str:
            file = io.BytesIO()
            self.savefig(file, format="png", dpi=_DPI)
            source = f"data:image/png;base64,{b64encode(file.getvalue()).decode()}"
            return f'<img alt="figure" style="max-width: 100%" src="{source}">'

    return ShownFigure
