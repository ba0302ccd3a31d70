"""The names of machines in certificates: DNS names and IP addresses, as users write them.

We keep names in the form that we compare: in lower case, and addresses in their shortest form. A
machine's first name also names its files, so we refuse names with a meaning for a file system.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from downpour.base.errors import SpecError

Name = str | IPv4Address | IPv6Address

_FIELD = "NAME"
_ACCEPTED = "DNS names and IP addresses, separated by commas, such as first,first.lab,10.0.0.5"
_LABEL = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_LENGTH_MAX = 253
# The authority's own files are ca.pem and ca-key.pem.
_TAKEN = {"ca", "ca-key"}


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine's names; its files are named after the first."""

    names: tuple[Name, ...]

    @property
    def file_name(self) -> str:
        """The first name in a form that suits a file: without the colons of IPv6."""
        return str(self.names[0]).replace(":", "-")

    def __str__(self) -> str:
        return ", ".join(map(str, self.names))


def parse_machine(text: str) -> Machine:
    """Read one machine's names: `first,10.0.0.5,localhost`.

    Raises:
        SpecError: a name is neither a DNS name nor an IP address, or the first name is the
            authority's.
    """
    names = tuple(dict.fromkeys(_name(part.strip(), text) for part in text.split(",")))
    machine = Machine(names)
    if machine.file_name in _TAKEN:
        raise SpecError(_FIELD, text, f"{machine.file_name}.pem is the authority's own file")
    return machine


def _name(part: str, text: str) -> Name:
    try:
        address = ip_address(part)
    except ValueError:
        return _dns_name(part.lower(), text)
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        raise SpecError(_FIELD, text, "an address in a certificate has no zone (%...)")
    return address


def _dns_name(name: str, text: str) -> str:
    """Accept underscores, which containers' names have, but no text that is nearly an address."""
    labels = name.split(".")
    well = len(name) <= _LENGTH_MAX and all(_LABEL.fullmatch(label) for label in labels)
    if not well or labels[-1].isdigit():
        raise SpecError(_FIELD, text, _ACCEPTED)
    return name
