"""Decides which Python functions a spec may name: registered ones, and those with allowed prefixes.

A spec is sent from machine to machine, so a `package.module:factory` in it must not be able to call
every function that is installed. A factory is accepted if its module is under an allowed prefix and
defines it, not merely imports it. The environment variable `DOWNPOUR_ALLOW` (prefixes separated by
commas) sets the prefixes for its machine. `DOWNPOUR_CODE` names folders where such modules are
looked for, after all of Python's own. Only this module reads the two. Downpour's own datasets and
networks are registered by name, and no function of this package is a factory, even if the variable
names it.
"""

import importlib
import importlib.util
import os
import re
import socket
import sys
from collections.abc import Callable, Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from downpour.base.errors import SpecError
from downpour.host.process import without_gc
from downpour.learning.blame import describe_error

VARIABLE = "DOWNPOUR_ALLOW"
FOLDERS = "DOWNPOUR_CODE"
INSTALLED = {"site-packages", "dist-packages"}
"""Folders whose modules every process finds on its own."""

_KINDS = {"task": "Class"}
"""How the last part of a name is called, by field; all others are factories."""
_OWN = __name__.partition(".")[0]
_MODULE = re.compile(r"^[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*$")
_FACTORY = re.compile(r"^([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)$")


def allowed_prefixes() -> tuple[str, ...]:
    """Return the module prefixes that factories may come from, on this machine."""
    named = (part.strip().rstrip(".") for part in os.environ.get(VARIABLE, "").split(","))
    return tuple(part for part in named if part)


def allow(*modules: str) -> None:
    """Let specs name the definitions of these modules, in this process and its child processes.

    The environment variable `DOWNPOUR_ALLOW` does the same. A name stands for the modules under it,
    too. Processes of this machine find a module where this one does.

    Raises:
        SpecError: one is no name of a module.
    """
    allow_in([_place(module) for module in modules if isinstance(module, str)], modules)


def allow_in(folders: Iterable[Path | None], modules: Iterable[str]) -> None:
    """Do what `allow` does, and look for modules in these folders as well, after all others."""
    prefixes = list(modules)
    for prefix in prefixes:
        if not isinstance(prefix, str) or not _MODULE.match(prefix) or prefix.endswith(".py"):
            accepted = "must be a module's name, such as lab or lab.nets, without .py"
            raise SpecError("allow", prefix, accepted)
    allowed = [*allowed_prefixes(), *prefixes]
    os.environ[VARIABLE] = ",".join(dict.fromkeys(allowed))
    known = [*_folders(), *(str(folder.absolute()) for folder in folders if folder)]
    os.environ[FOLDERS] = os.pathsep.join(dict.fromkeys(known))


def allow_beside(folder: Path, names: Iterable[str]) -> None:
    """Allow the modules of `package.module:factory` names that are in a folder.

    Users who start a spec on this machine run their own code, as `python lab.py` does. If Python
    finds another module of that name first, this allows neither.
    """
    for name in names:
        match = _FACTORY.match(name)
        if match and _is_found_in(folder, top := match[1].partition(".")[0]):
            allow_in([folder], [top])


def environment() -> dict[str, str]:
    """Return the variables with which another process allows what this one does."""
    return {name: os.environ[name] for name in (VARIABLE, FOLDERS) if name in os.environ}


def check_factory(field: str, name: str) -> str:
    """Return the module of a `package.module:factory` without importing anything."""
    match = _FACTORY.match(name)
    if match is None or match[1].endswith(".py"):
        raise SpecError(field, name, _form(field, name))
    if not _is_allowed(match[1]):
        raise _not_allowed(field, name)
    # At the end: a file of these folders must not stand in for a module that is installed.
    sys.path.extend(folder for folder in _folders() if folder not in sys.path)
    return match[1]


