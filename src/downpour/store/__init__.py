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
    attempt_name,
    model_name,
    parse_name,
)
from downpour.store.memory import MemoryStore
from downpour.store.updates import Work, find_updates, publish_work

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
    "attempt_name",
    "model_name",
    "parse_name",
    "Work",
    "find_updates",
    "publish_work",
]
