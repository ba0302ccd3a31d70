"""The token's file: made once, for this user alone."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from downpour.base.errors import StoreError
from downpour.files.store.shared_directory import make_token
from downpour.host.paths import Credentials
from downpour.network.rpc import Trust


def test_a_token_is_made_once_and_readable_by_its_user_alone(tmp_path: Path) -> None:
    """A second call leaves it as it is."""
    path = tmp_path / "new folder" / "token"
    kept = os.umask(0)
    try:
        assert make_token(path)
    finally:
        os.umask(kept)
    assert path.stat().st_mode & 0o777 == 0o600
    made = Trust.load(Credentials(token_file=str(path))).token
    assert made is not None
    assert len(made) >= 32
    assert not make_token(path)
    assert Trust.load(Credentials(token_file=str(path))).token == made


def test_of_many_that_start_at_once_one_makes_it(tmp_path: Path) -> None:
    """All of them then read the same."""
    path = tmp_path / "token"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(make_token, [path] * 8))
    assert made.count(True) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


def test_two_tokens_are_never_the_same(tmp_path: Path) -> None:
    """They come from the system's random numbers."""
    for name in "ab":
        make_token(tmp_path / name)
    assert (tmp_path / "a").read_text() != (tmp_path / "b").read_text()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """A path under a file can be made by nobody."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="file"):
        make_token(tmp_path / "file" / "token")
