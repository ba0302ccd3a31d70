"""The paths of a shared directory and the names of its files.

    presence/        a small file per manager, with which workers prove that they see this folder
    terms/           a small file for each manager, numbered: which manager leads, or led, and where
    datasets/        prepared datasets, each in its own folder
    experiments/ID/  one experiment's spec, record, model versions and updates in flight

The modules of journals (`record/journal.py`), locks and logs define their own names.

We pad numbers, so that names sort by time. Callers choose a token that makes each name unique,
because we never use a name twice, not even for another attempt at the same task.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Literal, get_args

from downpour.base.values import AttemptId, PublishedFile

SPEC_NAME = "spec.toml"
RECORD_NAME = "record.jsonl"
FINAL_NAME = "model.safetensors"
ADAPTER_NAME = "adapter.safetensors"
FROZEN_PREFIX = "frozen-"
BEST_NAME = "best.safetensors"
RESULT_NAMES = {FINAL_NAME, ADAPTER_NAME, BEST_NAME}
"""The files that only a finished experiment has."""

_INDICES = "indices-"
_MODEL = re.compile(r"(model|outer|whole)-(\d+)-(\w+)\.safetensors")
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


class WholeName(_VersionName):
    """A whole file of a version, for workers that cannot read the steps that lead to it."""

    kind = "whole"


_VERSIONS: dict[str, type[ModelName | OuterName | WholeName]] = {
    one.kind: one for one in (ModelName, OuterName, WholeName)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    return str(
        AttemptName(
            kind=kind,
            round=attempt.round,
            shard=attempt.shard,
            attempt=attempt.attempt,
            token=token,
            checksum=checksum,
        )
    )


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

    The `kept` files stay and, if there are any `versions`, only these model versions and outer
    states. A manager that was cut off may have published another version after its successor looked
    for files that the journal does not name.
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
            or (versions and isinstance(parse_name(name), ModelName | OuterName))
        )
    }


def is_spent(name: str, round_: int) -> bool:
    """Whether no report of this round or a later one can name an unknown file."""
    parsed = parse_name(name)
    return isinstance(parsed, ModelName | OuterName | OwnName | WholeName) or (
        isinstance(parsed, AttemptName) and parsed.round < round_
    )


def parse_name(name: str) -> ModelName | OuterName | WholeName | OwnName | AttemptName | None:
    """Parse the name of a file that a manager or an attempt publishes; None for other names."""
    if match := _MODEL.fullmatch(name):
        return _VERSIONS[match[1]](int(match[2]), match[3])
    if match := _OWN.fullmatch(name):
        return OwnName(int(match[1]), int(match[2]), match[3])
    if match := _ATTEMPT.fullmatch(name):
        return AttemptName(
            kind=_ATTEMPT_KINDS[match[1]],
            round=int(match[2]),
            shard=int(match[3]),
            attempt=int(match[4]),
            token=match[5],
            checksum=match[6] or "",
        )
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
