"""Publishes a file as a whole, and tries again where the directory fails.

Some errors are *the directory's* (`SharedDirectoryError`), and we retry. Others are about one name
or this process; docs/internals/architecture.md ("The directory") tells them apart. If descriptors
run out (EMFILE, ENFILE), other threads and processes soon close some. So we wait as for a directory
that is away. A name that does not exist is `FileMissing` if we can list its folder; otherwise the
error is the directory's. We may call a file corrupt only after reading it.
"""

import contextlib
import errno
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import xxhash
from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_exponential

from downpour.base.errors import FileCorrupt, FileMissing, SharedDirectoryError, StoreError
from downpour.base.values import PublishedFile
from downpour.files.store.layout import Buffer, Moved, check_bare_name, named, unnoticed

log = logging.getLogger(__name__)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_OF_ONE_NAME = frozenset(
    {errno.EEXIST, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EFBIG, errno.ENXIO}
)
_OF_THIS_PROCESS = frozenset({errno.ENOMEM})


def explain(error: OSError, *, reading: bool = False) -> str:
    """Say in a few words why we cannot use, or read, a directory or file."""
    if isinstance(error, FileNotFoundError):
        return "no such folder"
    # `mkdir(exist_ok=True)` raises FileExistsError only if something else has the name.
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "not a folder"
    if isinstance(error, PermissionError) or error.errno == errno.EROFS:
        return f"not {'readable' if reading else 'writable'} ({error.strerror})"
    if error.errno in FULL:
        return f"full ({error.strerror})"
    return error.strerror or type(error).__name__


@contextmanager
def writing(folder: Path, name: str) -> Iterator[None]:
    """Translate an OSError of a block that changes a file in a folder."""
    try:
        yield
    except FileExistsError as error:
        raise StoreError(f"{name}: already published; Downpour never reuses names") from error
    except OSError as error:
        if error.errno in _OF_ONE_NAME | _OF_THIS_PROCESS:
            raise StoreError(f"{name}: cannot be written: {explain(error)}") from error
        raise SharedDirectoryError(folder, explain(error)) from error


@contextmanager
def reading(folder: Path, name: str = "") -> Iterator[None]:
    """Translate an OSError of a block that reads a file or lists a folder."""
    try:
        yield
    except OSError as error:
        if error.errno in _OF_ONE_NAME | _OF_THIS_PROCESS:
            what = name or folder.name
            raise StoreError(f"{what}: cannot be read: {error.strerror}") from error
        reason = explain(error, reading=True)
        raise SharedDirectoryError(folder, f"{name}: {reason}" if name else reason) from error


T = TypeVar("T")

