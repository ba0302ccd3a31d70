"""The shared directory: names, publishing, patient reading, and the codec of parameter files.

It is the only folder that touches an experiment's files. It never imports torch: parameters are
numpy arrays here, and views of mapped files if possible.
"""

from downpour.files.store.directory import DirectoryStore
from downpour.files.store.header import (
    Array,
    Layout,
    ParameterFile,
    Parameters,
    decode,
    encode,
    plan_layout,
)
from downpour.files.store.layout import (
    FINAL_NAME,
    RECORD_NAME,
    SPEC_NAME,
    Buffer,
    ModelName,
    Store,
    parse_name,
)
from downpour.files.store.model_files import read_version, step_to
from downpour.files.store.shared_directory import SharedDirectory
from downpour.files.store.updates import (
    WHOLE,
    HeldRange,
    Start,
    UpdateFormat,
    Work,
    about_model,
    base_of,
    compression_of,
    decompressed,
    find_updates,
    model_metadata,
    moved_by,
    optimizer_part,
    publish_work,
    unsent_part,
)
