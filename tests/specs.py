"""Specs, updates and other plain values for tests."""

from typing import Any

from downpour.base.values import AttemptId, PublishedFile, Snapshot, Update
from downpour.core.spec import ResolvedSpec
from downpour.record import Result


def stored_spec(**fields: Any) -> dict[str, Any]:
    """Return these fields of a spec on record, and those that every record has."""
    plain: dict[str, Any] = {
        "shards": 2,
        "meet": 1,
        "last_batch": "rest",
        "optimizer_state": "reset",
    }
    return {**plain, "outer": {"optimizer": "none"}, "device": "cpu", **fields}


def plain_spec(**fields: Any) -> ResolvedSpec:
    """Return a spec with the plainest values of fields that a resolved spec must state."""
    return ResolvedSpec.make({**stored_spec(), **fields})


def plain_update(file: PublishedFile, **fields: Any) -> Update:
    """Return an update of ten samples that were one step and took no time."""
    plain = {"samples": 10, "steps": 1, "loss": 0.5}
    seconds = {"load_seconds": 0.0, "train_seconds": 0.0, "publish_seconds": 0.0}
    return Update(file=file, **{**plain, **seconds, **fields})


def plain_file(name: str = "file", size_bytes: int = 8) -> PublishedFile:
    """Return a file of that name."""
    return PublishedFile(name=name, size_bytes=size_bytes, checksum="0" * 32)


def plain_attempt(**fields: Any) -> AttemptId:
    """Return the first attempt of a round and a shard, which are 0 unless said otherwise."""
    return AttemptId(**{"experiment": "any", "round": 0, "shard": 0, "attempt": 0, **fields})


SNAPSHOT = Snapshot(file=plain_file("snapshot"), steps_done=1, steps_total=2)


def model_of(result: Result) -> bytes:
    """Return the bytes of a run's final model."""
    assert result.model_file is not None
    return result.model_file.read_bytes()
