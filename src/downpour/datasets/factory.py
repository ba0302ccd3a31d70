"""Examples that a function makes: `package.module:factory`, where the allow-list lets it.

The factory is called with `dataset_options` and returns the named arrays of `layout` as a
dictionary, or (x, y) or (x, y, x_test, y_test). Its arrays are kept under a name that follows from
its options and its module's file, so it must return the same ones each time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from downpour.allowlist import check_factory, load_factory, source_file
from downpour.datasets.layout import from_names
from downpour.datasets.source import Arrays, Found, fingerprint
from downpour.errors import SpecError
from downpour.spec import Spec


class Factory:
    """A function on the allow-list."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a name that is not allowed; imports nothing."""
        del data_dir
        check_factory("dataset", spec.dataset)

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> Found:
        """Find the factory's module."""
        del data_dir, downloads
        path = source_file(check_factory("dataset", spec.dataset))
        return Found(fingerprint=fingerprint([path] if path else []), read=lambda: _read(spec))


def _read(spec: Spec) -> Arrays:
    factory = load_factory("dataset", spec.dataset)
    try:
        made: Any = factory(**spec.dataset_options)
    except TypeError as error:
        raise SpecError("dataset_options", spec.dataset_options, str(error)) from None
    if isinstance(made, tuple) and len(made) in (2, 4):
        made = dict(zip(("x", "y", "x_test", "y_test"), made, strict=False))
    if not isinstance(made, dict):
        raise SpecError("dataset", spec.dataset, "must return a dictionary or tuple of arrays")
    return from_names(made, field="dataset", value=spec.dataset)
