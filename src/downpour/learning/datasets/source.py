"""The interface of a source of examples: the place of its files, and the arrays that it decodes.

A source knows one kind of files (or one package) and nothing of limits, resizing, normalization or
the prepared folder. Those are the same for all and are in `decoding` and `preparation`. Sources
import what they need (Pillow, scikit-learn, torchvision) inside their functions, so that a machine
without them can use the others.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets.fetched import local_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrays:
    """Examples as a source decodes them.

    `x` is images where it is uint8 with 3 or 4 dimensions ([n, h, w], [n, h, w, c] or
    [n, c, h, w]), and numbers otherwise ([n, ...]). `y` is class numbers [n] or [n, 1], or zeros
    and ones [n, k]. `mean` and `std` are a well-known set's usual ones, per channel of values
    scaled to 0..1; absent, they are computed from the training set. `normalize` says whether the
    values are scaled by them: amounts are, names such as token ids must not be. None leaves that to
    the dtype, which is enough for images and for numbers that are no integers. `files` were read
    besides those in `SourceFiles`; None where they cannot be known, and then a decoded copy must
    not be reused. `classes` are names, if the source knows all; otherwise labels tell their number.
    `remarks` are for people, one line each: above all, about left-out files.
    """

    train_x: NDArray[Any]
    train_y: NDArray[Any]
    test_x: NDArray[Any]
    test_y: NDArray[Any]
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    normalize: bool | None = None
    files: tuple[Path, ...] | None = ()
    classes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFiles:
    """A source's files: a fingerprint of their content, and a function that decodes them."""

    fingerprint: tuple[str, ...]
    read: Callable[[], Arrays]


class DataSource(Protocol):
    """One kind of dataset."""

    def check(self, spec: Spec, data_dir: Path | None) -> None:
        """Raise SpecError for mistakes that are cheap to see; `find` may still fail."""

    def find(self, spec: Spec, data_dir: Path | None, downloads: Path) -> SourceFiles:
        """Find the source's files; some sources download them into `downloads`.

        Raises:
            SpecError: the files are missing, or have another format.
        """


def fingerprint(paths: Iterable[Path], *, field: str = "dataset") -> tuple[str, ...]:
    """Return path, size and time of change of files: they change with the content.

    Raises:
        SpecError: a path is no regular file but, say, a FIFO or a broken link; names `field`.
    """
    lines = []
    for path in paths:
        try:
            status = path.stat()
        except (OSError, ValueError) as error:
            reason = "is a link to nothing" if path.is_symlink() else _why(error)
            raise SpecError(field, _shown(path), reason) from None
        if not stat.S_ISREG(status.st_mode):
            raise SpecError(field, _shown(path), "is not a file")
        lines.append(f"{path.resolve()} {status.st_size} {status.st_mtime_ns}")
    return tuple(lines)


def named_path(spec: Spec, data_dir: Path | None) -> Path:
    """Return `data_path`, looked up in `data_dir` first where it is relative.

    For an object store's URL, it is the path of the file or folder that was fetched.

    Raises:
        SpecError: there is no such file or folder.
    """
    given = local_path("data_path", spec.data_path or "")
    places = [data_dir / given, given] if data_dir and not given.is_absolute() else [given]
    accepted = "no such file or folder"
    for place in places:
        try:
            place.stat()
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # too long, a null byte, no permission
            accepted = _why(error)
            continue
        return place
    raise SpecError("data_path", spec.data_path, accepted)


def _shown(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"


def _why(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
