"""The user's code as a bundle of files.

Two managers make the same JSON of the same files, so its SHA-256 names the content. The compressed
bytes may differ between builds of zlib, and nothing depends on them. A reader trusts nothing: it
inflates no more than a bundle may hold, and checks the SHA-256, the form and each path.
"""

from __future__ import annotations

import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any, Self

from downpour.core.spec import Spec
from downpour.learning.allowlist import in_installed_folder
from downpour.learning.user_code import digest_of, project_of

BYTES_MAX = 8 * 2**20
"""How long the JSON may be."""
FILES_MAX = 1000
PACKED_BYTES_MAX = BYTES_MAX + 2**16
"""How long the compressed file may be: what does not shrink grows by a few bytes."""

_FORMAT = 1
_LEVEL = 6
_GZIP = 16 + zlib.MAX_WBITS
_PATH_LETTERS_MAX = 200
# Importable by name, and alike on every file system: no letters that one may spell in two ways.
_PATH = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*/)*[A-Za-z_][A-Za-z0-9_]*\.py")
_OWN = __name__.partition(".")[0]
_PYTHONS = sys.stdlib_module_names | {"sitecustomize", "usercustomize"}
"""The last two are imported by every Python process that finds them."""
_NEEDED = {"PIL", "filelock", "msgspec", "numpy", "obstore", "psutil", "pydantic"}
_NEEDED |= {"pydantic_core", "rich", "setproctitle", "tenacity", "thrift", "tomli_w", "torch"}
_NEEDED |= {"torchvision", "typer", "xxhash"}
"""Downpour's imports, wherever they are installed: a developer's torch is in no usual folder."""


class BadBundle(Exception):
    """Files that cannot be shipped, or bytes that are no bundle; says why in one line."""


@dataclass(frozen=True)
class Bundle:
    """The files of a project; `of` and `unpacked` check what they make one of.

    `files` are contents by path from the project's root, with slashes.
    """

    files: Mapping[str, bytes]

    @classmethod
    def of(cls, files: Mapping[str, bytes]) -> Self:
        """Make a bundle of files."""
        _check_paths(files)
        bundle = cls(dict(sorted(files.items())))
        _check_length(len(bundle.content))
        return bundle

    @classmethod
    def unpacked(cls, packed: bytes, digest: str) -> Self:
        """Read the bundle with a SHA-256 from a file's bytes."""
        content = _inflated(packed)
        if sha256(content).hexdigest() != digest:
            raise BadBundle("it differs from the submitted code: its SHA-256 is another one")
        bundle = cls.of(_files_in(content))
        if bundle.content != content:
            raise BadBundle("its JSON is not canonical")
        return bundle

    @cached_property
    def content(self) -> bytes:
        """The canonical JSON."""
        texts = {path: _text(path, content) for path, content in self.files.items()}
        stated = {"files": texts, "format": _FORMAT}
        text = json.dumps(stated, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        return text.encode()

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the JSON, in 64 hexadecimal digits."""
        return sha256(self.content).hexdigest()

    def packed(self) -> bytes:
        """Return the bytes of the file."""
        return gzip.compress(self.content, _LEVEL, mtime=0)

    def check(self, code: Mapping[str, str]) -> None:
        """Check that every file is one of a submission, and that none replaces a package here."""
        for path, content in self.files.items():
            if code.get(path) != digest_of(content):
                raise BadBundle(f"{path} has changed since the submission")
        for name in sorted({_top_level(path) for path in self.files}):
            if in_installed_folder(name):
                accepted = f"{name} is also an installed package, which a bundle never replaces"
                raise BadBundle(accepted)


def _check_paths(paths: Iterable[str]) -> None:
    folded = set[str]()
    for count, path in enumerate(paths, start=1):
        shown = repr(path[:80])
        if count > FILES_MAX:
            raise BadBundle(f"it has more than {FILES_MAX} files")
        if len(path) > _PATH_LETTERS_MAX or not _PATH.fullmatch(path):
            raise BadBundle(f"{shown} is not the path of a Python module in a project")
        if owner := _owner(_top_level(path)):
            raise BadBundle(f"{shown} would replace {owner}")
        if path.casefold() in folded:
            raise BadBundle(f"{shown} differs from another file only by capitals")
        folded.add(path.casefold())
    if not folded:
        raise BadBundle("it has no files")


def _owner(name: str) -> str:
    """Say whose a top-level name is; nothing if it may be a project's."""
    if name in _PYTHONS:
        return "a module of Python's own"
    if name in _NEEDED:
        return "a package that Downpour needs"
    return "a module of Downpour's own" if name == _OWN else ""


def _check_length(length_bytes: int) -> None:
    if length_bytes > BYTES_MAX:
        raise BadBundle(f"its files have more than {BYTES_MAX // 2**20} MiB")


def _top_level(path: str) -> str:
    return path.partition("/")[0].removesuffix(".py")


def _text(path: str, content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise BadBundle(f"{path} is not UTF-8") from None


def _inflated(packed: bytes) -> bytes:
    if len(packed) > PACKED_BYTES_MAX:
        raise BadBundle(f"its file has more than {PACKED_BYTES_MAX} bytes")
    inflater = zlib.decompressobj(_GZIP)
    try:
        content = inflater.decompress(packed, BYTES_MAX + 1)
    except zlib.error as error:
        raise BadBundle(f"its file is damaged: {error}") from None
    _check_length(len(content))
    if not inflater.eof or inflater.unused_data:
        raise BadBundle("its file is damaged: it ends too soon or too late")
    return content


def _files_in(content: bytes) -> dict[str, bytes]:
    try:
        stated: Any = json.loads(content.decode())
        files = stated["files"]
        return {path: text.encode() for path, text in files.items()}
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise BadBundle("its JSON does not name files and their text") from None


def bundle_of(spec: Spec) -> Bundle | None:
    """Return the bundle of a spec's projects; None if it names no code of a project.

    Args:
        spec: with the digests of its code, as they were fixed.
    """
    projects = (project_of(field, name) for field, name in spec.factories.items())
    files: dict[str, bytes] = {}
    for project in projects:
        files |= {} if project.is_installed else project.files
    if not files:
        return None
    bundle = Bundle.of(files)
    bundle.check(spec.code)
    return bundle
