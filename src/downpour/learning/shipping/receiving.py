"""A worker takes a bundle: it checks, unpacks and imports it.

The worker's own files count where they are the ones that were submitted. Else it takes the bundle,
if it accepts code. In either case, `check_code` compares the files with the experiment's digests
before the worker imports any.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from downpour.base.errors import FileCorrupt, FileMissing, SpecError, UnfitWorker, listed
from downpour.core.spec import Spec
from downpour.files.store import Store, layout
from downpour.files.store.shared_directory import own_folder
from downpour.host.machine import note_use, remove_unused
from downpour.host.paths import FolderLock
from downpour.learning import user_code
from downpour.learning.shipping.bundle import (
    BYTES_MAX,
    PACKED_BYTES_MAX,
    BadBundle,
    Bundle,
)
from downpour.learning.user_code import code_of

log = logging.getLogger(__name__)


def _folder_of(spec: Spec, digest: str, store: Store) -> Path:
    """Return this machine's folder with the files of an experiment's bundle.

    The folder appears whole or not at all. We verify it before each use, because a person may have
    edited it, and replace an edited one. A folder without use for a month is removed. If a process
    cannot write to the machine's own folder, as in some containers, it has a temporary one.
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
        bundle = there if there is not None and there.digest == digest else _read(digest, store)
        bundle.check(spec.code)
        if bundle is there:
            note_use(folder)
        else:
            remove_unused(path for path in place.iterdir() if path != folder)
            _write(bundle, folder)
    return folder


def _read(digest: str, store: Store) -> Bundle:
    packed = store.read_unchecked(layout.bundle_name(digest), limit_bytes=PACKED_BYTES_MAX + 1)
    return Bundle.unpacked(packed, digest)


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

    The folder comes first in `sys.path`, which `multiprocessing` hands to the processes that it
    spawns. Before it comes and after it goes, the process forgets what it has imported under the
    bundle's top-level names, so the next import reads the files that Python then finds. Objects
    made before keep the code that made them.
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
