"""The faults of a simulated disk, and how a store reacts to them."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from downpour.base.errors import FileMissing
from downpour.files.store.os_errors import reading, writing

_FOLDER = Path("shared")
Operation = Literal["publish", "read", "list", "delete", "lock", "claim", "append", "sync"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
_READS = {"read", "list"}
ERRORS = "EACCES", "EROFS", "EIO", "ESTALE", "ETIMEDOUT", "ENOSPC", "ENOENT"
"""The errors of a file server. If every operation raises the last one, the server is away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """An error with which one or all operations of the directory fail, on one or all hosts."""

    error: str = "ENOENT"
    operation: Operation | None = None
    host: str = ""

    def strikes(self, host: str, operation: Operation) -> bool:
        """Whether this operation fails on this host."""
        return self.operation in {None, operation} and self.host in {"", host}


AWAY = Trouble()
"""Every operation fails on every host."""


def refuse(trouble: Trouble, operation: Operation, name: str) -> None:
    """Raise the store's error for a system error."""
    one_file = bool(name) and operation == "read" == trouble.operation
    if trouble.error == "ENOENT" and one_file:
        raise FileMissing(name)  # the folder itself can be listed
    code = getattr(errno, trouble.error)
    translated = reading(_FOLDER, name) if operation in _READS else writing(_FOLDER, name)
    with translated:
        raise OSError(code, os.strerror(code))
