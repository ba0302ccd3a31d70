"""Files of a model: its versions, whole or as steps, and a trained model that a user names.

A step's file has the layout of an update that was trained from the previous version (`updates.py`),
and names that version by checksum. docs/internals/decisions.md ("Versions are steps") has the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from downpour.base.errors import FileCorrupt, SharedDirectoryError, SpecError, StoreError
from downpour.base.values import PublishedFile, is_bare_name
from downpour.files.compression import CODECS
from downpour.files.compression.codecs import from_bfloat16
from downpour.files.store.directory import DirectoryStore, names_in, read_regular
from downpour.files.store.header import (
    BFLOAT16,
    FOREIGN_DTYPES,
    Array,
    ParameterFile,
    Parameters,
    decode,
    encode,
)
from downpour.files.store.layout import (
    ADAPTER_NAME,
    BEST_NAME,
    FINAL_NAME,
    FROZEN_PREFIX,
    Buffer,
    MeanName,
    ModelName,
    Store,
    parse_name,
)
from downpour.files.store.shared_directory import SharedDirectory
from downpour.files.store.updates import UpdateFormat, base_of, compress, compression_of, moved_by
from downpour.host.paths import path_of

Known = Callable[[PublishedFile], Parameters | None]
"""Returns a version if it is in memory."""


def step_to(
    tensors: Mapping[str, Array], base: Parameters, file: PublishedFile, compression: str
) -> tuple[Parameters, Sequence[Buffer]]:
    """Return the version nearest to some tensors to which a step can lead, and the step's file.

    The step leads from `base`, of which `file` is the file.
    """
    form = UpdateFormat.of(base, file, compression)
    held, _ = compress(form, base.tensors, tensors, {})
    content = encode(held, {**base.metadata, **form.metadata}, form.layout)
    return moved_by(base, decode(b"".join(content), file.name)), content


def read_version(
    store: Store, file: PublishedFile, leading: Sequence[PublishedFile], known: Known
) -> Parameters:
    """Read a model version; callers must not change its tensors.

    `leading` are the versions before it, oldest first; the required ones end the sequence.
    """
    left = list(leading)

    def before(step: PublishedFile, _: str) -> PublishedFile:
        if not left:
            raise FileCorrupt(step.name, "is a difference, but does not name the version before it")
        return left.pop()

    return _read(store, file, before, known)


def _read(
    store: Store,
    file: PublishedFile,
    before: Callable[[PublishedFile, str], PublishedFile],
    known: Known = lambda _: None,
) -> Parameters:
    """Read a version, from a whole one on; `before` a step is the version of a checksum."""
    steps: list[tuple[PublishedFile, ParameterFile]] = []
    while (model := known(file)) is None:
        held = decode(store.read(file), file.name)
        if (checksum := base_of(held)) is None:
            model = held
            break
        steps.append((file, held))
        file = before(file, checksum)
    for following, step in reversed(steps):
        compression = compression_of(step)
        if compression not in CODECS:
            unknown = f"its compression is {compression!r}, which this version does not know"
            raise FileCorrupt(following.name, unknown)
        if misfit := UpdateFormat.of(model, file, compression).misfit(step):
            raise FileCorrupt(following.name, misfit)
        model, file = moved_by(model, step), following
    return model


def whole_content(store: Store, name: str) -> Sequence[Buffer]:
    """Return the content of a file with a whole version; see `version_in`."""
    content = store.read(store.describe(name))
    if base_of(decode(content, name)) is None:
        return [content]
    model = version_in(store, name)
    return encode(model.tensors, model.metadata)


def version_in(store: Store, name: str) -> Parameters:
    """Read a version of an ended experiment, given only its name."""
    return _read(store, store.describe(name), partial(_before, store))


def _before(store: Store, file: PublishedFile, checksum: str) -> PublishedFile:
    """Return the version that a file is a step from; it has this checksum."""
    parsed = parse_name(file.name)
    number = parsed.version - 1 if isinstance(parsed, ModelName | MeanName) else -1
    for name in store.list():
        other = parse_name(name)
        found = isinstance(other, ModelName) and other.version == number
        if found and (before := store.describe(name)).checksum == checksum:
            return before
    raise FileCorrupt(file.name, "is a difference, but the version before it is missing")


_BEST = "@best"
_PICKLED = {".pt", ".pth", ".bin", ".ckpt", ".pkl"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedModel:
    """The tensors of a model by name, and the checksum of its file.

    A version of an experiment, or an adapter, holds only trained parameters. The frozen ones, in a
    file next to it, are part of both.
    """

    tensors: dict[str, Array]
    checksum: str


def experiments_at(root: Path) -> SharedDirectory | None:
    """Return the shared directory at `root`, or None if it has never had an experiment."""
    shared = SharedDirectory(root.expanduser().absolute())
    return shared if shared.experiments.is_dir() else None


def find_model(name: str, shared: SharedDirectory | None, *, field: str) -> Path:
    """Return the file that a user names.

    An experiment means its final model or, without one, the newest version.

    Args:
        name: An experiment, `EXPERIMENT@best` for its best model, `EXPERIMENT/FILE`, or a path: a
            file, or a folder with a model.
        shared: Where to look up experiments; None if the user can't mean one.
        field: What the user calls the name, for errors.
    """
    named = _in_experiment(name, shared)
    path = named or path_of(field, name)
    try:
        path = path.resolve()  # caches of downloaded models hold links
        found = newest_model(path) if path.is_dir() else path
        is_file = found is not None and found.is_file()
    except (OSError, RuntimeError) as error:  # the latter for links in a circle
        reason = getattr(error, "strerror", None) or "is a link to itself"
        raise SpecError(field, name, f"cannot be read: {reason}") from None
    if found is None:
        raise SpecError(field, name, "has no model, because none of its rounds has ended")
    if not is_file and named is not None and name.endswith(_BEST):
        raise SpecError(
            field, name, "has no best model: that needs keep_best, and an ended experiment"
        )
    if not is_file:
        nor = "" if "/" in name else ", and no experiment in the shared directory"
        begin = name.removesuffix(_BEST)
        whole = shared.whole_id(begin) if shared is not None and is_bare_name(begin) else begin
        meant = f"; write the whole ID, {name.replace(begin, whole, 1)}" if whole != begin else ""
        raise SpecError(field, name, f"no such file{nor}{meant}")
    return found


def _in_experiment(name: str, shared: SharedDirectory | None) -> Path | None:
    """Return the folder of the experiment that a name means, or the file in it."""
    experiment, _, file = name.removesuffix(_BEST).partition("/")
    if name.endswith(_BEST):
        file = BEST_NAME
    if shared is None or not is_bare_name(experiment):
        return None
    if experiment not in names_in(shared.experiments):
        return None
    folder = shared.experiment_path(experiment)
    return folder / file if is_bare_name(file) else folder


def newest_model(folder: Path) -> Path | None:
    """Return the final model in a folder, else the newest version; None if neither exists."""
    names = {entry.name for entry in folder.iterdir()}
    if FINAL_NAME in names:
        return folder / FINAL_NAME
    versions = [
        (parsed.version, name)
        for name in names
        if isinstance(parsed := parse_name(name), ModelName)
    ]
    return folder / max(versions)[1] if versions else None


def read_model(path: Path, name: str, shared: SharedDirectory | None, *, field: str) -> NamedModel:
    """Read an unknown parameter file; bfloat16, which other programs write, becomes float32."""
    try:
        contents = [read_regular(file) for file in (path, *_frozen_beside(path))]
        held, *others = (decode(content, path.name, FOREIGN_DTYPES) for content in contents)
        # The file may be a step from another version, whose checksum it holds.
        parsed = parse_name(path.name)
        is_step = base_of(held) is not None and isinstance(parsed, ModelName | MeanName)
        model = version_in(DirectoryStore(path.parent), path.name) if is_step else held
        files = [model.tensors, *(one.tensors for one in others)]
    except MemoryError:
        raise SpecError(field, name, "does not fit into the memory of this machine") from None
    except SharedDirectoryError as error:
        if shared is not None and path.is_relative_to(shared.root.resolve()):
            raise
        raise SpecError(field, name, f"cannot be read: {error.reason}") from None
    except FileCorrupt as error:
        raise SpecError(field, name, _refusal(path, error)) from None
    except StoreError as error:
        raise SpecError(field, name, str(error)) from None
    digest = xxhash.xxh3_128()
    for content in contents:
        digest.update(content)
    return NamedModel(
        tensors={name: _numbers(array) for held in files for name, array in held.items()},
        checksum=digest.hexdigest(),
    )


def _frozen_beside(path: Path) -> list[Path]:
    """Return the file of the untrained parameters, which an experiment's versions need."""
    if path.name != ADAPTER_NAME and not isinstance(parse_name(path.name), ModelName | MeanName):
        return []
    # There are several if a manager ended before it had journaled the first; all hold the same.
    return sorted(path.parent.glob(f"{FROZEN_PREFIX}*"))[:1]


def _refusal(path: Path, error: FileCorrupt) -> str:
    if path.suffix in _PICKLED:
        convert = "safetensors.torch.save_file(torch.load(FILE, weights_only=True), NEW)"
        return f"must be a safetensors file, because pickles can run code; {convert} converts it"
    return f"must be a safetensors file: it {error.reason}"


def _numbers(array: Array) -> Array:
    if array.dtype != BFLOAT16:
        return array
    return from_bfloat16(np.ascontiguousarray(array).view("<u2")).reshape(array.shape)
