"""Examples as named arrays: their layout, `.npz` files, and arrays that a user's function returns.

Other names are refused, not dropped: a user who gives an `attention_mask` expects it to be used.
"""

import inspect
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from downpour.base.errors import DownpourError, SpecError
from downpour.core.spec import Spec
from downpour.learning.allowlist import check_factory, load_factory, source_file
from downpour.learning.blame import describe_error, message_of, users_errors
from downpour.learning.datasets import source
from downpour.learning.datasets.source import Arrays

ACCEPTED = (
    "numeric arrays train_images, train_labels, test_images, test_labels; or x, y, and "
    "optionally x_test, y_test"
)
_MEDMNIST = ("train_images", "train_labels", "test_images", "test_labels")
_PLAIN = ("x", "y")
_TEST = ("x_test", "y_test")
_TRAINED_ON = (_MEDMNIST, _PLAIN, (*_PLAIN, *_TEST))
_MEASURED_ON = (*_TRAINED_ON, _MEDMNIST[2:], _TEST)
_NORMALIZE = "normalize"


def from_names(named: Mapping[str, Any], *, field: str, value: str) -> Arrays:
    """Return the examples among named arrays; without a test part, a fifth is held out.

    `normalize`, true or false, says whether numbers are amounts, see `Arrays`.
    """
    parts = _checked_parts(named, _TRAINED_ON, field, value)
    train_x, train_y, test_x, test_y = parts if len(parts) == 4 else _held_out(*parts)
    return Arrays(
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        normalize=_normalize(named, field, value),
    )


def labelled(named: Mapping[str, Any], *, field: str, value: str) -> tuple[Any, Any]:
    """Return x and y of the test part among named arrays, or of all if there is none.

    The test part may be alone, without training examples.
    """
    x, y = _checked_parts(named, _MEASURED_ON, field, value)[-2:]
    return x, y


def _checked_parts(
    named: Mapping[str, Any], layouts: tuple[tuple[str, ...], ...], field: str, value: str
) -> list[NDArray[Any]]:
    names = _layout_of(named, layouts, field, value)
    try:
        parts = [np.asarray(named[name]) for name in names]
    except (ValueError, TypeError, RuntimeError) as error:
        accepted = f"must hold {ACCEPTED}; one is not an array: {message_of(error)}"
        raise SpecError(field, value, accepted) from None
    for name, part in zip(names, parts, strict=True):
        if part.dtype.kind not in "biuf" or part.ndim == 0:
            kind = "no array" if part.ndim == 0 else f"not numeric ({part.dtype})"
            raise SpecError(field, value, f"must hold {ACCEPTED}; {name} is {kind}")
    if any(part.size == 0 for part in parts):
        raise SpecError(field, value, "has no training or no test examples, or empty ones")
    if any(len(x) != len(y) for x, y in zip(parts[::2], parts[1::2], strict=True)):
        raise SpecError(field, value, "the numbers of labels and examples must be equal")
    return parts


def _layout_of(
    named: Mapping[str, Any], layouts: tuple[tuple[str, ...], ...], field: str, value: str
) -> tuple[str, ...]:
    """Return the names of the layout that the arrays have, in full and without others."""
    given = set(named) - {_NORMALIZE}
    whole = max((names for names in layouts if given >= set(names)), key=len, default=None)
    if whole is None:
        there = ", ".join(map(str, named)) or "none"
        raise SpecError(field, value, f"must hold {ACCEPTED}; it holds {there}")
    extra = sorted(map(str, given - set(whole)))
    if extra and set(extra) <= set(_TEST):
        raise SpecError(field, value, f"has only {extra[0]}; x_test and y_test go together")
    if extra:
        others = f"cannot use {', '.join(extra)}; accepted are {ACCEPTED}, normalize"
        raise SpecError(field, value, others)
    return whole


def _normalize(named: Mapping[str, Any], field: str, value: str) -> bool | None:
    if _NORMALIZE not in named:
        return None
    flag = np.asarray(named[_NORMALIZE])
    if flag.dtype != np.bool_ or flag.size != 1:
        raise SpecError(field, value, f"normalize is {named[_NORMALIZE]!r}; it is true or false")
    return bool(flag.item())


