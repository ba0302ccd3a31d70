"""The packages that a project imports: their versions at submission, and which differ here.

Downpour does not ship them. A network's results may depend on them, so the resolved spec notes the
manager's versions, and each worker compares its own. That needs no imports: names come from
`import` statements, versions from pip's records of installed packages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import metadata

from downpour.core.spec import Spec
from downpour.learning.factory_code import Project, imports_of, project_of, variables_of

_OWN = __name__.partition(".")[0]
_ALWAYS = "torch"
_NAMES_MAX = 3


def versions_of(spec: Spec) -> dict[str, str]:
    """Return the versions here of the packages that a spec's trained project imports, and of torch.

    They are by the names of distributions, without a build's addition after "+": numeric classes
    tell builds apart. A spec without the user's own code has none. Imports of a dataset's factory
    alone do not count, because a worker reads the arrays that the factory has made.

    Raises:
        SpecError: the factory is not on the allow-list.
    """
    if not spec.trains_own_code:
        return {}
    names = {_ALWAYS, *_imported(project_of(*spec.trained_code))}
    found = {name: _distribution(name) for name in names - sys.stdlib_module_names - {_OWN}}
    versions = {name: _version(name) for name in filter(None, found.values())}
    return {name: version for name, version in sorted(versions.items()) if version}


def differences(noted: Mapping[str, str]) -> tuple[str, ...]:
    """Return what differs here from the versions that a manager has noted, a phrase each."""
    here = {name: _version(name) for name in noted}
    return tuple(
        f"{f'{name} {here[name]}' if here[name] else f'no {name}'}, the manager {version}"
        for name, version in noted.items()
        if here[name] != version
    )


def variables_read(spec: Spec) -> tuple[str, ...]:
    """Return a remark on the environment variables that a spec's trained project reads, if any.

    No spec has their values. All processes of a run may have the same ones, so a comparison of
    processes tells nothing.
    """
    names = variables_of(project_of(*spec.trained_code)) if spec.trains_own_code else ()
    listed = f"{', '.join(names[:_NAMES_MAX])}{' and more' if len(names) > _NAMES_MAX else ''}"
    told = f"its code reads {listed} from the environment: other values may give other bytes"
    return (told,) if names else ()


def _imported(project: Project) -> Iterator[str]:
    """Yield the top-level names of the modules that a project imports and does not have itself."""
    own = {path.partition("/")[0].removesuffix(".py") for path in project.files}
    for path, content in project.files.items():
        module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for name in imports_of(content, module, is_package=path.endswith("__init__.py")):
            top = name.partition(".")[0]
            if top and top not in own:
                yield top


def _distribution(module: str) -> str | None:
    """Return the distribution that a module is of; None if it is of none, or of several."""
    if _version(module):  # most are called alike, and to look through all takes half a second
        return module
    found = set(metadata.packages_distributions().get(module, ()))
    return found.pop() if len(found) == 1 else None


def _version(distribution: str) -> str | None:
    """Return the version that is installed; None if none is."""
    try:
        return str(metadata.version(distribution) or "").partition("+")[0] or None
    except (metadata.PackageNotFoundError, ValueError, KeyError):  # the last two: broken metadata
        return None
