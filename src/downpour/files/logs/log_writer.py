"""Writes a process's log from a thread, so that nothing else in the process waits for the folder.

The thread takes lines from a bounded queue. If the folder is slow, full or gone, the queue fills
up and takes no more lines.
"""

from __future__ import annotations

import re
import secrets
from collections import deque
from contextlib import suppress
from threading import Event, RLock, Thread

from downpour.files.logs.log_places import ENDING, PIECE_BYTES_MAX, LogPlace

QUEUE_BYTES_MAX = 128 * 1024
"""The most that a process may log between two writes of the thread; it limits a loop that logs."""
PIECES_KEPT = 4
CLOSE_SECONDS = 2.0
_NAME_CHARACTERS = 60


class LogWriter:
    """Writes the log of one process until `close`, and keeps its last `PIECES_KEPT` pieces.

    Args:
        place: where to keep them.
        owner: the beginning of the pieces' names; a random part makes them unique to this process.
    """

    def __init__(self, place: LogPlace, owner: str) -> None:
        self._place = place
        self._stem = f"{_plain(owner)}-{secrets.token_hex(4)}"
        self._lines = deque[bytes]()
        self._queued_bytes = 0
        # Reentrant: a signal handler may log while its thread holds the lock.
        self._lock = RLock()
        self._number = 0
        self._size_bytes = 0
        self._pending = b""
        self._is_cut = False
        self._closing = Event()
        self._thread = Thread(target=self._run, name="log", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def put(self, line: bytes) -> bool:
        """Take a line and return at once; return false if the queue is full."""
        with self._lock:
            has_room = self._queued_bytes + len(line) <= QUEUE_BYTES_MAX
            if has_room:
                self._lines.append(line)
                self._queued_bytes += len(line)
        return has_room

    def close(self) -> None:
        """Write the rest, for at most two seconds."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while not self._closing.wait(self._place.interval_seconds):
            self.write()
        self.write()

    def write(self) -> None:
        """Write the queue; bytes that the place does not take stay for the next time."""
        # We suppress all errors: a log must end no thread, and cannot report its own failure.
        with suppress(Exception):
            self._write_out()
            self._take()
            self._write_out()

    def _write_out(self) -> None:
        while self._pending:
            self._begin_piece()
            written = self._place.append(self._name(self._number), self._pending)
            self._pending = self._pending[written:]
            self._size_bytes += written
            self._is_cut = bool(self._pending)
            if written == 0:
                return

    def _take(self) -> None:
        """Move the queue to the bytes to write next."""
        with self._lock:
            self._pending += b"".join(self._lines)
            self._lines.clear()
            self._queued_bytes = 0

    def _begin_piece(self) -> None:
        """Begin a new piece if the current one is full, and remove the oldest."""
        # If a full disk has cut off a line, its rest belongs behind its beginning.
        if self._size_bytes + len(self._pending) <= PIECE_BYTES_MAX or self._is_cut:
            return
        self._number += 1
        self._size_bytes = 0
        if self._number >= PIECES_KEPT:
            self._place.remove(self._name(self._number - PIECES_KEPT))

    def _name(self, number: int) -> str:
        return f"{self._stem}-{number:06d}{ENDING}"


def _plain(owner: str) -> str:
    """Return a file name that begins like the owner's name, which may have any characters."""
    return re.sub(r"[^A-Za-z0-9._-]+", "_", owner)[:_NAME_CHARACTERS].strip(".") or "process"
