"""Certificates for machines: their names, their files, and what they are good for."""

import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path, PurePath
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SpecError
from downpour.cluster.certificates import DAYS_MAX, Issued, issue, parse_machine

Sides = tuple[ssl.SSLContext, ssl.SSLContext]

NOW = datetime.now(UTC).replace(microsecond=0)


def made(folder: Path, *names: str, days: int = 30, now: datetime = NOW) -> Issued:
    """Make certificates as the command does."""
    return issue(names, folder, days=days, now=now)


def read(path: Path) -> x509.Certificate:
    """Read a certificate."""
    return x509.load_pem_x509_certificate(path.read_bytes())


def contexts(folder: Path, server: str, client: str, authority: Path) -> Sides:
    """A server's and a client's side, as strict as Python 3.13 is by default."""
    sides = (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    for context, name in zip(sides, (server, client), strict=True):
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}-key.pem")
        context.load_verify_locations(authority)
    return sides


@contextmanager
def greeted(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> Iterator[bytes]:
    """Shake hands over a real connection; gives what the server says after it."""
    here, there = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(there, server_side=True) as wrapped:
                wrapped.sendall(b"well met")
        except OSError:
            there.close()

    for side in (here, there):
        side.settimeout(10)
    thread = Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(here, server_hostname=host) as wrapped:
            yield wrapped.recv(100)
    finally:
        here.close()
        thread.join()


@pytest.mark.parametrize("host", ["first", "first.lab", "10.0.0.5", "fd00::5"])
def test_machines_believe_each_other_by_every_name(tmp_path: Path, host: str) -> None:
    """Each is a server under all of its names, and a client; the checks are strict."""
    issued = made(tmp_path, "first,first.lab,10.0.0.5,fd00::5", "second")
    with greeted(*contexts(tmp_path, "first", "second", issued.authority), host) as said:
        assert said == b"well met"
    with greeted(*contexts(tmp_path, "second", "first", issued.authority), "second") as said:
        assert said == b"well met"


@pytest.mark.parametrize("host", ["third", "10.0.0.6", "lab", "first.lab.example", "127.0.0.1"])
def test_a_certificate_does_not_serve_another_name(tmp_path: Path, host: str) -> None:
    """A machine cannot serve under names that are not its own."""
    issued = made(tmp_path, "first,first.lab,10.0.0.5", "second")
    sides = contexts(tmp_path, "first", "second", issued.authority)
    with pytest.raises(ssl.SSLCertVerificationError), greeted(*sides, host):
        pass


def test_a_machine_added_later_is_believed(tmp_path: Path) -> None:
    """The second call signs with the authority of the first, and leaves its files alone."""
    first = made(tmp_path, "first")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    second = made(tmp_path, "second")
    assert (first.authority_is_new, second.authority_is_new) == (True, False)
    assert {path: path.read_bytes() for path in before} == before
    with greeted(*contexts(tmp_path, "first", "second", second.authority), "first") as said:
        assert said == b"well met"


def test_another_authoritys_machines_are_not_believed(tmp_path: Path) -> None:
    """Each folder has an authority of its own."""
    ours, theirs = made(tmp_path / "ours", "first", "second"), made(tmp_path / "theirs", "first")
    sides = contexts(tmp_path / "ours", "first", "second", theirs.authority)
    with pytest.raises(ssl.SSLCertVerificationError), greeted(*sides, "first"):
        pass
    assert read(ours.authority).subject != read(theirs.authority).subject


def test_a_certificate_ends(tmp_path: Path) -> None:
    """One of the past is not believed, although its authority still is."""
    issued = made(tmp_path, "first", days=1, now=NOW - timedelta(days=2))
    made(tmp_path, "second")
    sides = contexts(tmp_path, "first", "second", issued.authority)
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"), greeted(*sides, "first"):
        pass


def test_extensions_pass_strict_checks(tmp_path: Path) -> None:
    """Of the authority and of a machine."""
    issued = made(tmp_path, "first,10.0.0.5")
    authority, leaf = read(issued.authority).extensions, read(tmp_path / "first.pem").extensions
    constraints = authority.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)
    usage = authority.get_extension_for_class(x509.KeyUsage)
    assert usage.critical
    assert usage.value.key_cert_sign
    assert usage.value.crl_sign
    assert not usage.value.digital_signature
    assert not leaf.get_extension_for_class(x509.BasicConstraints).value.ca
    assert leaf.get_extension_for_class(x509.KeyUsage).value.digital_signature
    assert not leaf.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    both = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert set(leaf.get_extension_for_class(x509.ExtendedKeyUsage).value) == both
    signer = leaf.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    assert signer == authority.get_extension_for_class(x509.SubjectKeyIdentifier).value.digest


