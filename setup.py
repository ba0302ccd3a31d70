"""Builds in temporary folders, so that `pip wheel .` leaves nothing in the checkout.

It also replaces README's pictures in the description by their text: a package index has no `docs/`.
Everything else about the package is in `pyproject.toml`, which has no field for these.
"""

from __future__ import annotations

import re
import tempfile

from setuptools import setup
from setuptools.command.build import build
from setuptools.command.egg_info import egg_info

_MADE = tempfile.TemporaryDirectory(prefix="downpour-build-")  # removed when the process ends
_PICTURE = re.compile(r"!\[([^]]*)\]\(docs/[^)]*\)")


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

    def run(self) -> None:
        """Write the metadata."""
        about = self.distribution.metadata
        about.long_description = _PICTURE.sub(r"\1", about.long_description)
        super().run()


setup(cmdclass={"build": Build, "egg_info": EggInfo})
