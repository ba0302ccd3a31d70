"""Writes a table of the licenses that installed packages state."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

UNKNOWN = "not stated"

BUNDLED = {
    "type": "library",
    "bom-ref": "pkg:npm/uplot@1.6.32",
    "name": "uplot",
    "version": "1.6.32",
    "purl": "pkg:npm/uplot@1.6.32",
    "licenses": [{"license": {"id": "MIT"}}],
}
"""The one library that is part of our wheel, as CycloneDX lists it; see NOTICE."""


def license_of(package: Distribution) -> str:
    """Return what the metadata says: an expression, or classifiers, or the first line of a text."""
    said = package.metadata
    if "License-Expression" in said:
        return said["License-Expression"]
    prefix = "License :: "
    classes = [value for value in said.get_all("Classifier", []) if value.startswith(prefix)]
    if names := [value.rsplit(" :: ", 1)[1] for value in classes if value.count(" :: ") > 1]:
        return ", ".join(names)
    text = said["License"].strip() if "License" in said else ""
    return text.splitlines()[0].strip() if text else UNKNOWN


def license_table(packages: Iterable[Distribution]) -> str:
    """Return a Markdown table: name, version and license of each package, and of what we bundle."""
    found = {
        package.metadata["Name"]: (package.version, license_of(package)) for package in packages
    }
    found["uPlot (in the wheel)"] = (str(BUNDLED["version"]), "MIT")
    rows = [
        f"| {name} | {found[name][0]} | {found[name][1].replace('|', '/')} |"
        for name in sorted(found, key=str.lower)
    ]
    return "\n".join(["| package | version | license |", "|---|---|---|", *rows, ""])


def add_licenses(components: Iterable[dict[str, Any]], packages: Iterable[Distribution]) -> None:
    """Give each component without a license the one that its package states in other words."""
    found = {package.metadata["Name"]: license_of(package) for package in packages}
    for component in components:
        if "licenses" not in component:
            name = found.get(component["name"], UNKNOWN)
            component["licenses"] = [{"license": {"name": name}}]


def installed_in(folder: Path) -> list[Distribution]:
    """Return the packages of an environment, which need not be the one that runs this."""
    [site] = folder.glob("lib/python*/site-packages")
    return list(distributions(path=[str(site)]))
