"""The paths of a shared directory, the names of its files, and the promises of a store.

    presence/        a small file per manager, with which workers prove that they see this folder
    terms/           a small file for each manager, numbered: which manager leads, or led, and where
    datasets/        prepared datasets, each in its own folder
    experiments/ID/  one experiment's spec, record, model versions and updates in flight

The modules of journals (`record/journal.py`), locks and logs define their own names.

We pad numbers, so that names sort by time. Callers choose a token that makes each name unique,
because we never use a name twice, not even for another attempt at the same task.

A file appears whole under its name or not at all, and its content never changes. A reader must
bring the size and the checksum that the publisher reported, and a store never guesses which file is
the latest. A store knows nothing of the content of files; `header.py` does.
"""

import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Literal, Protocol, TypeAlias, get_args

import xxhash

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.base.values import BARE_NAME, AttemptId, PublishedFile, is_bare_name

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Contiguous bytes; those of an array are its `data`."""

CHECKSUM = "{checksum}"
"""Stands for a new file's checksum in the name that its publisher gives it."""

Moved: TypeAlias = Callable[[int], object]
"""Learns how many more bytes of files were read or written."""


def unnoticed(_: int) -> None:
    """Ignore how many bytes were moved."""


class Store(Protocol):
    """One experiment's files."""

    def put_new(self, name: str, chunks: Sequence[Buffer], *, packs: bool = False) -> PublishedFile:
        """Publish the chunks, one after another, as a new file; the file is durable on return.

        If the name has `CHECKSUM` in it, the file's checksum takes that place. A store that `packs`
        a file writes it in fewer bytes, which are its size. Readers and the checksum know only the
        content, so another release of zlib, which may pack otherwise, changes no checksum.

        Raises:
            StoreError: the name is taken or not bare, or the file could not be written.
        """

    def link(self, file: PublishedFile, name: str) -> PublishedFile:
        """Publish a file under a second name, if possible without writing its bytes again.

        Raises:
            StoreError: as `put_new`.
            FileMissing: the file does not exist, and this process has no copy of it.
        """

    def read(self, file: PublishedFile, *, verified: bool = True) -> memoryview:
        """Return a file's bytes, read-only, if possible without copying them.

        The checksum is not `verified` for a caller that hashes the bytes while it uses them.

        Raises:
            FileMissing: the file does not exist, even after retries.
            FileCorrupt: size or checksum differ from the published ones, even after retries.
        """

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file if only its name is known.

        Raises:
            FileMissing: the file does not exist, even after retries.
        """

    def describe(self, name: str) -> PublishedFile:
        """Return the size and checksum of a file if only its name is known.

        Raises:
            FileMissing: the file does not exist, even after retries.
        """

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""

    def delete(self, name: str) -> None:
        """Remove a file, if it exists. Views of it stay valid."""

    def remove_leftovers(self) -> None:
        """Remove files that dead publishers left; call this only once publishing has ended."""


def check_bare_name(name: str) -> str:
    """Return `name` if it names a file inside a directory and nothing else.

    Raises:
        StoreError: the name is not bare.
    """
    if not is_bare_name(name):
        raise StoreError(f"{name[:80]!r} is not {BARE_NAME}")
    return name


def described(name: str, content: Buffer) -> PublishedFile:
    """Return the size and checksum of a file with this content."""
    checksum = xxhash.xxh3_128_hexdigest(content)
    return named(name, len(content), checksum)


def named(name: str, size_bytes: int, checksum: str) -> PublishedFile:
    """Return a new file's description, under the name that it gets; see `Store.put_new`."""
    name = name.replace(CHECKSUM, checksum)
    return PublishedFile(name=name, size_bytes=size_bytes, checksum=checksum)


