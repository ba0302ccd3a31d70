"""Small files in every layout that a source reads."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from downpour.core.spec import Spec

IDX_STEMS = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    """Return an array in the IDX format."""
    lengths = np.asarray(array.shape, dtype=">i4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + lengths + array.tobytes()


def write_idx(folder: Path, *, count: int = 30) -> dict[str, NDArray[Any]]:
    """Write a small MNIST look-alike under `folder`, and return its four arrays."""
    raw = folder / "raw"
    raw.mkdir(parents=True)
    numbers = np.random.default_rng(7)
    arrays = {
        IDX_STEMS[0]: numbers.integers(0, 256, (count, 28, 28), dtype=np.uint8),
        IDX_STEMS[1]: np.arange(count, dtype=np.uint8) % 10,
        IDX_STEMS[2]: numbers.integers(0, 256, (10, 28, 28), dtype=np.uint8),
        IDX_STEMS[3]: np.arange(10, dtype=np.uint8),
    }
    for stem, array in arrays.items():
        (raw / f"{stem}-ubyte").write_bytes(idx_bytes(array))
    return arrays


def npz_spec(folder: Path, **arrays: Any) -> Spec:
    """Save arrays to `set.npz`, and return a spec that names the file."""
    np.savez(folder / "set.npz", **arrays)
    return Spec.make({"dataset": "npz", "data_path": str(folder / "set.npz")})


@pytest.fixture
def real_data() -> Path:
    """The folder that holds the real MNIST; skips the test without it."""
    named = os.environ.get("DOWNPOUR_DATA")
    beside = Path(__file__).parents[4] / "shared" / "data"
    folder = Path(named) if named else beside
    if not (folder / "MNIST" / "raw").is_dir():
        pytest.skip("MNIST is not here; DOWNPOUR_DATA can name its folder")
    return folder
