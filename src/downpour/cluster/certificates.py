"""A private certificate authority and certificates for mutual TLS, as PEM files in one folder.

The first call makes the authority, and keeps it beside the certificates that it signs. Anyone who
has `ca-key.pem` can make members of the cluster. Each machine uses its certificate both as a server
and as a client. All certificates pass the strict checks (`VERIFY_X509_STRICT`) that Python makes by
default from 3.13 on. This module never overwrites a file, and only its owner can read a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from downpour.base.errors import SpecError
from downpour.files.store.publish import explain
from downpour.host.paths import read_user_file

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

    Names get the form that we compare: lower case, and addresses in their shortest form. The first
    name also names files, so we refuse names with a meaning for a file system.
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


DAYS_MAX = 3650

_AUTHORITY_DAYS = 3650
# A certificate's validity begins an hour ago, because machines' clocks may differ.
_CLOCK_SKEW = timedelta(hours=1)
_COMMON_NAME_MAX = 64
_BOTH_SIDES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment"),
    *("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


@dataclass(frozen=True, slots=True)
class Certified:
    """A machine's new files, and the time when its certificate expires."""

    machine: Machine
    certificate: Path
    key: Path
    until: datetime


@dataclass(frozen=True, slots=True)
class Issued:
    """The files that `issue` wrote; `authority_is_new` is true if it made the authority, too."""

    authority: Path
    authority_key: Path
    authority_is_new: bool
    machines: tuple[Certified, ...]


def issue(names: Sequence[str], folder: Path, *, days: int, now: datetime | None = None) -> Issued:
    """Make a certificate and a key for each machine, and the authority if there is none yet.

    The `names` are each machine's, separated by commas. We create a missing `folder` for its owner
    alone. A certificate is valid from `now` for some `days`, but no longer than the authority.
    """
    if not 1 <= days <= DAYS_MAX:
        raise SpecError("days", days, f"must be from 1 to {DAYS_MAX}")
    now = now or datetime.now(UTC)
    machines = [parse_machine(text) for text in names]
    _refuse_taken_files(machines, folder)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        authority, is_new = _authority(folder, now)
        certified = [authority.certify(machine, folder, days, now) for machine in machines]
    except OSError as error:
        where = error.filename or folder
        raise SpecError("out", str(folder), f"{where}: {explain(error)}") from None
    return Issued(folder / "ca.pem", folder / "ca-key.pem", is_new, tuple(certified))


def _refuse_taken_files(machines: Sequence[Machine], folder: Path) -> None:
    """Find every clash before we write anything, including `a-key` beside `a`."""
    seen: set[Path] = set()
    for machine in machines:
        for path in _files(machine, folder):
            if path in seen:
                raise SpecError("NAME", str(machine), f"{path.name} would be written twice")
            if os.path.lexists(path):
                accepted = f"{path} exists, and this command never overwrites files"
                raise SpecError("NAME", str(machine), accepted)
            seen.add(path)


def _files(machine: Machine, folder: Path) -> tuple[Path, Path]:
    return folder / f"{machine.file_name}.pem", folder / f"{machine.file_name}-key.pem"


