"""The version of this package, and nothing else, so that everything may import it."""

from __future__ import annotations

VERSION = "0.1.0"
