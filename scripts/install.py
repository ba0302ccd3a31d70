"""`python scripts/install.py --editable '.[dev]'` installs into the environment of this Python.

It takes uv, which links files that it has unpacked before; pip unpacks and compiles them each time.
uv doesn't read pip's configuration, so this hands it over. Where uv can't be had, or pip has a
setting that uv lacks, pip installs.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping

PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
UV = [sys.executable, "-m", "uv"]
SECTIONS = ("global", "install", ":env:")
"""Sections of pip's configuration that `pip install` reads; later ones win."""

VARIABLES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
"""The variable of uv for each setting. An index may have a password, so no options."""

WITHOUT_EFFECT = {
    *("cache-dir", "compile", "disable-pip-version-check", "exists-action", "log", "no-color"),
    *("no-compile", "no-input", "no-python-version-warning", "no-warn-script-location"),
    *("prefer-binary", "progress-bar", "quiet", "require-virtualenv", "retries"),
    *("root-user-action", "verbose"),
}
"""Settings that don't decide which packages are installed, or from where."""


def pip_settings(lines: Iterable[str]) -> dict[str, list[str]]:
    """Return the settings that `pip config list` prints for `pip install`, each with its values."""
    found: dict[str, dict[str, list[str]]] = {section: {} for section in SECTIONS}
    for line in lines:
        key, _, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if section in found:
            found[section][name] = str(ast.literal_eval(value)).split()
    return {name: values for settings in found.values() for name, values in settings.items()}


def for_uv(settings: Mapping[str, list[str]]) -> dict[str, str] | None:
    """Return variables with which uv installs what pip would; None if there are none."""
    if settings.keys() - VARIABLES.keys() - WITHOUT_EFFECT:
        return None
    # pip compares the versions of all indexes, too. Among equal ones, uv takes an extra index's.
    given = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, values in settings.items():
        if name in VARIABLES:
            given[VARIABLES[name]] = ("," if name == "find-links" else " ").join(values)
    return given


def install_with_uv(words: list[str]) -> bool:
    """Try to install with uv; False leaves it to pip."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=False)
    given = for_uv(pip_settings(listed.stdout.splitlines()))
    if listed.returncode or given is None:
        return False
    # One attempt: without a network, pip may still find the packages on this machine.
    fetch = [*PIP, "install", "--quiet", "--no-compile", "--retries=0", "uv>=0.9"]
    if subprocess.run(fetch, check=False, capture_output=True).returncode:
        return False
    line = [*UV, "pip", "install", "--quiet", f"--python={sys.executable}", *words]
    return subprocess.run(line, env=given | os.environ, check=False).returncode == 0


def main(words: list[str]) -> int:
    """Install what `pip install` would for these words; returns the exit status."""
    if install_with_uv(words):
        return 0
    print("uv can't install this here, so pip does, which takes longer", file=sys.stderr)
    # Python compiles modules when it imports them, and it imports few of them.
    line = [*PIP, "install", "--quiet", "--no-compile", *words]
    return subprocess.run(line, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
