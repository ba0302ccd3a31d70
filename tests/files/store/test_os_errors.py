"""Whose failure an error of the system is, for every operation on the shared directory alike."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError, StoreError
from downpour.core.scheduler import events as on
from downpour.files.store import DirectoryStore, SharedDirectory
from downpour.files.store.lease import Lease, current_leader, highest_term
from downpour.files.store.publish import reading, writing
from downpour.record.journal import Journal, read_journal, segments
from downpour.record.record import RecordReader, export_record
from tests.specs import plain_spec

OF_THE_DIRECTORY = (
    errno.EACCES,
    errno.EROFS,
    errno.EIO,
    errno.ESTALE,
    errno.ETIMEDOUT,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENOTCONN,
    errno.ENOLCK,
    errno.ENODEV,
    errno.EREMOTEIO,
    errno.EMFILE,
    errno.ENFILE,
)
OF_ONE_FILE = (errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EFBIG, errno.ENXIO)
OF_THIS_PROCESS = (errno.ENOMEM,)
SUBMITTED = on.ExperimentSubmitted(at_seconds=0.0, experiment="any", spec=plain_spec(shards=2))


@pytest.mark.parametrize("number", OF_THE_DIRECTORY)
@pytest.mark.parametrize("told", [reading, writing])
def test_an_error_of_server_or_disk_is_the_directorys(
    tmp_path: Path, told: Callable[..., object], number: int
) -> None:
    """Whether a file is read or written; a lack of descriptors passes like an outage."""
    with pytest.raises(SharedDirectoryError), told(tmp_path, "file"):  # type: ignore[attr-defined]
        raise OSError(number, os.strerror(number))


@pytest.mark.parametrize("number", OF_ONE_FILE + OF_THIS_PROCESS)
@pytest.mark.parametrize("told", [reading, writing])
def test_an_error_of_one_name_or_process_is_not_the_directorys(
    tmp_path: Path, told: Callable[..., object], number: int
) -> None:
    """To wait for the directory would not help."""
    with pytest.raises(StoreError) as raised, told(tmp_path, "file"):  # type: ignore[attr-defined]
        raise OSError(number, os.strerror(number))
    assert not isinstance(raised.value, SharedDirectoryError)
    assert str(raised.value).startswith("file: cannot be ")


OPERATIONS: dict[str, Callable[[SharedDirectory, Path], object]] = {
    "publish": lambda _, path: DirectoryStore(path, patience_seconds=0).put_new("new", [b"x"]),
    "list": lambda _, path: DirectoryStore(path, patience_seconds=0).list(),
    "describe": lambda _, path: DirectoryStore(path, patience_seconds=0).describe("file"),
    "delete": lambda _, path: DirectoryStore(path).delete("file"),
    "sweep": lambda _, path: DirectoryStore(path).remove_leftovers(),
    "create": lambda shared, _: shared.create_experiment("new"),
    "lock": lambda shared, _: Lease(shared).acquire(wait=False, while_waiting=lambda _: None),
    "claim": lambda shared, _: Lease(shared).claim("here:1"),
    "terms": lambda shared, _: highest_term(shared.terms),
    "journal": lambda _, path: read_journal(path),
    "segments": lambda _, path: segments(path),
    "keep": lambda _, path: kept(path),
    "record": lambda _, path: RecordReader(path).lines(0),
    "export": lambda _, path: export_record(path, ["line"]),
}


def kept(path: Path) -> None:
    """Write a line into a journal."""
    journal = Journal(path, 7)
    journal.append(1, 0.0, SUBMITTED)
    journal.commit()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOTCONN])
@pytest.mark.parametrize("name", list(OPERATIONS))
def test_no_operation_raises_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """Whatever is done there: where the directory is away, one error says so."""
    shared = SharedDirectory.open(tmp_path, create=True)
    Lease(shared).claim("there:1")
    shared.create_experiment("any")
    path = shared.experiment_path("any")
    (path / "file").write_bytes(b"")
    kept(path)

    def away(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    for call in ("open", "listdir", "scandir", "mkdir", "unlink", "lstat"):
        monkeypatch.setattr(os, call, away)
    with pytest.raises(SharedDirectoryError):
        OPERATIONS[name](shared, path)


def a_fifo(path: Path) -> None:
    """Make a FIFO that nobody writes to."""
    os.mkfifo(path)


def a_link(path: Path) -> None:
    """Make a link that leads out of the folder."""
    (path.parent / "target").write_bytes(b"content")
    path.symlink_to(path.parent / "target")


def a_socket(path: Path) -> None:
    """Make a socket that nobody serves."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def a_folder(path: Path) -> None:
    """Make a folder."""
    path.mkdir()


@pytest.mark.parametrize("make", [a_fifo, a_link, a_socket, a_folder])
def test_an_irregular_file_delays_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], None]
) -> None:
    """In a file's place it is corrupt, for everybody who reads there; its writer is not awaited."""
    monkeypatch.chdir(tmp_path)  # a socket's address is short
    shared = SharedDirectory.open(tmp_path, create=True)
    store, path = shared.create_experiment("any"), shared.experiment_path("any")
    file = store.put_new("update", [b"content"])
    store.delete("update")
    make(Path("experiments/any/update"))
    hasty = DirectoryStore(path, patience_seconds=0)
    looks: list[Callable[[], object]] = [
        lambda: hasty.view(file),
        lambda: hasty.read(file),
        lambda: hasty.describe("update"),
        lambda: hasty.read_unchecked("update", limit_bytes=9),
    ]
    for look in looks:
        with pytest.raises(StoreError) as raised:
            look()
        assert not isinstance(raised.value, FileMissing | SharedDirectoryError)
    make(Path("experiments/any/journal-000001-0001.jsonl"))
    with pytest.raises(StoreError):
        read_journal(path)
    with pytest.raises(StoreError):
        RecordReader(path).lines(0)
    shared.terms.mkdir()
    make(Path("terms/000001"))
    assert current_leader(shared.terms) is None


def test_a_record_in_whose_place_a_fifo_lies_is_not_read(tmp_path: Path) -> None:
    """Nor is whoever asks for its lines held up."""
    export_record(tmp_path, ["line"])
    record = RecordReader(tmp_path)
    (tmp_path / "record.jsonl").unlink()
    os.mkfifo(tmp_path / "record.jsonl")
    with pytest.raises(FileCorrupt, match="not a regular file"):
        record.lines(0)