PACKED = b"\xffpacked\xff"
"""Packed files begin with it; no parameter file does, because its header would be too long."""
_LEVEL = 4  # zlib matches lazily from here on, and higher levels take longer for the same size
_USUAL = (
    rb'{"__metadata__":{"buffers":"[]","compressed":"{\"0.bias\":[\"F32\",[10]],\"1.weight\":'
    rb'[\"F32\",[64,32,3,3]]}","compression":"terngrad","loss":"0.1","optimizer_state":"",'
    rb'"round":"1","samples":"100","shard":"1","steps":"10","trained_from":""},'
    rb'"conv.running_mean":{"dtype":"F32",".bias":{"dtype":"U8","shape":[8],'
    rb'"data_offsets":[0,8]},"fc.weight":{"dtype":"U8","shape":[200],"data_offsets":[8,208]}}  '
)
"""Text of headers. Both sides know it, so a packed header takes 100 bytes less."""


def packed(chunks: Sequence[Buffer]) -> bytes:
    """Return the content of a file in fewer bytes: most codes are zeros; headers repeat words."""
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS, 9, zlib.Z_FILTERED, _USUAL)
    header, *rest = chunks
    # The tensors get their own code, because text has other letters.
    head = packer.compress(header) + packer.flush(zlib.Z_BLOCK)
    return b"".join((PACKED, head, *map(packer.compress, rest), packer.flush()))


def unpacked(name: str, held: Buffer) -> Buffer:
    """Return a file's content; `held` are the bytes of the file, perhaps not packed."""
    if held[: len(PACKED)] != PACKED:
        return held
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS, _USUAL)
    try:
        content = unpacker.decompress(held[len(PACKED) :]) + unpacker.flush()
    except zlib.error as error:
        raise FileCorrupt(name, f"cannot be unpacked: {error}") from None
    if not unpacker.eof:
        raise FileCorrupt(name, "cannot be unpacked: its end is missing")
    return content


def check_size(file: PublishedFile, size_bytes: int) -> None:
    """Raise FileCorrupt if a file does not have the published size."""
    if size_bytes != file.size_bytes:
        reason = f"holds {size_bytes} bytes, but {file.size_bytes} were published"
        raise FileCorrupt(file.name, reason)


def check_content(file: PublishedFile, content: Buffer) -> None:
    """Raise FileCorrupt if a file's content does not have the published checksum."""
    check_checksum(file, xxhash.xxh3_128_hexdigest(content))


def check_checksum(file: PublishedFile, checksum: str) -> None:
    """Raise FileCorrupt if a file's checksum is not the published one."""
    if checksum != file.checksum:
        reason = f"has checksum {checksum}, but {file.checksum} was published"
        raise FileCorrupt(file.name, reason)


class MemoryStore:
    """The files of one experiment, as bytes in a dictionary.

    For tests and for experiments in one process. It keeps the same contract as `DirectoryStore`,
    errors included, without files and without retries: a file that is missing now stays missing. We
    copy chunks once, because their owner may change them later.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def put_new(
        self,
        name: str,
        chunks: Sequence[Buffer],
        *,
        packs: bool = False,  # noqa: ARG002 - memory is no wire
    ) -> PublishedFile:
        """Keep a copy of the chunks under a new name; see `Store.put_new`."""
        check_bare_name(name)
        content = b"".join(bytes(memoryview(chunk)) for chunk in chunks)
        file = described(name, content)
        if file.name in self._files:
            raise StoreError(f"{name}: already published; Downpour never reuses names")
        self._files[file.name] = content
        return file

    def link(self, file: PublishedFile, name: str) -> PublishedFile:
        """Publish a file under a second name; see `Store.link`."""
        return self.put_new(name, [self.read(file, verified=False)])

    def read(self, file: PublishedFile, *, verified: bool = True) -> memoryview:
        """Return a file's bytes; see `Store.read`."""
        content = self._content(file.name)
        check_size(file, len(content))
        if verified:
            check_content(file, content)
        return memoryview(content)

    def read_unchecked(self, name: str, *, limit_bytes: int) -> bytes:
        """Return the first bytes of a file if only its name is known."""
        return self._content(name)[:limit_bytes]

    def describe(self, name: str) -> PublishedFile:
        """Return the size and checksum of a file if only its name is known; raises FileMissing."""
        return described(name, self._content(name))

    def _content(self, name: str) -> bytes:
        content = self._files.get(check_bare_name(name))
        if content is None:
            raise FileMissing(name)
        return content

    def __contains__(self, name: str) -> bool:
        """Whether a published file has that name."""
        return name in self._files

    def list(self) -> list[str]:
        """Return the names of all published files, sorted."""
        return sorted(self._files)

    def delete(self, name: str) -> None:
        """Remove a file, if it exists. Views of it stay valid."""
        self._files.pop(check_bare_name(name), None)

    def remove_leftovers(self) -> None:
        """Do nothing: a file is whole or does not exist."""