def test_a_certificate_never_outlives_its_authority(tmp_path: Path) -> None:
    """Nor begins before it; days are counted from now."""
    issued = made(tmp_path, "first", now=NOW - timedelta(days=3600))
    authority = read(issued.authority)
    (late,) = made(tmp_path, "late", days=DAYS_MAX).machines
    assert late.until == read(late.certificate).not_valid_after_utc
    assert late.until == authority.not_valid_after_utc == NOW + timedelta(days=50)
    (soon,) = made(tmp_path, "soon", days=10).machines
    assert soon.until == NOW + timedelta(days=10)
    (early,) = made(tmp_path, "early", now=NOW - timedelta(days=3601)).machines
    assert read(early.certificate).not_valid_before_utc == authority.not_valid_before_utc


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Whatever the umask lets others do; the folder, too."""
    kept = os.umask(0)
    try:
        folder = tmp_path / "new" / "certs"
        made(folder, "first")
    finally:
        os.umask(kept)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {
        "ca.pem": 0o644,
        "ca-key.pem": 0o600,
        "first.pem": 0o644,
        "first-key.pem": 0o600,
    }
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("taken", ["second.pem", "second-key.pem"])
def test_nothing_is_ever_overwritten(tmp_path: Path, taken: str) -> None:
    """Not even a link that leads nowhere; and nothing else is written then, either."""
    made(tmp_path, "first")
    (tmp_path / taken).symlink_to(tmp_path / "nowhere")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(SpecError, match=f"{taken} exists, and this command never overwrites files"):
        made(tmp_path, "new", "second,10.0.0.5")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("names", [("a", "A"), ("a", "a,b"), ("a", "a-key"), ("a-key", "a")])
def test_machines_whose_files_clash_are_refused(tmp_path: Path, names: tuple[str, ...]) -> None:
    """Before anything is written."""
    with pytest.raises(SpecError, match="would be written twice"):
        made(tmp_path / "certs", *names)
    assert not (tmp_path / "certs").exists()


@pytest.mark.parametrize("days", [0, -1, DAYS_MAX + 1, 10**12])
def test_days_have_bounds(tmp_path: Path, days: int) -> None:
    """At least one, and no more than the authority has."""
    with pytest.raises(SpecError, match=f"days = {days}: must be from 1 to {DAYS_MAX}"):
        made(tmp_path / "certs", "first", days=days)
    assert not (tmp_path / "certs").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A path under a file can be made by nobody, not even by root."""
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SpecError, match=r"out = .*not a folder"):
        made(file / "certs", "first")
    with pytest.raises(SpecError, match=r"out = .*not a folder"):
        made(file, "first")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """In one line, with the file that could not be made."""
    tmp_path.chmod(0o500)
    with pytest.raises(SpecError, match=r"out = .*ca-key\.pem: Permission denied"):
        made(tmp_path, "first")


@pytest.mark.parametrize(
    ("lost", "line"),
    [
        ("ca-key.pem", r"has ca\.pem but no ca-key\.pem"),
        ("ca.pem", r"has ca-key\.pem but no ca\.pem"),
    ],
)
def test_half_an_authority_is_not_replaced(tmp_path: Path, lost: str, line: str) -> None:
    """A new one would cut off the machines that trust the old."""
    made(tmp_path, "first")
    (tmp_path / lost).unlink()
    with pytest.raises(SpecError, match=line):
        made(tmp_path, "second")
    assert not (tmp_path / lost).exists()


def test_an_expired_authority_signs_nothing(tmp_path: Path) -> None:
    """Nobody would believe it; the line says since when."""
    long_ago = NOW - timedelta(days=DAYS_MAX)
    made(tmp_path, "first", now=long_ago)
    with pytest.raises(SpecError, match=rf"ca\.pem': expired on {NOW:%Y-%m-%d}"):
        made(tmp_path, "second")


