"""A directory that other machines see late: what is told of a file is believed only in time."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError
from downpour.base.values import PublishedFile
from downpour.files.store import DirectoryStore, directory
from downpour.files.store.directory import Mount, names_in
from downpour.files.store.publish import RetryPolicy

from .conftest import away_for


class Later:
    """A `sleep` that lets something happen at its third call, as another machine would."""

    def __init__(self, happening: Callable[[], object]) -> None:
        self._happening = happening
        self.calls = 0

    def __call__(self, _seconds: float) -> None:
        self.calls += 1
        if self.calls == 3:
            self._happening()


def published_elsewhere(tmp_path: Path, content: bytes) -> tuple[Path, PublishedFile]:
    """Return a file that lies in another folder, and what was told of it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    file = DirectoryStore(elsewhere).put_new("update", [content])
    return elsewhere / "update", file


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Return the folder of the store under test."""
    path = tmp_path / "here"
    path.mkdir()
    return path


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "remote"])
@pytest.mark.parametrize(
    ("held", "verified"),
    [(None, False), (b"con", False), (b"c0ntent", True)],
    ids=["late", "short", "altered"],
)
def test_a_file_of_another_machine_is_waited_for(
    tmp_path: Path,
    here: Path,
    held: bytes | None,
    monkeypatch: pytest.MonkeyPatch,
    *,
    verified: bool,
    is_remote: bool,
) -> None:
    """Its name is told before this machine sees it, or all of it: the store looks until it does."""
    monkeypatch.setattr(DirectoryStore, "_is_remote", is_remote)
    path, file = published_elsewhere(tmp_path, b"content")
    if held is not None:
        (here / "update").write_bytes(held)
    sleep = Later(lambda: path.replace(here / "update"))
    store = DirectoryStore(here, RetryPolicy(sleep=sleep))
    assert bytes(store.read(file, verified=verified)) == b"content"
    assert sleep.calls == 3


def test_a_second_name_is_a_link_where_there_are_links(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written again; a server that repeats the request has done no harm."""
    store = DirectoryStore(here, RetryPolicy(seconds=0))
    file, real = store.put_new("a", [b"content"]), os.link

    def twice(*places: Path) -> None:
        real(*places)
        real(*places)

    monkeypatch.setattr(os, "link", twice)
    store.link(file, "b")
    assert (here / "b").samefile(here / "a")
    with pytest.raises(FileMissing):
        store.link(PublishedFile(name="gone", size_bytes=1, checksum=""), "d")

    def never(*_: Path) -> None:
        raise OSError(errno.EPERM, "no links")

    monkeypatch.setattr(os, "link", never)
    assert bytes(store.read(store.link(file, "c"))) == b"content"
    assert not (here / "c").samefile(here / "a")


def test_the_bytes_of_a_server_are_counted_as_they_come(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is read through before it is mapped, and a long one is seen to come."""
    monkeypatch.setattr(DirectoryStore, "_is_remote", True)
    moved: list[int] = []
    file = DirectoryStore(here).put_new("update", [bytes(5 << 19)])
    DirectoryStore(here, moved=moved.append).read(file, verified=False)
    assert moved == [1 << 20, 1 << 20, 1 << 19]


def test_patience_ends(here: Path) -> None:
    """A file that stays away is missing, one that stays short is corrupt."""
    slept: list[float] = []
    store = DirectoryStore(here, RetryPolicy(seconds=4, sleep=slept.append))
    file = store.put_new("update", [b"content"])
    (here / "update").write_bytes(b"short")
    with pytest.raises(FileCorrupt, match="holds 5 bytes, but 7"):
        store.read(file, verified=False)
    store.delete("update")
    with pytest.raises(FileMissing):
        store.read(file, verified=False)
    assert 8 <= sum(slept) <= 10


def test_a_directory_that_vanished_is_named(here: Path) -> None:
    """Where not even the directory can be listed, the error is about the directory."""
    store = DirectoryStore(here, RetryPolicy(seconds=0))
    file = store.put_new("update", [b"content"])
    store.delete("update")
    here.rmdir()
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        store.read(file, verified=False)
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        store.list()


def test_a_folder_that_was_asked_for_too_early_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client believes that it is missing until its parent is listed."""
    here, listing = tmp_path / "here", os.listdir
    listed: list[Path] = []

    def as_a_client_sees_it(path: Path) -> list[str]:
        listed.append(path)
        if path == here and tmp_path not in listed:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return listing(path)

    here.mkdir()
    monkeypatch.setattr(os, "listdir", as_a_client_sees_it)
    assert DirectoryStore(here).list() == []
    assert listed == [here, tmp_path, here]


def test_a_server_that_is_away_for_a_moment_is_waited_for(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that failed is repeated, and so is what a publisher could not write."""
    slept: list[float] = []
    store = DirectoryStore(here, RetryPolicy(sleep=slept.append))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", away_for(2, os.fsync))
        file = store.put_new("update", [b"content"])
    monkeypatch.setattr(os, "open", away_for(3, os.open))
    assert bytes(store.read(file)) == b"content"
    assert len(slept) == 5


@pytest.fixture
def elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """A store that seems to lie on another machine, and does not sleep."""
    nfs = Mount(point=here, kind="nfs4", options=())
    monkeypatch.setattr(directory, "find_mount", lambda _: nfs)
    return DirectoryStore(here, RetryPolicy(seconds=4, sleep=lambda _: None))


def test_a_file_on_another_machine_is_fetched_before_it_is_mapped(
    elsewhere: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be fetched is waited for, then told; in a mapped page it would be fatal."""
    content = bytes(range(256)) * 10_000
    file = elsewhere.put_new("update", [content])
    monkeypatch.setattr(os, "preadv", away_for(2, os.preadv))
    assert bytes(elsewhere.read(file, verified=False)) == content
    monkeypatch.setattr(os, "preadv", away_for(10**9, os.preadv))
    with pytest.raises(SharedDirectoryError, match="here: update: Input/output error"):
        elsewhere.read(file, verified=False)


def test_a_file_of_this_machine_is_mapped_at_once(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the whole way from the disk is the system's."""
    store = DirectoryStore(here)
    file = store.put_new("update", [b"content"])
    monkeypatch.setattr(os, "preadv", lambda *_: pytest.fail("fetched"))
    assert bytes(store.read(file, verified=False)) == b"content"


def test_a_file_that_is_cut_while_it_is_fetched_is_corrupt(
    elsewhere: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page beyond its end would be fatal, too."""
    file = elsewhere.put_new("update", [b"content"])
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(FileCorrupt, match="holds 0 bytes, but 7 were published"):
        elsewhere.read(file, verified=False)


def test_hidden_files_are_not_listed_and_leftovers_can_be_removed(here: Path) -> None:
    """What a publisher that died left behind is no file of the store."""
    store = DirectoryStore(here)
    store.put_new("update", [b"content"])
    (here / ".tmp-dead").write_bytes(b"half")
    (here / ".nfs-kept").write_bytes(b"")
    assert store.list() == ["update"]
    store.remove_leftovers()
    assert sorted(names_in(here)) == [".nfs-kept", "update"]


def test_views_copy_nothing_and_let_go(here: Path) -> None:
    """Views hold no descriptor once they are dropped."""
    store = DirectoryStore(here)
    file = store.put_new("update", [b"content"])
    before = len(names_in(Path("/proc/self/fd")))
    views = [store.read(file) for _ in range(20)]
    del views
    assert len(names_in(Path("/proc/self/fd"))) <= before
