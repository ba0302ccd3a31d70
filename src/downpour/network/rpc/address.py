"""The address of a service: a host and a port, as users write them.

An address is for a call, so port 0 and an empty host are invalid. This module looks nothing up: a
call shows whether the host exists.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv6Address

from downpour.base.errors import SpecError
from downpour.base.values import DEFAULT_PORT

_ACCEPTED = "an address is HOST, HOST:PORT or [IPV6]:PORT, with a port from 1 to 65535"
# The longest name in DNS has 253 characters.
_HOST = r"[\w.-]{1,253}"
_SHAPE = re.compile(rf"(?:\[(?P<v6>[^\]]+)\]|(?P<host>{_HOST}))(?::(?P<port>[0-9]{{1,5}}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """A host name or IP address, and a port; `parse_address` reads its `str()`."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether the address can only mean this machine."""
        return self.host in {"localhost", "::1"} or self.host.startswith("127.")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(
    text: str, *, field: str = "address", default_port: int = DEFAULT_PORT
) -> Address:
    """Read `host`, `host:port` or `[ipv6]:port`; the port defaults to `default_port`.

    Raises:
        SpecError: the text is not an address; names `field` and the accepted forms.
    """
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise SpecError(field, text, _ACCEPTED)
    port = int(match["port"] or default_port)
    if not 1 <= port <= 65535:
        raise SpecError(field, text, _ACCEPTED)
    if match["v6"] is not None:
        try:
            IPv6Address(match["v6"])
        except ValueError as error:
            raise SpecError(field, text, _ACCEPTED) from error
    return Address(match["v6"] or match["host"], port)
