"""Addresses and credentials as users give them: which are refused, naming the field."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.base.values import DEFAULT_PORT
from downpour.host.paths import Credentials
from downpour.network.rpc import Address, Trust, parse_address
from downpour.network.rpc.trust import OPEN

TOKEN = "sixteen or more characters"


def test_nothing_given_is_nothing_asked() -> None:
    """As on loopback."""
    assert Trust.load(Credentials()) == OPEN
    assert OPEN.is_open


def test_a_file_counts_before_the_token_itself(tmp_path: Path) -> None:
    """And the line end of an editor does not belong to the token."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    file.chmod(0o600)
    trust = Trust.load(Credentials(token="another, also long enough", token_file=str(file)))
    assert trust.token == TOKEN.encode()
    assert not trust.is_open


@pytest.mark.parametrize(
    ("content", "mode", "accepted"),
    [
        (None, 0, "no such file; create one with `downpour manager --make-token`"),
        (b"", 0o600, "a token needs at least 16 characters"),
        (b" \n", 0o600, "a token needs at least 16 characters"),
        (b"short\n", 0o600, "a token needs at least 16 characters"),
        (b"\xff" * 32, 0o600, "is not text"),
        (TOKEN.encode(), 0o604, "is open to every user (mode 0604); run `chmod 600 '{file}'`"),
        (TOKEN.encode(), 0o644, "is open to every user (mode 0644); run `chmod 600 '{file}'`"),
        (TOKEN.encode(), 0o602, "is open to every user (mode 0602); run `chmod 600 '{file}'`"),
    ],
)
def test_a_file_without_a_secret_token_is_named(
    tmp_path: Path, content: bytes | None, mode: int, accepted: str
) -> None:
    """One line names the field, the file and what mends it, and does not show what it holds."""
    file = tmp_path / "the token"
    if content is not None:
        file.write_bytes(content)
        file.chmod(mode)
    with pytest.raises(SpecError) as refusal:
        Trust.load(Credentials(token_file=str(file)))
    assert str(refusal.value) == f"token_file = '{file}': {accepted.format(file=file)}"


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640, 0o660])
def test_a_group_may_share_a_token(tmp_path: Path, mode: int) -> None:
    """Engines mount secrets so, and several users may run the workers of one cluster."""
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(mode)
    assert Trust.load(Credentials(token_file=str(file))).token == TOKEN.encode()


def test_a_key_that_is_open_to_every_user_is_refused(tmp_path: Path) -> None:
    """Certificates are public, and may be."""
    files = {name: tmp_path / f"{name}.pem" for name in ("tls_cert", "tls_key", "tls_ca")}
    for file in files.values():
        file.touch()
        file.chmod(0o644)
    with pytest.raises(SpecError) as refusal:
        Trust.load(Credentials(**{name: str(file) for name, file in files.items()}))
    told = f"is open to every user (mode 0644); run `chmod 600 {files['tls_key']}`"
    assert str(refusal.value) == f"tls_key = '{files['tls_key']}': {told}"


def test_a_short_token_is_refused_unseen() -> None:
    """The line names the variable and does not repeat the token."""
    with pytest.raises(SpecError) as refusal:
        Trust.load(Credentials(token="hush"))
    assert str(refusal.value) == "DOWNPOUR_TOKEN = '…': a token needs at least 16 characters"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """The system's own word is told."""
    with pytest.raises(SpecError, match=r"cannot be read \(Is a directory\)"):
        Trust.load(Credentials(token_file=str(tmp_path)))


def test_a_variable_that_is_no_utf_8_is_a_token_all_the_same() -> None:
    """Its bytes count, as Python keeps them in a text."""
    raw = b"\xff" * 20
    assert Trust.load(Credentials(token=os.fsdecode(raw))).token == raw


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
