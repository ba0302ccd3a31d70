"""Tries the features of an object store that the protocol needs, and measures their cost."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from statistics import median

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.cluster.operations.finding import Finding, bad, doubtful, good
from downpour.files.store.bucket import Bucket
from downpour.files.store.publish import TEMPORARY_PREFIX

PUBLISH_WARN_MS = 500.0

_REPEATS = 5
_BLOCK_BYTES = 2**20


def reachable(bucket: Bucket) -> Finding:
    """The bucket exists, and the environment's credentials can list its objects."""
    try:
        bucket.names("presence")
    except SharedDirectoryError as error:
        return bad(str(error), "name another with --shared, or set the provider's variables")
    return good(bucket.url)


def conditions(bucket: Bucket) -> Finding:
    """The store refuses a second object under a key that is taken."""
    try:
        bucket.check_conditions()
    except SharedDirectoryError as error:
        return bad(error.reason, "use another object store, or a shared folder")
    return good("a second object of one key is refused")


def speed(bucket: Bucket) -> Finding:
    """Publishing and reading take a reasonable time."""
    folder, block = f"{TEMPORARY_PREFIX}doctor-{uuid.uuid4().hex[:12]}", os.urandom(_BLOCK_BYTES)
    small = [f"{folder}/small-{turn}" for turn in range(_REPEATS)]
    large = [f"{folder}/block-{turn}" for turn in range(_REPEATS)]
    try:
        publish_ms = _median_ms(small, lambda key: bucket.put_new(key, b"x"))
        write_ms = _median_ms(large, lambda key: bucket.put_new(key, block))
        read_ms = _median_ms(large, bucket.get)
    finally:
        with suppress(StoreError):
            for key in (*small, *large):
                bucket.remove(key)
    write, read = (_BLOCK_BYTES / 1e6 / (took / 1e3) for took in (write_ms, read_ms))
    seen = f"publish {publish_ms:.1f} ms, write {write:.0f} MB/s, read {read:.0f} MB/s"
    figures = {
        "publish_ms": publish_ms,
        "write_mb_per_second": write,
        "read_mb_per_second": read,
    }
    if publish_ms > PUBLISH_WARN_MS:
        return doubtful(seen, "every update and model waits that long", **figures)
    return good(seen, **figures)


def _median_ms(keys: list[str], act: Callable[[str], object]) -> float:
    taken = []
    for key in keys:
        began = time.perf_counter()
        act(key)
        taken.append(1e3 * (time.perf_counter() - began))
    return median(taken)
