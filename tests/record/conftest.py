"""Runs and studies made of plain results."""

from __future__ import annotations

from tests.show.conftest import make

__all__ = ["make"]
