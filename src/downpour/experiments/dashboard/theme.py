"""The figures' colors as CSS variables, light and dark."""

from __future__ import annotations

from downpour.experiments.figures.style import DARK, LIGHT, variables


def theme_css() -> str:
    """Return the style sheet; `data-theme` on the root, or else the system, chooses a theme."""
    light, dark = variables(LIGHT), variables(DARK)
    return (
        f":root {{ color-scheme: light dark; {light} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {dark} }} }}\n"
        f":root[data-theme=dark] {{ color-scheme: dark; {dark} }}\n"
        ":root[data-theme=light] { color-scheme: light; }\n"
    )
