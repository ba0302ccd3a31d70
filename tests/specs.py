"""Specs and updates for tests."""

from __future__ import annotations

from typing import Any

from downpour.base.values import PublishedFile, Update
from downpour.core.spec import ResolvedSpec


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
