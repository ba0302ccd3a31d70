"""The shared directory: names, publishing, patient reading, and the codec of parameter files.

It is the only folder that touches an experiment's files. It never imports torch: parameters are
numpy arrays here, and views of mapped files wherever that is possible.
"""

from downpour.store.base import Buffer, Store, check_bare_name
from downpour.store.codec import ParameterFile, decode, encode
from downpour.store.directory import DirectoryStore
from downpour.store.header import Array, Layout
from downpour.store.layout import (
    FINAL_NAME,
    RECORD_NAME,
    SPEC_NAME,
    AttemptName,
    ModelName,
    SharedDirectory,
    model_name,
    optimizer_name,
    parse_name,
    update_name,
)
from downpour.store.memory import MemoryStore

__all__ = [
    "Store",
    "DirectoryStore",
    "MemoryStore",
    "SharedDirectory",
    "ParameterFile",
    "Layout",
    "Array",
    "Buffer",
    "encode",
    "decode",
    "check_bare_name",
    "SPEC_NAME",
    "RECORD_NAME",
    "FINAL_NAME",
    "ModelName",
    "AttemptName",
    "model_name",
    "update_name",
    "optimizer_name",
    "parse_name",
]
