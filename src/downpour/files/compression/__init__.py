"""Codecs: they write an update's difference in fewer bytes, and read it back.

To add one, write a class with the methods of `Codec`, and register it (`core/families.py`);
`tests/files/compression` tests the promises of all codecs. `files/store/updates.py` decides
the place of the bytes in a file.
"""

from __future__ import annotations

from collections.abc import Mapping

from downpour.core import families
from downpour.files.compression.base import STRIDE, Codec

CODECS: Mapping[str, Codec] = families.CODECS
