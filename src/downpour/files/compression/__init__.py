"""Codecs: how the difference that an update makes is written in fewer bytes.

To add one, write a class that has what `Codec` says, and name it in `CODECS` and in
`Spec.compression`; `tests/files/compression` has what all of them promise. Where the bytes lie in a
file is `files/store/update_format.py`'s business.
"""

from downpour.files.compression.base import STRIDE, Bytes, Codec, Numbers
from downpour.files.compression.floats import BFloat16, Float
from downpour.files.compression.int8 import Int8
from downpour.files.compression.ternary import Ternary
from downpour.files.compression.topk import TopK

CODECS: dict[str, Codec] = {
    "float32": Float("<f4"),
    "bfloat16": BFloat16(),
    "float16": Float("<f2"),
    "int8": Int8(),
    "ternary": Ternary(),
    "topk": TopK(),
}

__all__ = ["CODECS", "STRIDE", "Bytes", "Codec", "Numbers"]
