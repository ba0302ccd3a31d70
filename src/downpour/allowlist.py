"""Which Python functions a spec may name: those of registered families, and of allowed prefixes.

A spec travels from machine to machine, so a `package.module:factory` in it must never be able to
call whatever happens to be installed. A factory is accepted where its module lies under an allowed
prefix and it was defined there, not merely imported; the environment variable `DOWNPOUR_ALLOW`
(prefixes with commas between them) adds prefixes on the machine that sets it. This module alone
reads that variable.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from downpour.blame import told
from downpour.errors import SpecError

VARIABLE = "DOWNPOUR_ALLOW"
OWN_PREFIXES = ("downpour.datasets", "downpour.models")

_FACTORY = re.compile(r"^([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)$")


def allowed_prefixes() -> tuple[str, ...]:
    """Return the module prefixes that factories may come from, on this machine."""
    added = (part.strip().rstrip(".") for part in os.environ.get(VARIABLE, "").split(","))
    return (*OWN_PREFIXES, *(part for part in added if part))


def check_factory(field: str, name: str) -> str:
    """Return the module of a `package.module:factory` without importing anything.

    Raises:
        SpecError: it is not of that form, or its module is under no allowed prefix.
    """
    match = _FACTORY.match(name)
    if match is None:
        raise SpecError(field, name, "a factory is named package.module:factory")
    if not _is_allowed(match[1]):
        raise _not_allowed(field, name)
    return match[1]


def load_factory(field: str, name: str) -> Callable[..., Any]:
    """Import and return the factory that a spec's field names.

    Raises:
        SpecError: it is not allowed, cannot be imported, or is no function or class of its module.
    """
    module_name = check_factory(field, name)
    try:
        factory = getattr(importlib.import_module(module_name), name.partition(":")[2])
    except Exception as error:
        raise SpecError(field, name, f"cannot be imported: {told(error)}") from error
    if not callable(factory):
        raise SpecError(field, name, "is not callable; a function that returns it is needed")
    if not _is_allowed(getattr(factory, "__module__", "") or ""):
        raise _not_allowed(field, name)
    return factory  # type: ignore[no-any-return]


def source_file(module_name: str) -> Path | None:
    """Return the file an allowed module is read from, where it has one."""
    try:
        found = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        return None
    origin = found.origin if found and found.has_location else None
    return Path(origin) if origin else None


def _is_allowed(module_name: str) -> bool:
    return any(
        module_name == prefix or module_name.startswith(prefix + ".")
        for prefix in allowed_prefixes()
    )


def _not_allowed(field: str, name: str) -> SpecError:
    allowed = ", ".join(allowed_prefixes())
    return SpecError(field, name, f"allowed are modules under {allowed}; {VARIABLE} adds to them")