def test_an_authority_that_cannot_sign_is_named(tmp_path: Path) -> None:
    """Whatever lies under its names: one line says which file, and why."""
    made(tmp_path, "first")
    made(tmp_path / "other", "first")
    authority, key = tmp_path / "ca.pem", tmp_path / "ca-key.pem"
    good = authority.read_bytes(), key.read_bytes()
    leaf = (tmp_path / "first.pem").read_bytes()
    foreign = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    cases = [
        (b"", good[1], "is not a certificate"),
        (good[0], b"", "is not a key that this command made"),
        (good[0], foreign, "is not a key that this command made"),
        (leaf, good[1], "is not an authority that this command made"),
        ((tmp_path / "other" / "ca.pem").read_bytes(), good[1], "ca-key.pem is not its key"),
    ]
    for certificate, private, line in cases:
        authority.write_bytes(certificate)
        key.write_bytes(private)
        with pytest.raises(SpecError, match=line):
            made(tmp_path, "second")
    assert not (tmp_path / "second.pem").exists()


def test_an_authoritys_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    """Whoever has read it can make members."""
    made(tmp_path, "first")
    (tmp_path / "ca-key.pem").chmod(0o640)
    with pytest.raises(SpecError, match="other users can read it"):
        made(tmp_path, "second")


def test_partly_written_files_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full leaves no half of a pair behind, and the next call succeeds."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", full)
        with pytest.raises(SpecError, match="No space left on device"):
            made(tmp_path, "first")
    assert not list(tmp_path.iterdir())
    assert made(tmp_path, "first").authority_is_new


def test_names_as_long_as_they_may_be(tmp_path: Path) -> None:
    """The subject holds 64 characters only; the names that count are whole."""
    name = ".".join(["x" * 60] * 4)
    issued = made(tmp_path, name, "second")
    with greeted(*contexts(tmp_path, name, "second", issued.authority), name) as said:
        assert said == b"well met"


LABELS = st.from_regex(r"[a-z0-9_]([a-z0-9_-]{0,10}[a-z0-9_])?", fullmatch=True)

DNS_NAMES = st.builds(
    lambda labels, last: ".".join([*labels, last]),
    st.lists(LABELS, max_size=4),
    LABELS.filter(lambda label: not label.isdigit()),
)

NAMES = DNS_NAMES | st.ip_addresses().map(str)


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_names_are_kept_in_order_and_once(names: list[str]) -> None:
    """However they are spelled: in capitals, with spaces around, twice."""
    try:
        machine = parse_machine(" , ".join(name.upper() for name in names) + "," + names[0])
    except SpecError:
        assert names[0] in {"ca", "ca-key"}
    else:
        assert [str(name) for name in machine.names] == list(dict.fromkeys(names))


@given(st.text() | st.lists(NAMES | st.text(max_size=5)).map(",".join))
def test_any_text_is_refused_or_makes_a_bare_file_name(text: str) -> None:
    """Nothing in a name leads out of the folder, hides a file or looks like an option."""
    with suppress(SpecError):
        name = parse_machine(text).file_name
        assert PurePath(name).name == name
        assert name not in {"ca", "ca-key"}
        assert not set(name) & set("/\\:\0\n ")
        assert name[0] != "."


@pytest.mark.parametrize(
    ("text", "file_name", "shown"),
    [
        ("first", "first", "first"),
        ("First.Lab,10.0.0.5", "first.lab", "first.lab, 10.0.0.5"),
        ("project_worker_1", "project_worker_1", "project_worker_1"),
        ("2001:DB8:0:0::1,first", "2001-db8--1", "2001:db8::1, first"),
        ("127.0.0.1", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_files_are_called_after_the_first_name(text: str, file_name: str, shown: str) -> None:
    """In the form in which names are compared, and without colons."""
    machine = parse_machine(text)
    assert (machine.file_name, str(machine)) == (file_name, shown)


@pytest.mark.parametrize(
    "text",
    [
        *("", ",", "first,", " ", "a b", "-first", "first-", "a..b", ".", "..", "../first"),
        *("a/b", "*.lab", "first:9090", "[::1]", "münchen", "10.0.0.300", "10.0.0", "x" * 64),
        *("fe80::1%eth0", ".".join(["x" * 60] * 5), "ca", "CA-key,first"),
    ],
)
def test_invalid_names_are_refused(text: str) -> None:
    """Also what is nearly an address, for nobody would ever find it; and the authority's own."""
    with pytest.raises(SpecError, match="NAME = "):
        parse_machine(text)


def test_the_authoritys_names_are_free_for_others_than_the_first() -> None:
    """Only files could clash."""
    assert parse_machine("first,ca").names == ("first", "ca")
    assert parse_machine("10.0.0.5").names == (ip_address("10.0.0.5"),)
