"""What a process was given to authenticate itself to a cluster: a token, certificates, or neither.

Files are only named here; `rpc.trust` reads them. Only this module reads the environment variables.
A token is never a command's argument, because every user of a machine can read command lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from downpour.base.arguments import checked_calls

TOKEN = "DOWNPOUR_TOKEN"  # noqa: S105 - the name of a variable
TOKEN_NAME = "token"  # noqa: S105 - the name of a file
"""The file in a shared directory that holds the token, unless another is named."""
FILES = {
    "token_file": "DOWNPOUR_TOKEN_FILE",
    "tls_cert": "DOWNPOUR_TLS_CERT",
    "tls_key": "DOWNPOUR_TLS_KEY",
    "tls_ca": "DOWNPOUR_TLS_CA",
}


@checked_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A token or the file that holds it (the file wins if both are given), and PEM files.

    `tls_cert` and `tls_key` are this machine's own; `tls_ca` has signed the certificates of all
    machines. Mutual TLS needs all three.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Credentials:
        """Return those of `DOWNPOUR_TOKEN`, `DOWNPOUR_TOKEN_FILE` and `DOWNPOUR_TLS_*`."""
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


def without_credentials(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without credentials, for processes that use loopback only."""
    secret = {TOKEN, *FILES.values()}
    return {name: value for name, value in environment.items() if name not in secret}
