"""Stores of rows as datasets, as the page on large data names them."""

import importlib
from pathlib import Path
from typing import Any

import pytest

from tests.examples.conftest import FOLDER

IMAGES, LABELS = [[0.0, 1.0], [2.0, 3.0]], [4, 5]


@pytest.mark.parametrize(
    ("library", "name"), [("pyarrow", "ArrowRows"), ("h5py", "HdfRows"), ("lance", "LanceRows")]
)
def test_rows_are_examples(
    library: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each class reads the images and labels that its library has written."""
    pytest.importorskip(library)
    pa: Any = pytest.importorskip("pyarrow")
    table = pa.table({"image": IMAGES, "label": LABELS})
    path = str(tmp_path / "rows")
    if library == "pyarrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write_table(table)
    elif library == "lance":
        importlib.import_module("lance").write_dataset(table, path)
    else:
        with importlib.import_module("h5py").File(path, "w") as file:
            file["x"], file["y"] = IMAGES, LABELS
    monkeypatch.syspath_prepend(FOLDER)
    rows = getattr(importlib.import_module("row_stores"), name)(path)
    image, label = rows[1].values() if isinstance(rows[1], dict) else rows[1]
    assert (len(rows), image.tolist(), label) == (2, IMAGES[1], LABELS[1])
