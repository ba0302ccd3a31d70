"""A rich console on which text has no effects: it shows control characters as text.

Displays pass each foreign text through `one_line`, which keeps tables straight. This is the safety
net below them: rich itself removes only a few control characters, and lets an escape pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from downpour.host.text import one_line


class SafeConsole(Console):
    """A console that shows the control characters in its output, except line breaks."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render into segments; the controls among them are rich's own."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable() or text == "\n":
                yield segment
            else:
                yield segment._replace(text="\n".join(map(one_line, text.split("\n"))))
