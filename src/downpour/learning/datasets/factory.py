"""Examples from a function: `package.module:factory`, if the allow-list permits it.

Downpour calls the factory with `dataset_options`. It returns the named arrays of `layout` as a
dictionary, or (x, y) or (x, y, x_test, y_test). The dataset's key follows from the result, so
Downpour calls the factory for each experiment. A dictionary may also name the `files` that it was
made from. Downpour then repeats the call only after a change of one of them, of the factory's
module file or of its options.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from downpour.base.errors import DownpourError, SpecError
from downpour.core.spec import Spec
from downpour.learning.allowlist import check_factory, load_factory, source_file
from downpour.learning.blame import describe_error, users_errors
from downpour.learning.datasets.layout import ACCEPTED, from_names
from downpour.learning.datasets.source import Arrays, SourceFiles, fingerprint

_TUPLE = ("x", "y", "x_test", "y_test")
_FILES = "files"


class Factory:
    """A function on the allow-list."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a name that is not allowed; imports nothing."""
        del data_dir
        check_factory("dataset", spec.dataset)

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the factory's module."""
        del data_dir, downloads
        path = source_file(check_factory("dataset", spec.dataset))
        paths = [path] if path else []
        return SourceFiles(fingerprint=fingerprint(paths), read=lambda: _read(spec))


def _read(spec: Spec) -> Arrays:
    made = _called(spec)
    if isinstance(made, tuple) and len(made) in (2, 4):
        made = dict(zip(_TUPLE, made, strict=False))
    if not isinstance(made, Mapping):
        accepted = f"must return a dictionary of {ACCEPTED}, or a tuple of 2 or 4 arrays"
        raise SpecError("dataset", spec.dataset, accepted)
    named = {name: value for name, value in made.items() if name != _FILES}
    arrays = from_names(named, field="dataset", value=spec.dataset)
    return replace(arrays, files=_files(made, spec))


def _called(spec: Spec) -> Any:
    factory = load_factory("dataset", spec.dataset)
    try:
        inspect.signature(factory).bind(**spec.dataset_options)
    except TypeError as error:
        raise SpecError("dataset_options", spec.dataset_options, str(error)) from None
    try:
        return factory(**spec.dataset_options)
    except (DownpourError, MemoryError):
        raise
    except users_errors() as error:
        raise SpecError(
            "dataset", spec.dataset, f"cannot be made: {describe_error(error)}"
        ) from error


def _files(made: Mapping[str, Any], spec: Spec) -> tuple[Path, ...] | None:
    """Return the files that a factory says it has read, or None if it names none."""
    if _FILES not in made:
        return None
    named = made[_FILES]
    paths = [named] if isinstance(named, str | Path) else named
    if not isinstance(paths, list | tuple) or not all(isinstance(p, str | Path) for p in paths):
        accepted = f"must return its files as a list of paths, not {named!r}"
        raise SpecError("dataset", spec.dataset, accepted)
    return tuple(Path(path).absolute() for path in paths)