SPEC_NAME = "spec.toml"
RECORD_NAME = "record.jsonl"
FINAL_NAME = "model.safetensors"
ADAPTER_NAME = "adapter.safetensors"
FROZEN_PREFIX = "frozen-"
BEST_NAME = "best.safetensors"
RESULT_NAMES = {FINAL_NAME, ADAPTER_NAME, BEST_NAME}
"""The files that only a finished experiment has."""

_INDICES = "indices-"
_MODEL = re.compile(r"(model|outer|mean|whole)-(\d+)-(\w+)\.safetensors")
_OWN = re.compile(r"own-(\d+)-(\d+)-(\w+)\.safetensors")
_ATTEMPT = re.compile(
    r"(update|optimizer|snapshot)-(\d+)-(\d+)-(\d+)-(\w+)(?:-([0-9a-f]{32}))?\.safetensors"
)


@dataclass(frozen=True, slots=True)
class _VersionName:
    version: int
    token: str
    kind: ClassVar[str]

    def __str__(self) -> str:
        return f"{self.kind}-{self.version:06d}-{self.token}.safetensors"


class ModelName(_VersionName):
    """A model version's file; training begins at version 0."""

    kind = "model"


class OuterName(_VersionName):
    """The outer optimizer's state for a model version; it has that version's token."""

    kind = "outer"


class MeanName(_VersionName):
    """The mean of the updates that led to a model version; it has that version's token."""

    kind = "mean"


def beside(model: str, kind: type[OuterName | MeanName]) -> str:
    """Return the name of another file of a version that has this file name."""
    return kind.kind + model.removeprefix(ModelName.kind)


class WholeName(_VersionName):
    """A whole file of a version, for workers that cannot read the steps that lead to it."""

    kind = "whole"


_VERSIONS: dict[str, type[_VersionName]] = {
    one.kind: one for one in (ModelName, OuterName, MeanName, WholeName)
}


@dataclass(frozen=True, slots=True)
class OwnName:
    """A shard's own parameters after the shard has become part of a model version of this token."""

    version: int
    shard: int
    token: str

    def __str__(self) -> str:
        return f"own-{self.version:06d}-{self.shard:06d}-{self.token}.safetensors"


AttemptKind = Literal["update", "optimizer", "snapshot"]
_ATTEMPT_KINDS: dict[str, AttemptKind] = {kind: kind for kind in get_args(AttemptKind)}


@dataclass(frozen=True, slots=True)
class AttemptName:
    """A file that an attempt publishes: its update, its optimizer's state, or a snapshot.

    An update's name has its checksum.
    """

    kind: AttemptKind
    round: int
    shard: int
    attempt: int
    token: str
    checksum: str = ""

    def __str__(self) -> str:
        numbers = f"{self.round:06d}-{self.shard:06d}-{self.attempt:03d}"
        ending = f"-{self.checksum}" if self.checksum else ""
        return f"{self.kind}-{numbers}-{self.token}{ending}.safetensors"


def attempt_name(kind: AttemptKind, attempt: AttemptId, token: str, checksum: str = "") -> str:
    """Name a file that an attempt publishes."""
    numbers = attempt.round, attempt.shard, attempt.attempt
    return str(AttemptName(kind, *numbers, token, checksum))


