"""A `.npz` file of numeric arrays, such as those of MedMNIST; never one that needs pickle.

We read its directory and the headers of its arrays first. So we refuse an encrypted or inconsistent
file, or one too large for the memory, before we read its content.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.host.paths import is_object_store
from downpour.learning.datasets.fetched import check_there
from downpour.learning.datasets.layout import from_names, labelled
from downpour.learning.datasets.room import check_room
from downpour.learning.datasets.source import Arrays, SourceFiles, fingerprint, named_path

_FIELD = "data_path"
_ENCRYPTED = 0x1
_HEAD_BYTES_MAX = 10_000


class Npz:
    """The arrays named in `layout`; a validation part (`val_...`) is left alone."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a file that is not there, is no zip file, or whose arrays cannot be read."""
        if is_object_store(spec.data_path):
            check_there(_FIELD, spec.data_path or "")
            return
        self._checked(spec, data_dir)

    def _checked(self, spec: Spec, data_dir: Path | None) -> Path:
        path = named_path(spec, data_dir)
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise SpecError(_FIELD, spec.data_path, "is not a .npz file")
        _check_heads(path)
        return path

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the file that `data_path` names."""
        del downloads
        path = self._checked(spec, data_dir)
        return SourceFiles(fingerprint=fingerprint([path]), read=lambda: _read(path))

    def read_labelled(self, spec: Spec) -> tuple[Any, Any]:
        """Read x and y of the test part, which may be alone, or of all if there is none."""
        path = self._checked(spec, None)
        return labelled(_named_arrays(path), field=_FIELD, value=path.name)


def _read(path: Path) -> Arrays:
    return from_names(_named_arrays(path), field=_FIELD, value=path.name)


def _named_arrays(path: Path) -> dict[str, Any]:
    with _naming(path), np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files if _is_wanted(name)}


def _is_wanted(name: str) -> bool:
    return not name.startswith("val_")


def _check_heads(path: Path) -> None:
    """Compare the size in each array's header with that of its bytes, and with the free memory."""
    total_bytes = 0
    with _naming(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.flag_bits & _ENCRYPTED:
                raise ValueError(f"{member.filename} is encrypted")
            if _is_wanted(member.filename) and member.filename.endswith(".npy"):
                total_bytes += _checked_bytes(archive, member)
    check_room((total_bytes,), 1, field=_FIELD, value=path.name)


def _checked_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            head = np.lib.format.read_array_header_1_0(file, max_header_size=_HEAD_BYTES_MAX)
        else:
            head = np.lib.format.read_array_header_2_0(file, max_header_size=_HEAD_BYTES_MAX)
        shape, _, dtype = head
        size_bytes = member.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename} needs pickle (allow_pickle=False)")
    needed_bytes = 1
    for length in (*shape, dtype.itemsize):
        needed_bytes *= length
    if needed_bytes != size_bytes or min(shape, default=0) < 0:
        reason = f"{member.filename} claims {needed_bytes} bytes, but holds {size_bytes}"
        raise ValueError(reason)
    return size_bytes


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn an exception about the file into a SpecError of one line that names it."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise anything about damage
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpecError(_FIELD, path.name, f"cannot be read: {reason}") from None
