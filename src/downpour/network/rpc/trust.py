"""A process's loaded credentials: the ones that it shows, and its demands on peers.

`Trust` holds a token and two TLS contexts, one for serving and one for calling. Without any of
them, a process trusts every peer, which we allow only for a service on loopback. We use mutual TLS
1.3. Certificates must pass the strict checks that Python 3.13 made the default, even on older
versions.
"""

from __future__ import annotations

import os
import shlex
import ssl
import stat
from dataclasses import dataclass, field
from typing import BinaryIO

from downpour.base.errors import SpecError
from downpour.host.credentials import Credentials
from downpour.host.user_file import open_user_file

TOKEN_CHARACTERS_MIN = 16
_TOKEN_BYTES_MAX = 4096
_TLS_FILES = ("tls_cert", "tls_key", "tls_ca")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The token that both sides must hold, and the contexts of TLS; None if not used."""

    token: bytes | None = field(default=None, repr=False)
    serving: ssl.SSLContext | None = None
    calling: ssl.SSLContext | None = None

    @classmethod
    def load(cls, credentials: Credentials) -> Trust:
        """Read the files that the credentials name.

        Raises:
            SpecError: a file is missing, unreadable or invalid, every user of the machine may read
                the token or the key, or the token is too short. Names the field.
        """
        serving, calling = _tls(credentials)
        return cls(token=_token(credentials), serving=serving, calling=calling)

    @property
    def is_open(self) -> bool:
        """Whether this process trusts every peer."""
        return self.token is None and self.serving is None


OPEN = Trust()


def _token(credentials: Credentials) -> bytes | None:
    if credentials.token_file:
        field_, text = "token_file", _token_text(credentials.token_file)
    elif credentials.token:
        field_, text = "DOWNPOUR_TOKEN", credentials.token
    else:
        return None
    token = text.strip().encode(
        errors="surrogateescape"
    )  # as Python decodes variables that are not UTF-8
    if len(token) < TOKEN_CHARACTERS_MIN:
        shown = credentials.token_file or "…"  # never show a token, not even a bad one
        raise SpecError(field_, shown, f"a token needs at least {TOKEN_CHARACTERS_MIN} characters")
    return token


def _token_text(path: str) -> str:
    try:
        with open_user_file(path) as file:
            # Check the open file, so that we read the same file that we checked.
            _check_private("token_file", path, file)
            return file.read(_TOKEN_BYTES_MAX).decode()
    except FileNotFoundError:
        made = "create one with `downpour manager --make-token`"
        raise SpecError("token_file", path, f"no such file; {made}") from None
    except OSError as error:
        raise SpecError("token_file", path, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SpecError("token_file", path, "is not text") from None


def _tls(credentials: Credentials) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    given = {name: getattr(credentials, name) for name in _TLS_FILES}
    if not any(given.values()):
        return None, None
    for name, path in given.items():
        if not path:
            raise SpecError(name, path, "mutual TLS needs tls_cert, tls_key and tls_ca")
        _check_readable(name, path)
    serving = _context(ssl.PROTOCOL_TLS_SERVER, **given)
    serving.num_tickets = 0  # no resumption, because clients keep their connections
    return serving, _context(ssl.PROTOCOL_TLS_CLIENT, **given)


def _context(role: int, tls_cert: str, tls_key: str, tls_ca: str) -> ssl.SSLContext:
    """Return a context that shows this machine's certificate and demands the peer's.

    The authority must have signed both. A caller also checks the server's name, because
    `PROTOCOL_TLS_CLIENT` does so.
    """
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(tls_ca)
    except ssl.SSLError:
        raise SpecError("tls_ca", tls_ca, "holds no certificate in PEM form") from None
    try:
        context.load_cert_chain(tls_cert, tls_key, password=_no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SpecError("tls_key", tls_key, f"is not the key for {tls_cert}") from None
        accepted = f"not a certificate and its key in PEM form, without a password (key: {tls_key})"
        raise SpecError("tls_cert", tls_cert, accepted) from None
    return context


def _check_readable(name: str, path: str) -> None:
    try:
        with open_user_file(path) as file:
            if name == "tls_key":
                _check_private(name, path, file)
    except OSError as error:
        raise SpecError(name, path, f"cannot be read ({error.strerror})") from None


def _check_private(name: str, path: str, file: BinaryIO) -> None:
    """Refuse a secret that every user can read; a group may, because clusters share it that way."""
    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if mode & stat.S_IRWXO:
        mend = f"run `chmod 600 {shlex.quote(path)}`"
        raise SpecError(name, path, f"is open to every user (mode {mode:04o}); {mend}")


def _no_password() -> str:
    """Return no password, because the library would otherwise ask for one at the terminal."""
    return ""
