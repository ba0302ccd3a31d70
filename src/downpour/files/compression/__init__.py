"""Codecs: how the difference that an update makes is written in fewer bytes.

To add one, write a class that has what `Codec` says, and register it (`core/families.py`);
`tests/files/compression` has what all of them promise. The place of the bytes in a file is
`files/store/update_format.py`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.core import families
from downpour.files.compression.base import STRIDE, Bytes, Codec, Numbers

CODECS: Mapping[str, Codec] = families.CODECS

__all__ = ["CODECS", "STRIDE", "Bytes", "Codec", "Numbers"]