_FIRST_WAIT_SECONDS = 0.005
_LONGEST_WAIT_SECONDS = 1.0
_LOGGED_AFTER = 10
"""Failed tries before we log a line: after 2.3 s in total, because short waits are normal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Retries operations on the shared directory.

    We retry a file that is missing, short or altered for `seconds`. We retry a directory that is
    gone, full or closed for `away_seconds`, which by default is the same. Both count only the time
    slept.

    A network file system shows other machines' files late. A name that we looked up too early stays
    missing until we list its directory, and sizes lag by seconds. If a server is away for a moment,
    reads and writes fail, and a full disk may get room again. So we retry a failed operation, soon
    at first and then once a second, until the time of the policy is over. Then we raise the last
    error.

    The time is the sum of the sleeps, so a test that passes its own `sleep` needs no clock.
    """

    seconds: float = 30.0
    away_seconds: float | None = None
    sleep: Callable[[float], object] = time.sleep

    def call(
        self, act: Callable[[], T], *, errors: tuple[type[StoreError], ...] = (StoreError,)
    ) -> T:
        """Return the result of `act`; retry it while it raises one of these errors.

        When the time is over, we raise the last error. `act` may have taken effect although it
        failed.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(errors),
            wait=wait_exponential(multiplier=_FIRST_WAIT_SECONDS, max=_LONGEST_WAIT_SECONDS),
            stop=self._is_over,
            before_sleep=_log_wait,
            sleep=self._pause,
            reraise=True,
        )
        return retrying(act)

    def call_through_outage(self, act: Callable[[], T]) -> T:
        """Call `act`, retrying only while the directory itself is away; see `call`."""
        return self.call(act, errors=(SharedDirectoryError,))

    def _pause(self, seconds: float) -> None:
        self.sleep(seconds)

    def _is_over(self, state: RetryCallState) -> bool:
        error = state.outcome.exception() if state.outcome is not None else None
        away = self.away_seconds if isinstance(error, SharedDirectoryError) else None
        return state.idle_for >= (self.seconds if away is None else away)


def _log_wait(state: RetryCallState) -> None:
    """Log once why we wait."""
    error = state.outcome.exception() if state.outcome is not None else None
    if state.attempt_number != _LOGGED_AFTER:
        return
    if isinstance(error, SharedDirectoryError):
        log.warning("waiting for the shared directory: %s", error)
    elif not isinstance(error, FileMissing | FileCorrupt):
        log.warning("waiting for a store: %s", error)


TEMPORARY_PREFIX = ".tmp-"

# One write of 100 MB can take ten times as long as a hundred of 1 MiB. Blocks that begin at
# multiples of their size get large pages, which readers map faster.
_BLOCK_BYTES = 2**20
_SYNC_BYTES = 32 * _BLOCK_BYTES
"""How much we write between two syncs. The memory takes a gigabyte at once, and a slow server then
needs minutes for a single sync, which tells nothing of how far it is."""
_PIECES_MAX = 1024  # of a gathered write (IOV_MAX)
# link(2) returns EPERM on a file system without hard links.
_NO_HARD_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS})
_NO_RETRY = RetryPolicy(seconds=0.0)


def publish(
    directory: Path,
    name: str,
    chunks: Sequence[Buffer],
    *,
    retry_policy: RetryPolicy = _NO_RETRY,
    mode: int = 0o666,
    moved: Moved = unnoticed,
) -> PublishedFile:
    """Write `chunks` to a new file `name` in `directory`; it is durable on return.

    If a step fails because the directory is gone, full or closed, we retry it as `retry_policy`
    says. `mode` gives the file's permissions, which the process's umask may reduce. `moved` learns
    how many more bytes are durable.

    We write and sync the file under a unique hidden name in the same directory. Then we *link* the
    real name to it, remove the hidden name, and sync the directory. We don't rename the file,
    because a rename silently replaces an existing file, while `link` fails, atomically, even on
    NFS. (Linux's `renameat2(RENAME_NOREPLACE)` fails, too, but NFS does not support it.) If the
    file system has no hard links, we look up the name and then rename; there is no race, because
    names carry tokens.

    We hash and write chunks in blocks that stay in the processor's cache, and never join them. We
    reserve no space beforehand: if a file system cannot reserve (NFS before 4.2), the C library
    would fill the file by hand.
    """
    target = directory / check_bare_name(name)

    def with_retries(step: Callable[[], T]) -> T:
        def translated() -> T:
            with writing(directory, name):
                return step()

        return retry_policy.call_through_outage(translated)

    # We retry each step separately, so that after an outage during the link, we don't write a large
    # file a second time.
    hidden, file = with_retries(partial(_write_new, target, chunks, mode, moved))
    target = directory / file.name
    try:
        with_retries(partial(_give_name, hidden, target))
    finally:
        # A publisher that dies before this line leaves the hidden name to `remove_leftovers`.
        with contextlib.suppress(OSError):
            hidden.unlink()
    with_retries(partial(sync_directory, directory))
    return file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a hidden path beside a file; what is there at the end takes the file's place, whole.

    If the block fails, nothing stays.
    """
    # A short name, because the file's may already be as long as the file system allows.
    part = path.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    try:
        yield part
        part.replace(path)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def link(directory: Path, known: str, name: str, retry_policy: RetryPolicy) -> bool:
    """Give a published file a second name, durably; false if the file system has no hard links."""
    source, target = directory / check_bare_name(known), directory / check_bare_name(name)

    def linked() -> bool:
        with writing(directory, name):
            try:
                is_linked = _link(source, target)
            except FileNotFoundError:
                if directory.is_dir():
                    raise FileMissing(known) from None
                raise
            sync_directory(directory)
            return is_linked

    return retry_policy.call_through_outage(linked)


def sync_directory(directory: Path) -> bool:
    """Make the names in a directory durable; return false if the file system cannot do that."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise
        return False
    finally:
        os.close(descriptor)
    return True


def _write_new(
    target: Path, chunks: Sequence[Buffer], mode: int, moved: Moved
) -> tuple[Path, PublishedFile]:
    """Write and sync a file under a hidden name beside `target`; leave no file if that fails."""
    path = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}")
    digest = xxhash.xxh3_128()
    size_bytes = synced_bytes = 0
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        try:
            for pieces in _blocks(chunks):
                for piece in pieces:
                    digest.update(piece)
                    size_bytes += len(piece)
                _write_all(descriptor, pieces)
                if size_bytes - synced_bytes >= _SYNC_BYTES:
                    os.fsync(descriptor)
                    moved(size_bytes - synced_bytes)
                    synced_bytes = size_bytes
            os.fsync(descriptor)
            moved(size_bytes - synced_bytes)
        finally:
            os.close(descriptor)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    return path, named(target.name, size_bytes, digest.hexdigest())


def _blocks(chunks: Sequence[Buffer]) -> Iterator[list[memoryview]]:
    """Cut and gather chunks into blocks of the file, without joining them."""
    pieces: list[memoryview] = []
    room_bytes = _BLOCK_BYTES
    for chunk in chunks:
        rest = memoryview(chunk)
        rest = rest.cast("B") if rest.nbytes else memoryview(b"")  # an empty view has no cast
        while rest:
            pieces.append(rest[:room_bytes])
            room_bytes -= len(pieces[-1])
            rest = rest[len(pieces[-1]) :]
            if room_bytes == 0 or len(pieces) == _PIECES_MAX:
                yield pieces
                pieces = []
                room_bytes = room_bytes or _BLOCK_BYTES
    if pieces:
        yield pieces


def _write_all(descriptor: int, pieces: list[memoryview]) -> None:
    while pieces:
        written = os.writev(descriptor, pieces)
        while pieces and written >= len(pieces[0]):
            written -= len(pieces.pop(0))
        if pieces:
            pieces[0] = pieces[0][written:]


def _give_name(temporary: Path, target: Path) -> None:
    try:
        if _link(temporary, target):
            return
    except FileNotFoundError:
        # The folder exists, but without the file: another folder has replaced it meanwhile.
        if temporary.parent.is_dir():
            raise StoreError(f"{target.name}: its temporary file has vanished") from None
        raise
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    temporary.rename(target)


def _link(source: Path, target: Path) -> bool:
    """Give a file a second name; false if the file system has no hard links."""
    try:
        os.link(source, target)
    except FileExistsError:
        # A link may have succeeded although its answer was lost. If this process or the NFS client
        # then repeats it, the name exists already.
        if not source.samefile(target):
            raise
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        return False
    return True