def _authority(folder: Path, now: datetime) -> tuple[_Authority, bool]:
    """Read the folder's authority, or make one if there is none; returns whether it is new."""
    certificate, key = folder / "ca.pem", folder / "ca-key.pem"
    there = [path.name for path in (certificate, key) if os.path.lexists(path)]
    if not there:
        authority = _Authority.make(now)
        _write_both(certificate, authority.certificate, key, authority.key)
        return authority, True
    if len(there) == 1:
        missing = "ca-key.pem" if there == ["ca.pem"] else "ca.pem"
        accepted = f"has {there[0]} but no {missing}; restore it, or choose another folder"
        raise SpecError("out", str(folder), accepted)
    return _Authority.read(certificate, key, now), False


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, now: datetime) -> Self:
        """Make an authority that signs itself; a random part of its name makes it recognizable."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject(f"downpour CA {os.urandom(4).hex()}")
        validity = now - _CLOCK_SKEW, now + timedelta(days=_AUTHORITY_DAYS)
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        extensions = {constraints: True, _key_usage("key_cert_sign", "crl_sign"): True}
        return cls(_signed(name, key.public_key(), validity, extensions, name, key), key)

    @classmethod
    def read(cls, certificate: Path, key: Path, now: datetime) -> Self:
        """Read an authority that an earlier call wrote; refuse one whose signature peers refuse."""
        try:
            loaded = x509.load_pem_x509_certificate(read_user_file(certificate))
        except ValueError:
            raise SpecError("out", str(certificate), "is not a certificate") from None
        if key.stat().st_mode & 0o077:
            accepted = "other users can read it; if you trust that none did, run chmod 600 on it"
            raise SpecError("out", str(key), accepted)
        try:
            private = serialization.load_pem_private_key(read_user_file(key), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
            private = None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise SpecError("out", str(key), "is not a key that this command made")
        if not _is_authority(loaded):
            accepted = "is not an authority that this command made"
            raise SpecError("out", str(certificate), accepted)
        if loaded.public_key() != private.public_key():
            raise SpecError("out", str(certificate), "ca-key.pem is not its key")
        until = loaded.not_valid_after_utc
        if until <= now:
            accepted = f"expired on {until:%Y-%m-%d}; choose another folder to make a new authority"
            raise SpecError("out", str(certificate), accepted)
        return cls(loaded, private)

    def certify(self, machine: Machine, folder: Path, days: int, now: datetime) -> Certified:
        """Make a machine's key and certificate, and write them."""
        key, signer = ec.generate_private_key(ec.SECP256R1()), self.certificate
        since = max(now - _CLOCK_SKEW, signer.not_valid_before_utc)
        until = min(now + timedelta(days=days), signer.not_valid_after_utc)
        identifier = signer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
        names = [
            x509.DNSName(name) if isinstance(name, str) else x509.IPAddress(name)
            for name in machine.names
        ]
        extensions = {
            x509.BasicConstraints(ca=False, path_length=None): True,
            _key_usage("digital_signature"): True,
            x509.ExtendedKeyUsage(_BOTH_SIDES): False,
            issuer: False,
            x509.SubjectAlternativeName(names): False,
        }
        subject = _subject(str(machine.names[0])[:_COMMON_NAME_MAX])
        made = _signed(
            subject, key.public_key(), (since, until), extensions, signer.subject, self.key
        )
        certificate_path, key_path = _files(machine, folder)
        _write_both(certificate_path, made, key_path, key)
        return Certified(machine, certificate_path, key_path, made.not_valid_after_utc)


def _signed(
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    validity: tuple[datetime, datetime],
    extensions: Mapping[x509.ExtensionType, bool],
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    """Return a certificate; each extension says whether it is critical."""
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(validity[0])
        .not_valid_after(validity[1])
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    for extension, is_critical in extensions.items():
        builder = builder.add_extension(extension, critical=is_critical)
    return builder.sign(issuer_key, hashes.SHA256())


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        certificate.public_key()
        extensions = certificate.extensions
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False


def _key_usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{usage: usage in purposes for usage in _USAGES})


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _write_both(
    certificate_path: Path,
    certificate: x509.Certificate,
    key_path: Path,
    key: ec.EllipticCurvePrivateKey,
) -> None:
    """Write both files or neither, each with its permissions from the first moment on."""
    pem, encryption = serialization.Encoding.PEM, serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption)
    files = [(key_path, secret, 0o600), (certificate_path, certificate.public_bytes(pem), 0o644)]
    written: list[Path] = []
    try:
        for path, content, mode in files:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            written.append(path)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    except BaseException:
        for path in written:
            path.unlink()
        raise
