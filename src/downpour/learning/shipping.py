"""Ships a task's own code to the workers, as one file in the experiment's folder: a bundle.

Two managers make the same JSON of the same files, so its SHA-256 names the content. The compressed
bytes may differ between builds of zlib, and nothing depends on them. docs/internals/decisions.md
("Code travels as one bundle") lists the limits and what a reader checks.
"""

import atexit
import gzip
import importlib
import json
import logging
import os
import re
import shutil
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Self

from downpour.base.errors import FileCorrupt, FileMissing, SpecError, UnfitWorker, listed
from downpour.core.spec import Spec
from downpour.files.store import Store, layout
from downpour.files.store.shared_directory import own_folder
from downpour.host.machine import note_use, remove_unused
from downpour.host.paths import FolderLock
from downpour.learning import user_code
from downpour.learning.allowlist import in_installed_folder
from downpour.learning.user_code import code_of, digest_of, project_of

log = logging.getLogger(__name__)

BYTES_MAX = 8 * 2**20
"""How long the JSON may be."""
FILES_MAX = 1000
PACKED_BYTES_MAX = BYTES_MAX + 2**16
"""How long the compressed file may be: what does not shrink grows by a few bytes."""

_FORMAT = 1
_LEVEL = 6
_GZIP = 16 + zlib.MAX_WBITS
_PATH_LETTERS_MAX = 200
# Importable by name, and alike on every file system: no letters that one may spell in two ways.
_PATH = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/)*[A-Za-z_][A-Za-z0-9_]*\.py")
_OWN = __name__.partition(".")[0]
_PYTHONS = sys.stdlib_module_names | {"sitecustomize", "usercustomize"}
"""The last two are imported by every Python process that finds them."""
_NEEDED = {"PIL", "filelock", "msgspec", "numpy", "obstore", "psutil", "pydantic"}
_NEEDED |= {"pydantic_core", "rich", "setproctitle", "tenacity", "thrift", "tomli_w", "torch"}
_NEEDED |= {"torchvision", "typer", "xxhash"}
"""Downpour's imports, wherever they are installed: a developer's torch is in no usual folder."""


class BadBundle(Exception):
    """Files that cannot be shipped, or bytes that are no bundle; says why in one line."""


