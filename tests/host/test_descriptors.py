"""How many connections a process takes when it may open few files."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

import pytest

from downpour.host import process as descriptors

Limit = Callable[[int], None]


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """Sets what this process believes that it may open."""

    def limit(files: int) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))

    return limit


@pytest.mark.parametrize("files", [16, 64, 256, 1024, 4096, 65536, resource.RLIM_INFINITY])
def test_connections_leave_room_for_files_and_calls_back(limited: Limit, files: int) -> None:
    """Each worker's third descriptor, a group of files in two threads, and some more."""
    limited(files)
    connections = descriptors.connections_allowed()
    workers = connections // descriptors.CONNECTIONS_OF_A_WORKER
    rest = descriptors.descriptors_allowed() - connections - workers
    assert workers >= 1
    assert rest >= 2 * descriptors.files_at_once() + min(32, files // 8)


def test_a_large_limit_is_not_used_up(limited: Limit) -> None:
    """Each connection has a thread, and a group of files its memory."""
    limited(2**20)
    assert descriptors.connections_allowed() == descriptors.CONNECTIONS_MAX
    assert descriptors.files_at_once() == 64


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ECONNREFUSED])
def test_a_lack_of_descriptors_is_told_from_a_refusal(number: int) -> None:
    """A peer that refuses a connection is dead; a process without descriptors knows nothing."""
    error = OSError(number, os.strerror(number))
    assert descriptors.lacks_descriptors(error) is (number != errno.ECONNREFUSED)
