"""Builds in temporary folders, so that `pip wheel .` leaves nothing in the checkout.

Everything else about the package is in `pyproject.toml`, which has no field for these folders.
"""

from __future__ import annotations

import tempfile

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.egg_info import egg_info

_MADE = tempfile.TemporaryDirectory(prefix="downpour-build-")  # removed when the process ends


class Build(build):
    """Builds outside the checkout, unless the command line names a folder."""

    def initialize_options(self) -> None:
        """Set the folder; the command line is read afterwards."""
        super().initialize_options()
        self.build_base = _MADE.name


class EggInfo(egg_info):
    """Gathers metadata there, too."""

    def initialize_options(self) -> None:
        """Set the folder; the command line is read afterwards."""
        super().initialize_options()
        self.egg_base = _MADE.name


setup(cmdclass={"build": Build, "egg_info": EggInfo})