def load_factory(
    field: str, name: str, is_ready: Callable[[object], bool] = lambda _: False
) -> Callable[..., Any]:
    """Import and return the factory that a spec's field names.

    An object of the module that `is_ready` is returned, too. Its class may be of any library,
    because we don't call it.
    """
    module_name = check_factory(field, name)
    try:
        with without_gc():
            factory = getattr(importlib.import_module(module_name), name.partition(":")[2])
    except Exception as error:
        said = f"cannot be imported: {describe_error(error)}"
        if isinstance(error, ModuleNotFoundError) and _lies_under(module_name, str(error.name)):
            places = " and ".join(["its own folders", *_folders()])
            said += f"; Python looked in {places}: {FOLDERS}=FOLDER adds one"
        raise SpecError(field, name, said) from error
    if is_ready(factory):
        return factory  # type: ignore[no-any-return]
    if not callable(factory):
        raise SpecError(field, name, "is not callable; name a function that returns it")
    # An allowed module may import, say, `os.system`: a factory must also be defined in one.
    if not _is_allowed(getattr(factory, "__module__", "") or ""):
        raise _not_allowed(field, name)
    return factory  # type: ignore[no-any-return]


def source_file(module_name: str) -> Path | None:
    """Return the file of an allowed module; None if it has none."""
    try:
        module = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):
        return None
    origin = module.origin if module and module.has_location else None
    return Path(origin) if origin else None


def in_installed_folder(name: str) -> bool:
    """Whether a folder of installed packages has a top-level module, found first or not."""
    folders = [folder for folder in sys.path if Path(folder).name in INSTALLED]
    return PathFinder.find_spec(name, folders) is not None


def _place(module: str) -> Path | None:
    """Return the folder that holds a module's project; None if it is installed, or not found."""
    top = source_file(module.partition(".")[0])
    if top is None:
        return None
    folder = top.parent.parent if top.stem == "__init__" else top.parent
    return None if folder.name in INSTALLED else folder


def _is_found_in(folder: Path, top: str) -> bool:
    """Whether Python finds a top-level module in this folder, and not in another one first."""
    files = [folder / f"{top}.py", folder / top / "__init__.py"]
    if top in sys.stdlib_module_names or not any(file.is_file() for file in files):
        return False
    first = source_file(top)
    return first is None or first.resolve() in [file.resolve() for file in files]


def _folders() -> tuple[str, ...]:
    named = os.environ.get(FOLDERS, "").split(os.pathsep)
    return tuple(str(Path(folder).absolute()) for folder in named if folder)


def _is_allowed(module_name: str) -> bool:
    lies_under = [_lies_under(module_name, prefix) for prefix in allowed_prefixes()]
    return any(lies_under) and not _lies_under(module_name, _OWN)


def _lies_under(module_name: str, prefix: str) -> bool:
    return module_name == prefix or module_name.startswith(f"{prefix}.")


def _form(field: str, name: str) -> str:
    """Say how code is named, and what a file's name was probably meant to be."""
    accepted = f"your own {field} needs a name like package.module:{_KINDS.get(field, 'factory')}"
    module, colon, member = name.partition(":")
    meant = f"{module.removesuffix('.py').strip('./').replace('/', '.')}:{member}"
    if colon and meant != name and _FACTORY.match(meant):
        return f"{accepted}, without .py; did you mean {meant}?"
    return f"{accepted}, without .py"


def _not_allowed(field: str, name: str) -> SpecError:
    allowed = f"modules under {', '.join(allowed_prefixes())}" if allowed_prefixes() else "none"
    module = name.partition(":")[0]
    ways = (
        f"`--allow {module}` if a command trains by itself, with {VARIABLE}={module} where the "
        f"cluster of `submit` starts, or with downpour.allow({module!r}) in Python"
    )
    accepted = f"{VARIABLE} allows {allowed} on {socket.gethostname()}; allow it with {ways}"
    if _lies_under(name.partition(":")[0], _OWN):
        accepted = f"a part of Downpour is not a factory; give its {field}s by name alone"
    return SpecError(field, name, accepted)
