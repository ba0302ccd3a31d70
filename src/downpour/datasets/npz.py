"""A `.npz` file of numeric arrays, such as those of MedMNIST; never one that needs pickle."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from downpour.datasets.layout import from_names
from downpour.datasets.source import Arrays, Found, fingerprint, named_path
from downpour.errors import SpecError
from downpour.spec import Spec


class Npz:
    """The arrays named in `layout`; a validation part (`val_...`) is left alone."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a file that is not there, or is no zip file."""
        path = named_path(spec, data_dir)
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise SpecError("data_path", spec.data_path, "is not a .npz file")

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> Found:
        """Find the file that `data_path` names."""
        del downloads
        self.check(spec, data_dir)
        path = named_path(spec, data_dir)
        return Found(fingerprint=fingerprint([path]), read=lambda: _read(path))


def _read(path: Path) -> Arrays:
    try:
        with np.load(path, allow_pickle=False) as archive:
            wanted = [name for name in archive.files if not name.startswith("val_")]
            named = {name: archive[name] for name in wanted}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise SpecError("data_path", path.name, f"cannot be read: {error}") from None
    return from_names(named, field="data_path", value=path.name)
