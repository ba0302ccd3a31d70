"""The model file: the weights of the LSTM and of the ridge regression, as safetensors.

We store large arrays as 16-bit numbers, which changes predictions by less than their noise. The
file names the version of this layout and the traces that the models were trained on.
`read_trained` refuses a file of another version, or with other inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

import numpy as np

from downpour.base.errors import FileCorrupt, SpecError
from downpour.files.store.codec import decode, encode
from downpour.host.user_file import read_user_file
from downpour.predictor.base import Array
from downpour.predictor.histories import INPUTS
from downpour.predictor.lstm import shapes

FORMAT = "downpour-predictor"
VERSION = "1"

_SHIPPED = "pretrained.safetensors"
_LARGE = 64  # elements: in smaller arrays, 16 bits would save too little to be worth the rounding
_RIDGE = {
    "weights": (2, len(INPUTS)),
    "center": (2, len(INPUTS)),
    "scale": (2, len(INPUTS)),
    "spread": (2, 4),
}


_BYTES_MAX = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of training: the arrays of both models, and the checksum of the traces."""

    lstm: Mapping[str, Array] = field(repr=False)
    ridge: Mapping[str, Array] = field(repr=False)
    traces: str


def write_trained(path: Path, trained: Trained) -> int:
    """Write a predictor's file, and return its size in bytes.

    Raises:
        SpecError: the file cannot be written.
    """
    tensors = {f"ridge.{name}": array for name, array in trained.ridge.items()}
    for name, array in trained.lstm.items():
        large = array.size > _LARGE and not name.endswith((".center", ".scale"))
        tensors[f"lstm.{name}"] = array.astype(np.float16 if large else np.float32)
    metadata = {"format": FORMAT, "version": VERSION, "traces": trained.traces}
    content = b"".join(encode(tensors, metadata))
    try:
        path.write_bytes(content)
    except OSError as error:
        raise SpecError("out", str(path), f"cannot be written ({error.strerror})") from None
    return len(content)


def read_trained(path: Path | None = None) -> Trained:
    """Read a predictor's file; without a path, read the shipped one.

    Raises:
        SpecError: the file cannot be read, is damaged, or is of another version.
    """
    shipped = resources.files("downpour.predictor") / _SHIPPED
    name = str(path or _SHIPPED)
    try:
        content = read_user_file(path, _BYTES_MAX) if path else shipped.read_bytes()
        file = decode(content, name)
    except OSError as error:
        raise SpecError("predictor", name, f"cannot be read ({error.strerror})") from None
    except FileCorrupt as error:
        raise SpecError("predictor", name, error.reason) from None
    if file.metadata.get("format") != FORMAT:
        raise SpecError("predictor", name, "is not a predictor's file")
    if (version := file.metadata.get("version")) != VERSION:
        raise SpecError("predictor", name, f"has version {version}, but must have {VERSION}")
    trained = Trained(
        lstm=_part("lstm.", file.tensors),
        ridge=_part("ridge.", file.tensors),
        traces=file.metadata.get("traces", ""),
    )
    _check(name, trained)
    return trained


def _part(prefix: str, tensors: Mapping[str, Array]) -> dict[str, Array]:
    own = {name: array for name, array in tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): array.astype(np.float32) for name, array in own.items()}


def _check(name: str, trained: Trained) -> None:
    """Refuse arrays whose shapes don't fit a predictor with today's inputs."""
    stored = {key: array.shape for key, array in trained.lstm.items()}
    # Two arrays give the sizes of the nets, which a user may choose; all other shapes follow.
    state, wide = stored.get("cell.state", ()), stored.get("assigned.narrow", ())
    if len(state) != 3 or len(wide) != 3 or stored != shapes(*state[:2], *wide[1:]):
        raise SpecError("predictor", name, "does not hold the nets of a predictor")
    if {key: array.shape for key, array in trained.ridge.items()} != _RIDGE:
        raise SpecError("predictor", name, "does not hold the ridge of a predictor")
    arrays = [*trained.lstm.values(), *trained.ridge.values()]
    if not all(np.isfinite(array).all() for array in arrays):
        raise SpecError("predictor", name, "holds weights that are not finite")
