"""Paths and files that a user names, and what a user may keep secret.

Only this module reads the variables of credentials, and only `network/rpc/trust.py` their files. A
token is never a command's argument, because every user of a machine can read command lines.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Self

from filelock import AcquireReturnProxy, FileLock, Timeout

from downpour.base.errors import SpecError
from downpour.base.names import checked_calls
from downpour.base.options import option, options_of

_NAME_BYTES_MAX = 255
_PATH_BYTES_MAX = 4095  # Linux's PATH_MAX, minus the final byte

_FILE = "file://"
_SCHEMES = ("s3", "gs", "az")
_OF_STORES = tuple(f"{scheme}://" for scheme in _SCHEMES)
_PLACE = re.compile(r"([a-z0-9]+)://([^/?#\s]+)(?:/([^?#]*))?")


def path_of(field: str, given: object) -> Path:
    """Return a path, with `~` expanded."""
    if not isinstance(given, str | os.PathLike):
        raise SpecError(field, given, "must be a path: a string or a Path")
    text = os.fspath(given)
    if not isinstance(text, str) or not text or "\0" in text:
        raise SpecError(field, text, "must be a path; '.' is the current folder")
    if is_object_store(text):
        accepted = (
            "must be a folder on this machine; only manager, worker and clients can use an "
            "object store"
        )
        raise SpecError(field, text, accepted)
    if text.startswith(_FILE) and not text.startswith(f"{_FILE}/"):
        raise SpecError(field, text, "must be a path; a file URL begins with file:///")
    text = text.removeprefix(_FILE)
    try:
        path = Path(text).expanduser()
        longest = max(len(os.fsencode(part)) for part in (*path.parts, ""))
        whole = len(os.fsencode(path))
    except (RuntimeError, UnicodeError):
        accepted = "must be a path: the user or the characters do not exist"
        raise SpecError(field, text, accepted) from None
    if longest > _NAME_BYTES_MAX or whole > _PATH_BYTES_MAX:
        most = f"{_PATH_BYTES_MAX} bytes, and {_NAME_BYTES_MAX} between two slashes"
        raise SpecError(field, text, f"must be a path of at most {most}")
    return path


def is_object_store(location: object) -> bool:
    """Whether a location is, or should be, an object store's URL."""
    return isinstance(location, str) and location.startswith(_OF_STORES)


def checked_url(field: str, url: str) -> str:
    """Return an object store's URL without slashes at its end."""
    found = _PLACE.fullmatch(url)
    parts = (found[3] or "").rstrip("/").split("/") if found else []
    if found is None or found[1] not in _SCHEMES or ("" in parts and parts != [""]):
        accepted = f"must look like s3://BUCKET/PREFIX; known are {', '.join(_SCHEMES)}"
        raise SpecError(field, url, accepted)
    return url.rstrip("/")


_MODEL_SUFFIXES = {".safetensors", ".pt", ".pth", ".bin", ".onnx"}


def empty_folder(field: str, folder: Path) -> Path:
    """Return an empty folder for a model; create it if it is missing."""
    if folder.suffix in _MODEL_SUFFIXES and not folder.exists():
        accepted = "must be a folder; the file in it will be model.safetensors"
        raise SpecError(field, str(folder), accepted)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise SpecError(field, str(folder), "is not empty, and Downpour never overwrites files")
    except OSError as error:
        raise SpecError(field, str(folder), f"cannot be written: {error.strerror}") from None
    return folder


TEXT_BYTES_MAX = 64 * 2**20
"""The limit for a file that people write, such as a spec or a list of hosts."""


