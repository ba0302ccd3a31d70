"""Makes the token that the processes of a cluster share."""

from __future__ import annotations

import secrets
from pathlib import Path

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.files.store.os_errors import explain
from downpour.files.store.publish import publish

_BYTES = 32


def make_token(path: Path) -> bool:
    """Write a new random token to `path`, readable by this user only, unless the file exists.

    Readers see a whole token or none. If several managers start at once, one of them makes it.

    Returns:
        Whether this call made it.

    Raises:
        SharedDirectoryError: it cannot be written there.
    """
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        publish(path.parent, path.name, [f"{secrets.token_urlsafe(_BYTES)}\n".encode()], mode=0o600)
    except OSError as error:
        raise SharedDirectoryError(path.parent, explain(error)) from error
    except StoreError as error:
        if not path.exists():
            raise SharedDirectoryError(path.parent, str(error)) from error
        return False
    return True