def _held_out(x: NDArray[Any], y: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    flat = y.reshape(len(y), -1)
    classes = np.unique(flat, return_inverse=True)[1] if flat.shape[1] == 1 else None
    train, test = source.held_out(None if classes is None else classes.ravel(), len(x))
    return _taken(x, train), y[train], _taken(x, test), y[test]


def _taken(x: NDArray[Any], order: NDArray[np.int64]) -> NDArray[Any]:
    """Return some of the rows [n, ...], in this order."""
    shape = (len(order), *x.shape[1:])
    return source.stacked(
        (x[order[rows]] for rows in source.row_blocks(x, len(order))), shape, x.dtype
    )


_FIELD = "data_path"
_ENCRYPTED = 0x1
_OBJECTS = "holds Python objects, not numbers"
_HEAD_BYTES_MAX = 10_000
_PIECE_BYTES = 2**20


class Npz:
    """The arrays named in `layout`; a validation part (`val_...`) is left alone.

    We read the file's directory and the headers of its arrays first. So we refuse an encrypted or
    inconsistent file before we read its content.
    """

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a file that is not there, is no zip file, or whose arrays cannot be read."""
        self._checked(spec, data_dir)

    def _checked(self, spec: Spec, data_dir: Path | None) -> Path:
        path = source.named_path(spec, data_dir)
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise SpecError(_FIELD, spec.data_path, "is not a .npz file")
        _check_heads(path)
        return path

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> source.SourceFiles:
        """Find the file that `data_path` names."""
        del downloads
        path = self._checked(spec, data_dir)
        return source.SourceFiles(
            fingerprint=source.fingerprint([path]),
            read=lambda: from_names(_named_arrays(path), field=_FIELD, value=path.name),
        )

    def read_labelled(self, spec: Spec) -> tuple[Any, Any]:
        """Read x and y of the test part, which may be alone, or of all if there is none."""
        path = self._checked(spec, None)
        return labelled(_named_arrays(path), field=_FIELD, value=path.name)


def _named_arrays(path: Path) -> dict[str, Any]:
    with naming(path), zipfile.ZipFile(path) as archive:
        wanted = [one for one in archive.infolist() if _is_wanted(one.filename)]
        return {one.filename.removesuffix(".npy"): _array(archive, one) for one in wanted}


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array piece by piece; `zipfile` compares its checksum at the end."""
    with archive.open(member) as file:
        shape, is_fortran, dtype, size_bytes = _head(member, file)
        content = source.stored(iter(partial(file.read, _PIECE_BYTES), b""), size_bytes)
    return content.view(dtype).reshape(shape, order="F" if is_fortran else "C")


def _is_wanted(name: str) -> bool:
    return name.endswith(".npy") and not name.startswith("val_")


def _check_heads(path: Path) -> None:
    """Compare the size in each array's header with that of its bytes."""
    with naming(path), zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.flag_bits & _ENCRYPTED:
                raise ValueError(f"{member.filename} is encrypted")
            if _is_wanted(member.filename):
                with archive.open(member) as file:
                    _head(member, file)


def _head(
    member: zipfile.ZipInfo, file: IO[bytes]
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return an array's shape, whether its first index runs fastest, its type and its bytes."""
    is_first = np.lib.format.read_magic(file) == (1, 0)
    read = np.lib.format.read_array_header_1_0 if is_first else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file, max_header_size=_HEAD_BYTES_MAX)
    size_bytes = member.file_size - file.tell()
    if dtype.hasobject:
        raise ValueError(f"{member.filename} {_OBJECTS}")
    needed_bytes = math.prod((*shape, dtype.itemsize))
    if needed_bytes != size_bytes or min(shape, default=0) < 0:
        reason = f"{member.filename} claims {needed_bytes} bytes, but holds {size_bytes}"
        raise ValueError(reason)
    return shape, is_fortran, dtype, size_bytes


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn an exception about the file into a SpecError of one line that names it."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile and numpy raise anything about damage
        reason = message_of(error)
        if "allow_pickle" in reason:  # numpy's advice to trust the file
            reason = (
                f"it {_OBJECTS}" if "Object arrays" in reason else "it is not a .npy or .npz file"
            )
        raise SpecError(_FIELD, path.name, f"cannot be read: {reason}") from None


_FILES = "files"


class Factory:
    """A function on the allow-list.

    Downpour calls it with `dataset_options`. It returns the arrays by name in a dictionary, or (x,
    y) or (x, y, x_test, y_test). The dataset's key follows from the result, so Downpour calls the
    factory for each experiment. A dictionary may also name the `files` that it was made from.
    Downpour then repeats the call only after a change of one of them, of the factory's module file
    or of its options.
    """

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Refuse a name that is not allowed; imports nothing."""
        del data_dir
        check_factory("dataset", spec.dataset)

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> source.SourceFiles:
        """Find the factory's module."""
        del data_dir, downloads
        path = source_file(check_factory("dataset", spec.dataset))
        paths = [path] if path else []
        return source.SourceFiles(fingerprint=source.fingerprint(paths), read=lambda: _made(spec))


def _made(spec: Spec) -> Arrays:
    made = _called(spec)
    if isinstance(made, tuple) and len(made) in (2, 4):
        made = dict(zip((*_PLAIN, *_TEST), made, strict=False))
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
