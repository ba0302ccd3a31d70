"""What the source distribution and the wheel hold: the package, its licenses, and nothing else."""

from __future__ import annotations

import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

PACKAGES = ("src/downpour/", "src/downpour_lab/")
BESIDE_SOURCES = {
    *("LICENSE", "NOTICE", "README.md", "pyproject.toml", "setup.py", "MANIFEST.in"),
    *("PKG-INFO", "setup.cfg"),  # made
}
METADATA = {
    *("METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"),
    *("licenses/LICENSE", "licenses/NOTICE"),
}


def differences(held: Iterable[str], wanted: set[str]) -> list[str]:
    """Return a line for each file that an archive lacks, or holds beyond what it should."""
    names = set(held)
    lacking = [f"lacks {name}" for name in sorted(wanted - names)]
    return lacking + [f"holds {name}, too" for name in sorted(names - wanted)]


def check_sdist(sdist: Path, tracked: set[str]) -> list[str]:
    """Compare a `.tar.gz` with the paths that Git tracks; returns what is wrong with it."""
    top = sdist.name.removesuffix(".tar.gz") + "/"
    with tarfile.open(sdist) as archive:
        held = [member.name.removeprefix(top) for member in archive if member.isfile()]
    return differences(held, _package(tracked) | BESIDE_SOURCES)


def check_wheel(wheel: Path, tracked: set[str]) -> list[str]:
    """Compare a wheel with the paths that Git tracks; returns what is wrong with it."""
    info = "-".join(wheel.name.split("-")[:2]) + ".dist-info/"
    with zipfile.ZipFile(wheel) as archive:
        held = archive.namelist()
    code = {path.removeprefix("src/") for path in _package(tracked)}
    return differences(held, code | {info + name for name in METADATA})


def _package(tracked: set[str]) -> set[str]:
    return {path for path in tracked if path.startswith(PACKAGES)}
