"""Data that cannot be read or learned from: files that are none, damaged, absurd or huge."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.cli.exit_status import LINE_CHARACTERS_MAX
from downpour.core.spec import Spec
from downpour.learning import datasets

X = np.arange(40, dtype=np.float32).reshape(10, 4)
Y = np.arange(10) % 2
Make = Callable[[Path], object]


def arrays(**named: Any) -> Make:
    """Make a file of these arrays."""
    return lambda path: np.savez(path, **{"x": X, "y": Y, "x_test": X, "y_test": Y, **named})


def without(*names: str) -> Make:
    """Make a file that lacks some."""
    whole = {"x": X, "y": Y, "x_test": X, "y_test": Y}
    kept: dict[str, Any] = {name: array for name, array in whole.items() if name not in names}
    return lambda path: np.savez(path, **kept)


def content(data: bytes) -> Make:
    """Make a file of these bytes."""
    return lambda path: path.write_bytes(data)


def whole() -> bytes:
    """Return the bytes of a file that is fine."""
    file = io.BytesIO()
    np.savez(file, x=X, y=Y, x_test=X, y_test=Y)
    return file.getvalue()


def member(name: str, data: bytes) -> Make:
    """Make an archive with one member."""

    def make(path: Path) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, data)

    return make


def header(shape: str, descr: str = "'<f4'") -> bytes:
    """Return an array's file that claims this shape, and holds nothing."""
    told = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"
    text = told.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


DATA: list[tuple[str, Make]] = [
    ("empty", content(b"")),
    ("text", content(b"x,y\n1,2\n")),
    ("cut in half", content(whole()[: len(whole()) // 2])),
    ("cut at the end", content(whole()[:-30])),
    ("a byte altered", content(whole()[:200] + b"\xff" + whole()[201:])),
    ("zeros", content(b"\0" * 1000)),
    ("an archive of text", member("a.txt", b"hello")),
    ("a member that is no array", member("x.npy", b"hello")),
    ("a claim of a petabyte", member("x.npy", header("(1000000000000, 1000)"))),
    ("a negative shape", member("x.npy", header("(-1, 4)"))),
    ("an endless shape", member("x.npy", header("(" + "1," * 40 + ")"))),
    ("an unknown type", member("x.npy", header("(2,)", "'<q9'"))),
    ("objects", member("x.npy", header("(2,)", "'|O'"))),
    ("no x", without("x")),
    ("no y", without("y")),
    ("neither", without("x", "y")),
    ("nothing but tests", without("x", "y", "x_test")),
    ("fewer labels than examples", arrays(y=Y[:5])),
    ("fewer test labels", arrays(y_test=Y[:5])),
    ("no examples", arrays(x=X[:0], y=Y[:0])),
    ("no test examples", arrays(x_test=X[:0], y_test=Y[:0])),
    ("test examples of another width", arrays(x_test=X[:, :3])),
    ("NaN", arrays(x=np.where(X == 3, np.nan, X))),
    ("infinity", arrays(x=np.where(X == 3, np.inf, X))),
    ("text for examples", arrays(x=X.astype(str))),
    ("text for labels", arrays(y=np.array(["cat", "dog"] * 5))),
    ("complex numbers", arrays(x=X.astype(complex), x_test=X.astype(complex))),
    ("dates", arrays(x=X.astype("datetime64[s]"), x_test=X.astype("datetime64[s]"))),
    ("negative labels", arrays(y=Y - 1)),
    ("labels between numbers", arrays(y=Y + 0.5)),
    ("labels beyond all classes", arrays(y=Y * 10**12)),
    ("labels that are NaN", arrays(y=Y * np.nan)),
    ("one class", arrays(y=Y * 0)),
    ("labels that are not zeros and ones", arrays(y=np.full((10, 3), 7), y_test=np.ones((10, 3)))),
    ("labels of three dimensions", arrays(y=np.full((10, 2, 2), 5))),
    ("a scalar", arrays(x=np.float32(3))),
    ("a scalar for labels", arrays(y=np.int64(3))),
    ("five channels", arrays(x=np.zeros((10, 8, 8, 5), np.uint8), x_test=np.zeros((2, 8, 8, 5)))),
]


@pytest.mark.parametrize(("what", "make"), DATA, ids=[what for what, _ in DATA])
def test_an_archive_is_refused(tmp_path: Path, what: str, make: Make) -> None:
    """By a `SpecError` that names the dataset or its file, in one line."""
    assert what
    file = tmp_path / "set.npz"
    make(file)
    spec = Spec.make({"dataset": "npz", "data_path": str(file)})
    with pytest.raises(SpecError) as refused:
        datasets.prepare(spec, tmp_path)
    said = str(refused.value)
    assert said.startswith(("dataset = 'npz'", "data_path = "))
    assert "\n" not in said
    assert len(said) <= LINE_CHARACTERS_MAX


FOLDERS: list[tuple[str, dict[str, bytes]]] = [
    ("no images", {"train/a/note.txt": b"x", "train/b/note.txt": b"x"}),
    ("no classes", {"a.png": b"x"}),
    ("an image that is none", {"a/1.png": b"not a png", "b/1.png": b"not a png"}),
    ("an empty image", {"a/1.png": b"", "b/1.png": b""}),
    ("an image cut off", {"a/1.png": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "b/1.png": b"\x89PNG"}),
    ("a test class of its own", {"train/a/1.png": b"", "test/b/1.png": b""}),
]


@pytest.mark.parametrize(("what", "files"), FOLDERS, ids=[what for what, _ in FOLDERS])
def test_a_folder_of_images_is_refused(tmp_path: Path, what: str, files: dict[str, bytes]) -> None:
    """In one line that names the folder or the file."""
    assert what
    for name, data in files.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(data)
    spec = Spec.make({"dataset": "folder", "data_path": str(tmp_path / "images")})
    with pytest.raises(SpecError) as refused:
        datasets.prepare(spec, tmp_path)
    assert str(refused.value).startswith(("dataset = 'folder'", "data_path = "))
    assert "\n" not in str(refused.value)
