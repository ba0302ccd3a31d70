"""Model versions published as steps: how far each has moved from the previous version.

A step's file has the layout of an update that was trained from that version (`update_format.py`): a
codec writes the differences, and buffers are whole. The file names the previous version by
checksum, and so do the steps before it, back to a file with a whole model. So the checksum of a
step determines all of the parameters that it leads to. The files of the previous versions have
random names. A step must not contain these, because equal models have equal files, so the caller
names the files.

Every process sees the codec's losses: a version *is* the previous one, moved by its step, with the
same bytes everywhere. We write some versions whole, with the same parameters
(`core/scheduler/steps.py` chooses them).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from downpour.base.errors import FileCorrupt
from downpour.base.values import PublishedFile
from downpour.files.compression import CODECS
from downpour.files.store.base import Buffer, Store
from downpour.files.store.codec import ParameterFile, Parameters, decode, encode
from downpour.files.store.header import Array
from downpour.files.store.layout import ModelName, parse_name
from downpour.files.store.update_format import (
    UpdateFormat,
    base_of,
    compress,
    compression_of,
    moved_by,
)

Known = Callable[[PublishedFile], Parameters | None]
"""Returns a version if it is in memory."""

_NamedStep = tuple[PublishedFile, ParameterFile]


class VersionStep(NamedTuple):
    """A model version, and the file of its step."""

    model: Parameters
    content: Sequence[Buffer]


def step_to(
    tensors: Mapping[str, Array], base: Parameters, file: PublishedFile, compression: str
) -> VersionStep:
    """Return the version nearest to some tensors to which a step can lead.

    Args:
        tensors: The aggregated parameters and buffers.
        base: The previous version.
        file: The previous version's file.
        compression: The codec.

    Raises:
        NonFinite: a difference is NaN, infinite or too large for the codec.
    """
    form = UpdateFormat.of(base, file, compression)
    held, _ = compress(form, base.tensors, tensors, {})
    content = encode(held, {**base.metadata, **form.metadata}, form.layout)
    return VersionStep(moved_by(base, decode(b"".join(content), file.name)), content)


def read_version(
    store: Store, file: PublishedFile, leading: Sequence[PublishedFile], known: Known
) -> Parameters:
    """Read a model version; callers must not change its tensors.

    Args:
        store: Where its files are.
        file: The version.
        leading: The versions before it, oldest first; the required ones end the sequence.
        known: Which versions are in memory.

    Raises:
        StoreError: a file cannot be read, or a step is not from the version before it.
    """
    steps: list[_NamedStep] = []
    before = list(leading)
    model = known(file)
    while model is None:
        held = decode(store.read(file), file.name)
        if base_of(held) is None:
            model = held
        elif not before:
            raise FileCorrupt(file.name, "is a difference, but does not name the version before it")
        else:
            steps.append((file, held))
            file = before.pop()
            model = known(file)
    return _followed(model, file, steps)


def _followed(model: Parameters, file: PublishedFile, steps: Sequence[_NamedStep]) -> Parameters:
    """Return the version to which steps lead from `model`; the last step comes first.

    Raises:
        FileCorrupt: a step is not from the version before it.
    """
    for following, step in reversed(steps):
        misfit = _misfit(model, file, step)
        if misfit is not None:
            raise FileCorrupt(following.name, misfit)
        model, file = moved_by(model, step), following
    return model


def _misfit(model: Parameters, file: PublishedFile, step: ParameterFile) -> str | None:
    """Say why a step does not begin at a version; None if it does."""
    compression = compression_of(step)
    if compression not in CODECS:
        return f"its compression is {compression!r}, which this version does not know"
    return UpdateFormat.of(model, file, compression).misfit(step)


def whole_content(store: Store, name: str) -> Sequence[Buffer]:
    """Return the content of a file with a whole version; see `version_in`."""
    content = store.read(store.describe(name))
    if base_of(decode(content, name)) is None:
        return [content]
    model = version_in(store, name)
    return encode(model.tensors, model.metadata)


def version_in(store: Store, name: str) -> Parameters:
    """Read a version of an ended experiment, given only its name.

    Raises:
        StoreError: a file cannot be read, or the versions whose steps lead to it are missing.
    """
    file, steps = store.describe(name), list[_NamedStep]()
    held = decode(store.read(file), name)
    while (checksum := base_of(held)) is not None:
        steps.append((file, held))
        file = _before(store, file, checksum)
        held = decode(store.read(file), file.name)
    return _followed(held, file, steps)


def _before(store: Store, file: PublishedFile, checksum: str) -> PublishedFile:
    """Return the version that a file is a step from; it has this checksum."""
    parsed = parse_name(file.name)
    number = parsed.version - 1 if isinstance(parsed, ModelName) else -1
    for name in store.list():
        other = parse_name(name)
        found = isinstance(other, ModelName) and other.version == number
        if found and (before := store.describe(name)).checksum == checksum:
            return before
    raise FileCorrupt(file.name, "is a difference, but the version before it is missing")
