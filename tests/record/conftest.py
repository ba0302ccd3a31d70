"""Runs and studies made of plain results."""

from tests.show.conftest import make

__all__ = ["make"]