def indices_name(shard: int, token: str) -> str:
    """Name the file of a shard's indices, if it has many."""
    return f"{_INDICES}{shard:06d}-{token}.bin"


def frozen_name(token: str) -> str:
    """Name the file of the parameters that no task trains."""
    return f"{FROZEN_PREFIX}{token}.safetensors"


def bundle_name(digest: str) -> str:
    """Name the file of a project's code by the SHA-256 of its content."""
    return f"code-{digest}.json.gz"


def is_in_flight(name: str) -> bool:
    """Whether only a running experiment needs a file of this name."""
    parsed = parse_name(name)
    return isinstance(parsed, AttemptName | OwnName | WholeName) or name.startswith(_INDICES)


def left_over(
    names: Iterable[str],
    *,
    finished: bool,
    kept: Iterable[PublishedFile],
    versions: Collection[PublishedFile],
) -> set[str]:
    """Return the unneeded files of an ended experiment.

    The `kept` files stay and, if there are any `versions`, only these model versions, means and
    outer states. A manager that was cut off may have published another version after its successor
    looked for files that the journal does not name.
    """
    stay = {file.name for file in (*kept, *versions)}
    return {
        name
        for name in names
        if name not in stay
        and (
            is_in_flight(name)
            # If a user cancels an experiment while its final model is being published, it has no
            # result.
            or (name in RESULT_NAMES and not finished)
            or (versions and isinstance(parse_name(name), _VersionName))
        )
    }


def is_spent(name: str, round_: int) -> bool:
    """Whether no report of this round or a later one can name an unknown file."""
    parsed = parse_name(name)
    return parsed.round < round_ if isinstance(parsed, AttemptName) else parsed is not None


def parse_name(name: str) -> _VersionName | OwnName | AttemptName | None:
    """Parse the name of a file that a manager or an attempt publishes; None for other names."""
    if match := _MODEL.fullmatch(name):
        return _VERSIONS[match[1]](int(match[2]), match[3])
    if match := _OWN.fullmatch(name):
        return OwnName(int(match[1]), int(match[2]), match[3])
    if match := _ATTEMPT.fullmatch(name):
        numbers = int(match[2]), int(match[3]), int(match[4])
        return AttemptName(_ATTEMPT_KINDS[match[1]], *numbers, match[5], match[6] or "")
    return None


def last_of_shards(kind: AttemptKind, names: Iterable[str], version: int) -> dict[int, str]:
    """Return each shard's last file of a kind in the folder of an experiment that has ended.

    The files of its last model version stay. Files of that version's own round, or of a second
    attempt, exist only if the manager failed to remove them.
    """
    parsed = (each for name in names if isinstance(each := parse_name(name), AttemptName))
    # The files that an experiment begins with have names of its first round.
    counted = (one for one in parsed if one.kind == kind and one.round < max(version, 1))
    return {one.shard: str(one) for one in sorted(counted, key=attrgetter("round"))}


def version_among(names: Iterable[str], version: int) -> str | None:
    """Return the name of a model version among names of files; None if it is missing."""
    parsed = (each for name in names if isinstance(each := parse_name(name), ModelName))
    return next((str(one) for one in parsed if one.version == version), None)


def published_updates(
    names: Iterable[str], attempts: Iterable[AttemptId]
) -> Iterator[tuple[AttemptId, str, str | None]]:
    """Yield the updates that attempts have published, according to these names, in their order.

    Each has the attempt, the name of its update, and the name of its optimizer's state, if any. If
    the manager asked for an attempt twice, it may have published twice.
    """
    there = set(names)
    wanted = {(one.round, one.shard, one.attempt): one for one in attempts}
    for name in sorted(there):
        parsed = parse_name(name)
        if not isinstance(parsed, AttemptName) or parsed.kind != "update":
            continue
        attempt = wanted.get((parsed.round, parsed.shard, parsed.attempt))
        if attempt is not None:
            state = attempt_name("optimizer", attempt, parsed.token)
            yield attempt, name, state if state in there else None