@dataclass(frozen=True)
class Bundle:
    """The files of a project; `of` and `unpacked` check what they make one of.

    `files` are contents by path from the project's root, with slashes.
    """

    files: Mapping[str, bytes]

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Self:
        """Make a bundle of files."""
        _check_paths(files)
        bundle = cls(dict(sorted(files.items())))
        _check_length(len(bundle.content))
        return bundle

    @classmethod
    def unpacked(cls, packed: bytes, digest: str) -> Self:
        """Read the bundle with a SHA-256 from a file's bytes."""
        content = _inflated(packed)
        if sha256(content).hexdigest() != digest:
            raise BadBundle("it differs from the submitted code: its SHA-256 is another one")
        bundle = cls.of(_files_in(content))
        if bundle.content != content:
            raise BadBundle("its JSON is not canonical")
        return bundle

    @cached_property
    def content(self) -> bytes:
        """The canonical JSON."""
        texts = {path: _text(path, content) for path, content in self.files.items()}
        stated = {"files": texts, "format": _FORMAT}
        text = json.dumps(stated, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return text.encode()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the JSON, in 64 hexadecimal digits."""
        return sha256(self.content).hexdigest()

    def packed(self) -> bytes:
        """Return the bytes of the file."""
        return gzip.compress(self.content, _LEVEL, mtime=0)

    def check(self, code: Mapping[str, str]) -> None:
        """Check that every file is one of a submission, and that none replaces a package here."""
        for path, content in self.files.items():
            if code.get(path) != digest_of(content):
                raise BadBundle(f"{path} has changed since the submission")
        for name in sorted({_top_level(path) for path in self.files}):
            if in_installed_folder(name):
                accepted = f"{name} is also an installed package, which a bundle never replaces"
                raise BadBundle(accepted)


def _check_paths(paths: Iterable[str]) -> None:
    folded = set[str]()
    for count, path in enumerate(paths, start=1):
        shown = repr(path[:80])
        if count > FILES_MAX:
            raise BadBundle(f"it has more than {FILES_MAX} files")
        if len(path) > _PATH_LETTERS_MAX or not _PATH.fullmatch(path):
            raise BadBundle(f"{shown} is not the path of a Python module in a project")
        if owner := _owner(_top_level(path)):
            raise BadBundle(f"{shown} would replace {owner}")
        if path.casefold() in folded:
            raise BadBundle(f"{shown} differs from another file only by capitals")
        folded.add(path.casefold())
    if not folded:
        raise BadBundle("it has no files")


def _owner(name: str) -> str:
    """Say whose a top-level name is; nothing if it may be a project's."""
    if name in _PYTHONS:
        return "a module of Python's own"
    if name in _NEEDED:
        return "a package that Downpour needs"
    return "a module of Downpour's own" if name == _OWN else ""


def _check_length(length_bytes: int) -> None:
    if length_bytes > BYTES_MAX:
        raise BadBundle(f"its files have more than {BYTES_MAX // 2**20} MiB")


def _top_level(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def _text(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadBundle(f"{path} is not UTF-8") from None


def _inflated(packed: bytes) -> bytes:
    if len(packed) > PACKED_BYTES_MAX:
        raise BadBundle(f"its file has more than {PACKED_BYTES_MAX} bytes")
    inflater = zlib.decompressobj(_GZIP)
    try:
        content = inflater.decompress(packed, BYTES_MAX + 1)
    except zlib.error as error:
        raise BadBundle(f"its file is damaged: {error}") from None
    _check_length(len(content))
    if not inflater.eof or inflater.unused_data:
        raise BadBundle("its file is damaged: it ends too soon or too late")
    return content


def _files_in(content: bytes) -> dict[str, bytes]:
    try:
        stated: Any = json.loads(content.decode())
        files = stated["files"]
        return {path: text.encode() for path, text in files.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise BadBundle("its JSON does not name files and their text") from None


def bundle_of(spec: Spec) -> Bundle | None:
    """Return the bundle of a spec's projects; None if it names no code of a project."""
    projects = (project_of(field, name) for field, name in spec.factories.items())
    files: dict[str, bytes] = {}
    for project in projects:
        files |= {} if project.is_installed else project.files
    if not files:
        return None
    bundle = Bundle.of(files)
    bundle.check(spec.code)
    return bundle


def _folder_of(spec: Spec, digest: str, store: Store) -> Path:
    """Return this machine's folder with the files of an experiment's bundle.

    We verify it before each use, because a person may have edited it. If a process cannot write to
    the machine's own folder, as in some containers, it has a temporary one.
    """
    own = own_folder() / "code"
    try:
        return _unpacked(own, spec, digest, store)
    except OSError as error:
        log.warning("no copy of the code in %s: %s", own, error.strerror or error)
    return _unpacked(_temporary(), spec, digest, store)


@cache
def _temporary() -> Path:
    """Return a folder of this process, which is removed when the process ends."""
    folder = Path(mkdtemp(prefix="downpour-code-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _unpacked(place: Path, spec: Spec, digest: str, store: Store) -> Path:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = place / digest
    with FolderLock(place / f".{digest}.lock"):
        there = _held(folder)
        if there is not None and there.digest == digest:
            bundle = there
        else:
            name = layout.bundle_name(digest)
            packed = store.read_unchecked(name, limit_bytes=PACKED_BYTES_MAX + 1)
            bundle = Bundle.unpacked(packed, digest)
        bundle.check(spec.code)
        if bundle is there:
            note_use(folder)
        else:
            remove_unused(path for path in place.iterdir() if path != folder)
            _write(bundle, folder)
    return folder


def _held(folder: Path) -> Bundle | None:
    """Return the bundle of all modules in a folder; None if it has none, or others."""
    try:
        return Bundle.of(dict(_modules(folder)))
    except (OSError, BadBundle):
        return None


def _modules(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a folder's modules by path; a link is none, and stays unread."""
    left = BYTES_MAX
    for at, folders, names in os.walk(folder):
        for name in [*folders, *names]:
            path = Path(at, name)
            if path.is_symlink():
                raise BadBundle(f"{name} is a link")
            if name.endswith(".py") and name in names:
                left -= path.stat().st_size
                if left < 0:
                    raise BadBundle(f"{name} is too long")
                yield path.relative_to(folder).as_posix(), path.read_bytes()


def _write(bundle: Bundle, folder: Path) -> None:
    part = Path(mkdtemp(prefix=".", suffix=".partial", dir=folder.parent))
    try:
        for name, content in bundle.files.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        if folder.is_symlink() or folder.is_file():
            folder.unlink()
        elif folder.exists():
            shutil.rmtree(folder)
        part.rename(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


_used: dict[Path, Collection[str]] = {}
"""The folder that is used, if any, and the top-level names in it."""


def folder_in_use() -> Path | None:
    """Return the folder of the bundle that this process imports from."""
    return next(iter(_used), None)


def use(folder: Path) -> None:
    """Import from a bundle's folder from now on, instead of any other one.

    Before it comes and after it goes, the process forgets what it has imported under the bundle's
    top-level names, so the next import reads the files that Python then finds.
    """
    if folder == folder_in_use():
        return
    leave()
    entries = [path for path in folder.iterdir() if path.name != "__pycache__"]
    names = _used[folder] = {path.name.removesuffix(".py") for path in entries}
    _forget(names)
    sys.path.insert(0, str(folder))
    _look_anew()


def leave() -> None:
    """Import only the modules that this machine has without bundles from now on."""
    while _used:
        folder, names = _used.popitem()
        _forget(names)
        with suppress(ValueError):  # the user's code has removed it
            sys.path.remove(str(folder))
        _look_anew()


def _forget(names: Collection[str]) -> None:
    """Forget the modules under these names, and the submodules that only other versions have."""
    for module in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[module]


def _look_anew() -> None:
    importlib.invalidate_caches()
    user_code.forget()


_REFUSED = "this worker cannot use the experiment's code"
REMEDY = "; start this worker with --accept-code to use the manager's code"


def settle_code(spec: Spec, store: Store, *, accepts: bool) -> str:
    """Have this process find the code that an experiment was submitted with, perhaps in a bundle.

    Returns what to say in addition if its own code turns out to be another; usually nothing.
    """
    former = folder_in_use()
    if former is not None and former.name != spec.code_bundle:
        leave()
    if spec.code_bundle is None or folder_in_use() is not None or not _needs_bundle(spec):
        return ""
    if not accepts:
        return REMEDY
    try:
        use(_folder_of(spec, spec.code_bundle, store))
    except (BadBundle, FileMissing, FileCorrupt) as error:
        raise UnfitWorker(f"{_REFUSED}: {error}") from error
    except OSError as error:
        raise UnfitWorker(f"{_REFUSED}: no copy here: {error.strerror or error}") from error
    log.warning("uses the code that the experiment brought: %s", listed(sorted(spec.code)))
    return ""


def _needs_bundle(spec: Spec) -> bool:
    """Whether this machine lacks a file that the experiment was submitted with.

    False where a factory is not allowed: then nothing is read, and the import says so. A dataset
    matters only where its code can be looked at, because the worker reads what it has made.
    """
    here: dict[str, str] = {}
    for field, name in spec.factories.items():
        try:
            here |= code_of(field, name)
        except SpecError:
            if field != "dataset":
                return False
    return any(here.get(file) != digest for file, digest in spec.code.items())
