"""The page's own files: HTML, styles and scripts, without a build step."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parent / "page"
