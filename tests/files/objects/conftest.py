"""One S3 server for the tests of this folder; where it cannot be had, they are skipped."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.files.objects.cloud import Cloud
from tests.files.objects.lab import S3Server, why_not


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A server with a bucket called `bucket`."""
    if reason := why_not():
        pytest.skip(reason)
    with S3Server(tmp_path_factory.mktemp("s3") / "log.txt") as server:
        server.make_bucket("bucket")
        yield server


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cloud:
    """An empty one."""
    return Cloud(monkeypatch, tmp_path)
