"""What a terminal shows of a table, as text."""

import io

from rich.console import Console, RenderableType


def rendered(*parts: RenderableType, width: int = 80) -> str:
    """Render without color; spaces at the ends of lines do not count."""
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(*parts, sep="\n")
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"
