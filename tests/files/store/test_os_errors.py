"""Whose failure an error of the system is, and how often a look is repeated."""

import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError, StoreError
from downpour.core.scheduler import events as on
from downpour.files.store import DirectoryStore, SharedDirectory
from downpour.files.store.directory import Mount, find_mount, innermost
from downpour.files.store.lease import Lease, current_leader, highest_term
from downpour.files.store.publish import RetryPolicy, reading, writing
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
    "publish": lambda _, path: DirectoryStore(path, RetryPolicy(seconds=0)).put_new("new", [b"x"]),
    "list": lambda _, path: DirectoryStore(path, RetryPolicy(seconds=0)).list(),
    "describe": lambda _, path: DirectoryStore(path, RetryPolicy(seconds=0)).describe("file"),
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
    hasty = DirectoryStore(path, RetryPolicy(seconds=0))
    looks: list[Callable[[], object]] = [
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


def looks_until(succeeds_at: int) -> tuple[Callable[[], str], list[int]]:
    """Return a look that fails until its call of that number, and the list of its calls."""
    calls: list[int] = []

    def look() -> str:
        calls.append(len(calls) + 1)
        if len(calls) < succeeds_at:
            raise FileMissing("file")
        return "seen"

    return look, calls


def test_a_success_or_no_patience_is_one_look() -> None:
    """Patience costs nothing without need; without any, the first error stands."""
    slept: list[float] = []
    look, calls = looks_until(1)
    assert RetryPolicy(seconds=9, sleep=slept.append).call(look) == "seen"
    assert (calls, slept) == ([1], [])
    look, calls = looks_until(2)
    with pytest.raises(FileMissing):
        RetryPolicy(seconds=0).call(look)
    assert calls == [1]


def test_the_second_look_comes_at_once_and_later_ones_rarely() -> None:
    """Waits grow from milliseconds to one second."""
    slept: list[float] = []
    look, _ = looks_until(13)
    RetryPolicy(seconds=60, sleep=slept.append).call(look)
    assert slept[0] < 0.01
    assert slept == sorted(slept)
    assert slept[-1] == 1.0


def test_other_errors_are_not_waited_for() -> None:
    """Only what a network file system may cure is repeated."""

    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RetryPolicy(seconds=9, sleep=lambda _: pytest.fail("slept")).call(broken)


def test_with_the_directory_there_may_be_another_patience_than_with_a_file() -> None:
    """One that is away is waited for as long as that says, and a file that is missing is not."""

    def away() -> None:
        raise SharedDirectoryError("shared", "is away")

    def missing() -> None:
        raise FileMissing("file")

    for act, at_least in ((away, 9), (missing, 3)):
        slept: list[float] = []
        with pytest.raises(StoreError):
            RetryPolicy(seconds=3, away_seconds=9, sleep=slept.append).call(act)
        assert at_least <= sum(slept) <= at_least + 1


def test_insisting_callers_wait_for_the_directory_alone() -> None:
    """What a file's own error leads to does not change by waiting."""
    look, calls = looks_until(2)
    with pytest.raises(FileMissing):
        RetryPolicy(seconds=9, sleep=lambda _: pytest.fail("slept")).call_through_outage(look)
    assert calls == [1]


def test_a_directory_that_stays_away_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever looks at the log sees what is waited for."""

    def away() -> None:
        raise SharedDirectoryError("shared", "is away")

    with pytest.raises(SharedDirectoryError):
        RetryPolicy(seconds=60, sleep=lambda _: None).call_through_outage(away)
    assert [record.message for record in caplog.records] == [
        "waiting for the shared directory: shared directory shared: is away"
    ]


MOUNTS = [
    Mount(Path(point), kind, tuple(options.split(",")))
    for point, kind, options in (
        ("/", "ext4", "rw,relatime,discard"),
        ("/mnt", "tmpfs", "rw"),
        ("/mnt/lab share", "nfs4", "rw,relatime,vers=4.1,soft,local_lock=none"),
        ("/mnt/old", "nfs", "rw,relatime,vers=3,hard,nolock,local_lock=all"),
        ("/mnt/huge", "tmpfs", "rw,size=4g,huge=within_size"),
        ("/mnt/small", "tmpfs", "rw,huge=never"),
        ("/mnt/ssh", "fuse.sshfs", "rw"),
        ("/", "overlay", "rw,lowerdir=/a"),
    )
]


def test_the_innermost_mount_counts_and_later_ones_cover_earlier_ones() -> None:
    """A name that only begins alike is another folder."""
    share = innermost(MOUNTS, Path("/mnt/lab share/here"))
    assert share is not None
    assert (share.kind, share.point, share.is_network) == ("nfs4", Path("/mnt/lab share"), True)
    beside = innermost(MOUNTS, Path("/mnt/lab share too"))
    assert beside is not None
    assert (beside.kind, beside.is_network) == ("tmpfs", False)
    there = innermost(MOUNTS, Path("/mnt/ssh"))
    assert there is not None
    assert there.is_network, "what a program serves may come from anywhere"
    outside = innermost(MOUNTS, Path("/srv"))
    assert outside is not None
    assert outside.kind == "overlay"
    assert innermost([], Path("/srv")) is None


def test_options_that_weaken_files_are_named() -> None:
    """Those of the mount, exactly; `local_lock=none` is none of them."""
    soft, old = innermost(MOUNTS, Path("/mnt/lab share")), innermost(MOUNTS, Path("/mnt/old"))
    assert soft is not None
    assert old is not None
    assert list(soft.doubtful) == ["soft"]
    assert list(old.doubtful) == ["nolock", "local_lock=all"]


@pytest.mark.parametrize(
    ("folder", "small"), [("/mnt", True), ("/mnt/small", True), ("/mnt/huge", False), ("/", False)]
)
def test_memory_in_small_pages_is_known(folder: str, *, small: bool) -> None:
    """As it is mounted by default; what lies on a disk has the pages that its cache likes."""
    mount = innermost(MOUNTS, Path(folder))
    assert mount is not None
    assert mount.is_in_small_pages is small


def test_this_machine_tells_of_its_root() -> None:
    """A folder of it is served by some mount."""
    mount = find_mount(Path("/"))
    assert mount is not None
    assert mount.point == Path("/")