def open_user_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    A FIFO without a writer would wait forever, a device may never end, and a mistyped name may be a
    disk image. So we read only regular files, up to a limit.
    """
    # Without O_NONBLOCK, opening a FIFO would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "Not a regular file", os.fspath(path))


def read_user_file(path: str | os.PathLike[str], bytes_max: int = TEXT_BYTES_MAX) -> bytes:
    """Return the content of a regular file."""
    with open_user_file(path) as file:
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max:
        raise OSError(errno.EFBIG, f"Larger than {bytes_max >> 20} MiB", os.fspath(path))
    return content


TOKEN = "DOWNPOUR_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_NAME = "token"  # noqa: S105 - the name of a file
"""The file in a shared directory that holds the token, unless the user names another one."""

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(ACCESS|API|ACCOUNT|PRIVATE)_KEY")
_PLACES = ("_FILE", "_PATH", "_DIR", "_URL", "_URI")
_SECRET_CHARACTERS_MIN = 8
"""A shorter text, such as `1` or `true`, is hardly a secret; hiding it would spoil every line."""


def _trust(text: str, variable: str) -> Any:
    return option("", text, "FILE", variable=variable, title="Trust")


@checked_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token or the file that holds it (the file wins if both are given), and PEM files.

    `tls_cert` and `tls_key` belong to this machine; `tls_ca` signed the certificates of all
    machines. Mutual TLS needs all three.
    """

    token: str = field(default="", repr=False)
    token_file: str = _trust(
        "The file with the cluster's token; DOWNPOUR_TOKEN may hold the token itself.",
        "DOWNPOUR_TOKEN_FILE",
    )
    tls_cert: str = _trust("This machine's certificate, for mutual TLS.", "DOWNPOUR_TLS_CERT")
    tls_key: str = _trust("The certificate's private key.", "DOWNPOUR_TLS_KEY")
    tls_ca: str = _trust(
        "The certificate of the authority that signs every machine's certificate.",
        "DOWNPOUR_TLS_CA",
    )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Credentials:
        """Read `DOWNPOUR_TOKEN`, `DOWNPOUR_TOKEN_FILE` and `DOWNPOUR_TLS_*`."""
        files = {name: environment.get(variable, "") for name, variable in FILES.items()}
        return cls(token=environment.get(TOKEN, ""), **files)

    def to_environment(self) -> dict[str, str]:
        """Return the environment variables with these credentials."""
        values = {TOKEN: self.token}
        values |= {variable: getattr(self, name) for name, variable in FILES.items()}
        return {variable: value for variable, value in values.items() if value}

    def with_files(self, files: Mapping[str, str]) -> Credentials:
        """Return these credentials with other files."""
        return replace(self, **files)


FILES = {name: text.variable for name, (_, text) in options_of(Credentials).items()}
"""The variable of each file that credentials name."""


def known_secrets(credentials: Credentials) -> tuple[str, ...]:
    """Return texts that logs must never hold: the token, and variables that sound secret."""
    token = credentials.token
    if credentials.token_file:
        with suppress(OSError, UnicodeDecodeError):
            token = Path(credentials.token_file).read_text("utf-8").strip()
    named = (
        value
        for name, value in os.environ.items()
        if _SECRET.search(name) and not name.endswith(_PLACES)
    )
    return tuple({text for text in (token, *named) if len(text) >= _SECRET_CHARACTERS_MIN})


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without credentials, for processes that use loopback only."""
    secret = {TOKEN, *FILES.values()}
    return {name: value for name, value in environment.items() if name not in secret}


_LOOK_SECONDS = 0.2


class FolderLock(FileLock):
    """A lock on a file in a folder that exists.

    `FileLock` makes a missing folder with all its parents. A missing folder is often a mount that
    is away: what a process wrote below the mount point, others would never find.
    """

    def acquire(self, *args: Any, **options: Any) -> AcquireReturnProxy[Self]:
        """Take the lock; see `FileLock.acquire`."""
        Path(self.lock_file).parent.stat()
        return super().acquire(*args, **options)

    def acquire_soon(self) -> None:
        """Take the lock; wait a moment, because `is_held` takes it for one, too."""
        self.acquire(timeout=_LOOK_SECONDS, poll_interval=_LOOK_SECONDS / 10)


def is_held(lock: Path, sign: Path) -> bool:
    """Whether a process, here or on another machine, holds a lock and so keeps the file `sign`."""
    if not lock.exists():
        return False
    try:
        with FolderLock(lock, timeout=0):
            return False
    except Timeout:
        return True
    except OSError:  # another user's lock, which this process may only read
        return sign.exists()
