"""Addresses as users write them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.base.values import DEFAULT_PORT
from downpour.network.rpc import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("host:1234", Address("host", 1234)),
        ("host", Address("host", DEFAULT_PORT)),
        ("10.0.0.1:9", Address("10.0.0.1", 9)),
        ("my_worker-1.example", Address("my_worker-1.example", DEFAULT_PORT)),
        ("[::1]:9090", Address("::1", 9090)),
        ("[fe80::1]", Address("fe80::1", DEFAULT_PORT)),
    ],
)
def test_an_address_is_read(text: str, address: Address) -> None:
    """A name, an IPv4 or a bracketed IPv6 address, with or without a port."""
    assert parse_address(text) == address


@given(st.sampled_from(["host", "10.0.0.1", "::1", "fe80::2"]), st.integers(1, 65535))
def test_an_address_reads_what_it_writes(host: str, port: int) -> None:
    """`str()` and `parse_address` are inverse."""
    assert parse_address(str(Address(host, port))) == Address(host, port)


@pytest.mark.parametrize(
    "text",
    ["", ":9090", "host:", "host:0", "host:65536", "host:x", "http://host:9090", "a b", "::1:9090",
     "[host]:9090", "[::1", "host:9090\n", "host/x"],
)  # fmt: skip
def test_a_wrong_address_is_the_users_mistake(text: str) -> None:
    """The error names the field and shows what would be accepted."""
    with pytest.raises(SpecError, match=r"HOST:PORT") as caught:
        parse_address(text, field="manager")
    assert caught.value.field == "manager"
