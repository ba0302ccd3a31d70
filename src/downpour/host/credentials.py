"""A process's credentials for a cluster: a token, certificates, or neither.

This module only names files; `rpc.trust` reads them. Only this module reads the environment
variables. A token is never a command's argument, because every user of a machine can read command
lines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from downpour.base.arguments import checked_calls

TOKEN = "DOWNPOUR_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_NAME = "token"  # noqa: S105 - the name of a file
"""The file in a shared directory that holds the token, unless the user names another one."""
FILES = {
    "token_file": "DOWNPOUR_TOKEN_FILE",
    "tls_cert": "DOWNPOUR_TLS_CERT",
    "tls_key": "DOWNPOUR_TLS_KEY",
    "tls_ca": "DOWNPOUR_TLS_CA",
}

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(ACCESS|API|ACCOUNT|PRIVATE)_KEY")
_PLACES = ("_FILE", "_PATH", "_DIR", "_URL", "_URI")
_SECRET_CHARACTERS_MIN = 8
"""A shorter text, such as `1` or `true`, is hardly a secret; hiding it would spoil every line."""


@checked_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token or the file that holds it (the file wins if both are given), and PEM files.

    `tls_cert` and `tls_key` belong to this machine; `tls_ca` signed the certificates of all
    machines. Mutual TLS needs all three.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""

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


def known_secrets(
    credentials: Credentials, environment: Mapping[str, str] = os.environ
) -> tuple[str, ...]:
    """Return texts that logs must never hold: the token, and variables that sound secret."""
    token = credentials.token
    if credentials.token_file:
        with suppress(OSError, UnicodeDecodeError):
            token = Path(credentials.token_file).read_text("utf-8").strip()
    named = (
        value
        for name, value in environment.items()
        if _SECRET.search(name) and not name.endswith(_PLACES)
    )
    return tuple({text for text in (token, *named) if len(text) >= _SECRET_CHARACTERS_MIN})


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without credentials, for processes that use loopback only."""
    secret = {TOKEN, *FILES.values()}
    return {name: value for name, value in environment.items() if name not in secret}
