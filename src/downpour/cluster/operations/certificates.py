"""A private certificate authority and certificates for mutual TLS, as PEM files in one folder.

The first call makes the authority, and keeps it beside the certificates that it signs. Anyone who
has `ca-key.pem` can make members of the cluster. Each machine uses its certificate both as a server
and as a client. All certificates pass the strict checks (`VERIFY_X509_STRICT`) that Python makes by
default from 3.13 on. This module never overwrites a file, and from the first moment only its owner
can read a key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
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


def issue(
    names: Sequence[str],
    folder: Path,
    *,
    days: int,
    now: datetime | None = None,
) -> Issued:
    """Make a certificate and a key for each machine, and the authority if there is none yet.

    Args:
        names: for each machine, its names, separated by commas.
        folder: the folder for the files; if it is missing, we create it for its owner alone.
        days: how long a certificate is valid, but never longer than the authority.
        now: the time when the validity begins; by default the current time.
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
                raise SpecError(
                    "NAME", str(machine), f"{path} exists, and this command never overwrites files"
                )
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
    authority = _Authority.read(certificate, key)
    authority.check(certificate, now)
    return authority, False


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls, now: datetime) -> Self:
        """Make an authority that signs itself; a random part of its name makes it recognizable."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject(f"downpour CA {os.urandom(4).hex()}")
        until = now + timedelta(days=_AUTHORITY_DAYS)
        builder = (
            _begun(name, name, key.public_key(), now - _CLOCK_SKEW, until)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
        )
        return cls(builder.sign(key, hashes.SHA256()), key)

    @classmethod
    def read(cls, certificate: Path, key: Path) -> Self:
        """Read an authority that an earlier call wrote."""
        try:
            loaded = x509.load_pem_x509_certificate(read_user_file(certificate))
        except ValueError:
            raise SpecError("out", str(certificate), "is not a certificate") from None
        if key.stat().st_mode & 0o077:
            raise SpecError(
                "out",
                str(key),
                "other users can read it; if you trust that none did, run chmod 600 on it",
            )
        try:
            private = serialization.load_pem_private_key(read_user_file(key), password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
            private = None
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise SpecError("out", str(key), "is not a key that this command made")
        return cls(loaded, private)

    def check(self, path: Path, now: datetime) -> None:
        """Refuse to sign if peers would not accept the signature."""
        if not _is_authority(self.certificate):
            raise SpecError("out", str(path), "is not an authority that this command made")
        if self.certificate.public_key() != self.key.public_key():
            raise SpecError("out", str(path), "ca-key.pem is not its key")
        until = self.certificate.not_valid_after_utc
        if until <= now:
            accepted = f"expired on {until:%Y-%m-%d}; choose another folder to make a new authority"
            raise SpecError("out", str(path), accepted)

    def certify(self, machine: Machine, folder: Path, days: int, now: datetime) -> Certified:
        """Make a machine's key and certificate, and write them."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._signed(machine, key.public_key(), days, now)
        certificate_path, key_path = _files(machine, folder)
        _write_both(certificate_path, made, key_path, key)
        return Certified(machine, certificate_path, key_path, made.not_valid_after_utc)

    def _signed(
        self, machine: Machine, key: ec.EllipticCurvePublicKey, days: int, now: datetime
    ) -> x509.Certificate:
        since = max(now - _CLOCK_SKEW, self.certificate.not_valid_before_utc)
        until = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        of_authority = self.certificate.extensions.get_extension_for_class(
            x509.SubjectKeyIdentifier
        )
        issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(of_authority.value)
        subject = _subject(str(machine.names[0])[:_COMMON_NAME_MAX])
        names = x509.SubjectAlternativeName([_general_name(name) for name in machine.names])
        builder = (
            _begun(subject, self.certificate.subject, key, since, until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(issuer, critical=False)
            .add_extension(names, critical=False)
        )
        return builder.sign(self.key, hashes.SHA256())


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    since: datetime,
    until: datetime,
) -> x509.CertificateBuilder:
    """Return a builder with the fields of every certificate."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _is_authority(certificate: x509.Certificate) -> bool:
    try:
        certificate.public_key()
        extensions = certificate.extensions
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        return extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, UnsupportedAlgorithm, x509.ExtensionNotFound):
        return False


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: Name) -> x509.GeneralName:
    if isinstance(name, IPv4Address | IPv6Address):
        return x509.IPAddress(name)
    return x509.DNSName(name)


def _write_both(
    certificate_path: Path,
    certificate: x509.Certificate,
    key_path: Path,
    key: ec.EllipticCurvePrivateKey,
) -> None:
    """Write both files or neither."""
    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write_new(key_path, secret, 0o600)
    try:
        public = certificate.public_bytes(serialization.Encoding.PEM)
        _write_new(certificate_path, public, 0o644)
    except BaseException:
        key_path.unlink()
        raise


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a new file, with its permissions from the first moment on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        path.unlink()
        raise
