"""Remembers from which bundle's folder this process imports, if any.

The folder comes first in `sys.path`, which `multiprocessing` hands to the processes that it spawns.
Before it comes and after it goes, the process forgets what it has imported under the bundle's
top-level names, so the next import reads the files that Python then finds. Objects made before keep
the code that made them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from downpour.learning import factory_code


@dataclass(frozen=True, slots=True)
class _Used:
    folder: Path
    names: frozenset[str]


_used: list[_Used] = []
"""The one that is used, if any."""


def folder_in_use() -> Path | None:
    """Return the folder of the bundle that this process imports from."""
    return _used[0].folder if _used else None


def use(folder: Path) -> None:
    """Import from a bundle's folder from now on, instead of any other one."""
    if folder == folder_in_use():
        return
    leave()
    entries = [path for path in folder.iterdir() if path.name != "__pycache__"]
    names = frozenset(path.name.removesuffix(".py") for path in entries)
    _forget(names)
    sys.path.insert(0, str(folder))
    _used.append(_Used(folder, names))
    _look_anew()


def leave() -> None:
    """Import only the modules that this machine has without bundles from now on."""
    while _used:
        used = _used.pop()
        _forget(used.names)
        with suppress(ValueError):  # the user's code has removed it
            sys.path.remove(str(used.folder))
        _look_anew()


def _forget(names: Collection[str]) -> None:
    """Forget the modules under these names, and the submodules that only other versions have."""
    for module in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[module]


def _look_anew() -> None:
    importlib.invalidate_caches()
    factory_code.forget()
