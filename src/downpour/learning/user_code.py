"""The user's code: the files that belong to it, and the packages that it needs.

A network's results follow from its factory's module and from the modules of the same project that
this imports. We find the files by reading `import` statements, without importing. So every machine
finds the same ones under the same names: paths from the root of the project. For an installed
module, only its own package counts. A process goes on with the code that it has imported, so its
digests are those of the last look before the import.

Packages are compared, not shipped, and that needs no imports either: names come from `import`
statements, versions from pip's records of installed packages.
"""

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import metadata
from itertools import chain, takewhile
from pathlib import Path

from downpour.base.errors import OtherCode, SpecError
from downpour.core.spec import Spec
from downpour.learning.allowlist import INSTALLED, check_factory, source_file

_DIGITS = 16


_read: dict[str, Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The files that a factory is made of: contents by path from the project's root.

    `is_installed` says whether the root is a folder of installed packages. A name that is no
    `package.module:factory` has no files.
    """

    files: Mapping[str, bytes]
    is_installed: bool = False

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each file."""
        return {path: digest_of(content) for path, content in self.files.items()}


def digest_of(content: bytes) -> str:
    """Return a file's digest, as the resolved spec has it."""
    return sha256(content).hexdigest()[:_DIGITS]


def code_of(field: str, name: str) -> Mapping[str, str]:
    """Return the digest of each of a factory's files, as this process runs it.

    Only a `name` of the form `package.module:factory` has files.
    """
    if name not in _read or name.partition(":")[0] not in sys.modules:
        _read[name] = project_of(field, name).digests
    return _read[name]


def forget() -> None:
    """Read all files from scratch next time, because Python may find others from now on."""
    _read.clear()


def check_code(field: str, name: str, expected: Mapping[str, str]) -> None:
    """Check that this process has the code that the experiment was submitted with."""
    for file, digest in code_of(field, name).items():
        if expected.get(file) != digest:
            raise OtherCode(file)


def fixed_code(factories: Mapping[str, str], asked: Mapping[str, str]) -> dict[str, str]:
    """Return the digests of all files of a spec's factories, by the field that names each."""
    code: dict[str, str] = {}
    for field, name in factories.items():
        imported = code_of(field, name)
        if changed := _difference(imported, project_of(field, name).digests):
            accepted = f"{changed} has changed since this manager read it: restart the manager"
            raise SpecError(field, name, f"{accepted}, and workers without --accept-code")
        code |= imported
    if asked and (file := _difference(asked, code)):
        raise SpecError("code", asked.get(file), f"{file} differs: {code.get(file)}")
    return code


def _difference(one: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    """Return the first file that differs, preferably one that both have; None if none does."""
    files = [*sorted(one.keys() & other.keys()), *sorted(one.keys() ^ other.keys())]
    return next((file for file in files if one.get(file) != other.get(file)), None)


def project_of(field: str, name: str) -> Project:
    """Return the files of a factory as they are now."""
    if ":" not in name:
        return Project(files={})
    module = check_factory(field, name)
    start = source_file(module)
    if start is None:
        return Project(files={})
    depth = module.count(".") + (start.stem == "__init__")
    root = start.parents[depth]
    found = _project_files(root, module, start)
    files = {path.relative_to(root).as_posix(): content for path, content in found}
    return Project(files=dict(sorted(files.items())), is_installed=root.name in INSTALLED)


def _project_files(root: Path, module: str, start: Path) -> Iterator[tuple[Path, bytes]]:
    """Yield the files of a module and of its imports from its project, with their content."""
    within = f"{module.partition('.')[0]}." if root.name in INSTALLED else ""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        wanted = waiting.pop()
        path = start if wanted == module else _path(root, wanted)
        if wanted in seen or path is None or not f"{wanted}.".startswith(within):
            continue
        seen.add(wanted)
        content = path.read_bytes()
        yield path, content
        waiting += [".".join(wanted.split(".")[:n]) for n in range(1, wanted.count(".") + 1)]
        if path.suffix == ".py":
            waiting += imports_of(content, wanted, is_package=path.stem == "__init__")


def _path(root: Path, module: str) -> Path | None:
    place = root.joinpath(*module.split("."))
    candidates = place / "__init__.py", place.with_name(f"{place.name}.py")
    return next((path for path in candidates if path.is_file()), None)


@lru_cache(maxsize=2048)
def imports_of(content: bytes, module: str, *, is_package: bool) -> tuple[str, ...]:
    """Return the names that a file may import; some are no modules, or of other projects.

    Remembered, because a submission asks several times, and to parse 50 files takes 0.1 s.
    """
    found: list[str] = []
    for node in _nodes(content):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            package = module.split(".")[: None if is_package else -1]
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            found += [origin, *(f"{origin}.{alias.name}".lstrip(".") for alias in node.names)]
    return tuple(found)


def _nodes(content: bytes) -> Iterator[ast.AST]:
    """Yield all that a file says; nothing if it cannot be parsed, which the import will report."""
    with suppress(SyntaxError, ValueError, RecursionError):
        yield from ast.walk(ast.parse(content))


def variables_of(project: Project) -> tuple[str, ...]:
    """Return the names of the environment variables that a project's files read."""
    return tuple(sorted({name for content in project.files.values() for name in _read_in(content)}))


def _read_in(content: bytes) -> Iterator[str]:
    for node in _nodes(content):
        match node:
            case (
                ast.Subscript(value=place, slice=ast.Constant(value=str(name)), ctx=ast.Load())
                | ast.Call(
                    func=ast.Attribute(value=place, attr="get"),
                    args=[ast.Constant(value=str(name)), *_],
                )
            ) if _last_name(place) == "environ":
                yield name
            case ast.Call(func=called, args=[ast.Constant(value=str(name)), *_]) if (
                _last_name(called) == "getenv"
            ):
                yield name
            case _:
                pass


def _last_name(node: ast.expr) -> str:
    return str(getattr(node, "attr", getattr(node, "id", "")))


_OWN = __name__.partition(".")[0]
_ALWAYS = "torch"
_NAMES_MAX = 3


def versions_of(spec: Spec) -> dict[str, str]:
    """Return the versions here of the packages that a spec's trained project imports, and of torch.

    They are by the names of distributions, without a build's addition after "+": numeric classes
    tell builds apart. A spec without the user's own code has none. Imports of a dataset's factory
    alone do not count, because a worker reads the arrays that the factory has made.
    """
    if not spec.trains_own_code:
        return {}
    names = {_ALWAYS, *imported_by(spec)}
    found = {name: _distribution(name) for name in names - sys.stdlib_module_names - {_OWN}}
    versions = {name: _version(name) for name in filter(None, found.values())}
    return {name: version for name, version in sorted(versions.items()) if version}


def imported_by(spec: Spec) -> set[str]:
    """Return the top-level names that a spec's trained project imports and does not have itself."""
    project, found = project_of(*spec.trained_code), set[str]()
    for path, content in project.files.items():
        module = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        names = imports_of(content, module, is_package=path.endswith("__init__.py"))
        found |= set(map(_top, names))
    return found - _tops(project) - {""}


def package_imports(spec: Spec) -> tuple[str, ...]:
    """Return what a spec's trained module imports first from packages: `module` or `module:name`.

    Python makes these imports before any other statement of the project, which might change what an
    import finds or does (`sys.path`, the environment).
    """
    if not spec.trains_own_code:
        return ()
    project, module = project_of(*spec.trained_code), spec.trained_code[1].partition(":")[0]
    parts = module.split(".")
    folders = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    paths = [*(f"{folder}/__init__.py" for folder in folders), f"{folders[-1]}.py"]
    first = takewhile(
        lambda name: _top(name) not in _tops(project),
        _imports_at_head(project.files[path] for path in paths if path in project.files),
    )
    return tuple(name for name in first if _top(name) not in {*sys.stdlib_module_names, _OWN})


def _imports_at_head(contents: Iterable[bytes]) -> Iterator[str]:
    """Yield the imports of files that Python runs one after the other, up to another statement."""
    with suppress(SyntaxError, ValueError, RecursionError):  # the import itself reports the error
        for node in chain.from_iterable(ast.parse(content).body for content in contents):
            match node:
                case ast.Import(names=names):
                    yield from (alias.name for alias in names)
                case ast.ImportFrom(module=str(module), names=names, level=0):
                    yield from (f"{module}:{alias.name}" for alias in names)
                case ast.Expr(value=ast.Constant()):  # the docstring
                    pass
                case _:
                    return


def _top(name: str) -> str:
    return name.partition(":")[0].partition(".")[0]


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


def _tops(project: Project) -> set[str]:
    return {path.partition("/")[0].removesuffix(".py") for path in project.files}


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
