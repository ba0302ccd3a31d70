"""Addresses, and who may talk to whom.

`Trust` holds a token and two TLS contexts, one for serving and one for calling. Without any of
them, a process trusts every peer, which we allow only for a service on loopback. We use mutual TLS
1.3, with the strict checks of certificates that Python 3.13 made the default.

::

    caller                                     server
       ◀── TLS 1.3, certificates both ways ──▶            if certificates are used
    hello: magic, nonce           ───────────▶            if a token is used
                                  ◀─────────── nonce, proof of the server
    proof of the caller           ───────────▶            the first call follows at once

A proof is an HMAC-SHA256, under the token, of a label and both nonces. So the token never travels.
The labels keep a peer from sending back our own proof, and the nonces keep it from using a proof
twice. The caller knows that the server holds the token before it sends anything else. Keys derived
in the same way authenticate all messages, so an attacker who relays a handshake cannot add one.
"""

from __future__ import annotations

import hmac
import os
import re
import secrets
import shlex
import ssl
import stat
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from typing import BinaryIO, NoReturn

from thrift.Thrift import TApplicationException, TMessageType

from downpour.base.errors import SpecError, Unreachable, Untrusted
from downpour.base.values import DEFAULT_PORT
from downpour.host.paths import Credentials, open_user_file
from downpour.network.rpc import frames

_ACCEPTED = "an address is HOST, HOST:PORT or [IPV6]:PORT, with a port from 1 to 65535"
# The longest name in DNS has 253 characters.
_HOST = r"[\w.-]{1,253}"
_SHAPE = re.compile(rf"(?:\[(?P<v6>[^\]]+)\]|(?P<host>{_HOST}))(?::(?P<port>[0-9]{{1,5}}))?")


@dataclass(frozen=True, slots=True)
class Address:
    """A host name or IP address, and a port; `parse_address` reads its `str()`.

    It is for a call, so port 0 and an empty host are invalid. We look nothing up.
    """

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
    """Read `host`, `host:port` or `[ipv6]:port`; the port defaults to `default_port`."""
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


TOKEN_CHARACTERS_MIN = 16
_TOKEN_BYTES_MAX = 4096
_TLS_FILES = ("tls_cert", "tls_key", "tls_ca")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The token that both sides must hold, and the contexts of TLS; None if not used."""

    token: bytes | None = field(default=None, repr=False)
    serving: ssl.SSLContext | None = None
    calling: ssl.SSLContext | None = None

    @classmethod
    def load(cls, credentials: Credentials) -> Trust:
        """Read the files that the credentials name."""
        serving, calling = _tls(credentials)
        return cls(token=_token(credentials), serving=serving, calling=calling)

    @property
    def is_open(self) -> bool:
        """Whether this process trusts every peer."""
        return self.token is None and self.serving is None


OPEN = Trust()


def _token(credentials: Credentials) -> bytes | None:
    if credentials.token_file:
        field_, text = "token_file", _token_text(credentials.token_file)
    elif credentials.token:
        field_, text = "DOWNPOUR_TOKEN", credentials.token
    else:
        return None
    # Python decodes variables that are not UTF-8 in this way.
    token = text.strip().encode(errors="surrogateescape")
    if len(token) < TOKEN_CHARACTERS_MIN:
        shown = credentials.token_file or "…"  # never show a token, not even a bad one
        raise SpecError(field_, shown, f"a token needs at least {TOKEN_CHARACTERS_MIN} characters")
    return token


def _token_text(path: str) -> str:
    try:
        with open_user_file(path) as file:
            # Check the open file, so that we read the same file that we checked.
            _check_private("token_file", path, file)
            return file.read(_TOKEN_BYTES_MAX).decode()
    except FileNotFoundError:
        made = "create one with `downpour manager --make-token`"
        raise SpecError("token_file", path, f"no such file; {made}") from None
    except OSError as error:
        raise SpecError("token_file", path, f"cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise SpecError("token_file", path, "is not text") from None


def _tls(credentials: Credentials) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    files = {name: getattr(credentials, name) for name in _TLS_FILES}
    if not any(files.values()):
        return None, None
    for name, path in files.items():
        if not path:
            raise SpecError(name, path, "mutual TLS needs tls_cert, tls_key and tls_ca")
        try:
            with open_user_file(path) as file:
                if name == "tls_key":
                    _check_private(name, path, file)
        except OSError as error:
            raise SpecError(name, path, f"cannot be read ({error.strerror})") from None
    serving = _context(ssl.PROTOCOL_TLS_SERVER, **files)
    serving.num_tickets = 0  # no resumption, because clients keep their connections
    return serving, _context(ssl.PROTOCOL_TLS_CLIENT, **files)


def _context(role: int, tls_cert: str, tls_key: str, tls_ca: str) -> ssl.SSLContext:
    """Return a context that shows this machine's certificate and demands the peer's.

    The authority must have signed both. `PROTOCOL_TLS_CLIENT` also checks the server's name.
    """
    context = ssl.SSLContext(role)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(tls_ca)
    except ssl.SSLError:
        raise SpecError("tls_ca", tls_ca, "holds no certificate in PEM form") from None
    try:
        # Without a password, the library would ask for one at the terminal.
        context.load_cert_chain(tls_cert, tls_key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SpecError("tls_key", tls_key, f"is not the key for {tls_cert}") from None
        accepted = f"not a certificate and its key in PEM form, without a password (key: {tls_key})"
        raise SpecError("tls_cert", tls_cert, accepted) from None
    return context


def _check_private(name: str, path: str, file: BinaryIO) -> None:
    """Refuse a secret that every user can read; a group may, because clusters share it that way."""
    mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    if mode & stat.S_IRWXO:
        mend = f"run `chmod 600 {shlex.quote(path)}`"
        raise SpecError(name, path, f"is open to every user (mode {mode:04o}); {mend}")


UNTRUSTED = 401
"""The kind of a TApplicationException that turns a caller away; Thrift's own are far smaller."""

_HELLO = b"DPT1"
_NOTICE = b"DPT!"
_NONCE_BYTES = 32
_PROOF_BYTES = 32
# Enough for a first call, and no more: many unauthenticated callers may send at a time.
_UNAUTHENTICATED_BYTES_MAX = 64 * 1024
_TLS_RECORD = 0x16
_WANTS_TLS = "requires TLS: set tls_cert, tls_key and tls_ca"
_WANTS_PROOF = "requires a token: name its file with --token-file, or put it into DOWNPOUR_TOKEN"
_WANTS_NOTHING = (
    "has no token, so it cannot prove who it is: give it one, or remove it on this side"
)


class CallerRejected(Exception):
    """A caller was rejected; states the reason."""


def greet(channel: frames.Channel, address: Address, trust: Trust, deadline: float) -> None:
    """Authenticate this side to a server, and the server to this side."""
    if trust.calling is not None:
        try:
            channel.secure(trust.calling, deadline, server_hostname=address.host)
        except (ssl.SSLEOFError, ConnectionError) as error:
            reason = "it ended the TLS handshake; does it speak TLS?"
            raise Unreachable(str(address), reason) from error
        except ssl.SSLError as error:
            raise refused_by_tls(address, error) from error
    if trust.token is not None:
        _prove(channel, address, trust.token, deadline)


def admit(channel: frames.Channel, trust: Trust, deadline: float) -> None:
    """Authenticate a caller, if this side demands credentials.

    A rejected caller gets the reason in a form that it understands: an exception for a Thrift
    client, a notice for a caller that has sent a hello.
    """
    if trust.serving is not None:
        # We answer a caller that speaks no TLS without it, so that it can read the reason.
        if channel.peek(deadline) != _TLS_RECORD:
            frame = channel.receive(deadline, bytes_max=_UNAUTHENTICATED_BYTES_MAX)
            _reject(channel, frame, _WANTS_TLS, deadline)
        channel.secure(trust.serving, deadline)
    if trust.token is not None:
        _admit_holder(channel, trust.token, deadline)


def is_hello(frame: bytes) -> bool:
    """Whether a frame is a hello rather than a message of Thrift's."""
    # A message of the strict binary protocol begins with 0x8001, so none looks like a hello.
    return frame.startswith(_HELLO) and len(frame) == len(_HELLO) + _NONCE_BYTES


def unasked(channel: frames.Channel, frame: bytes, deadline: float) -> NoReturn:
    """Reject a caller that sent a hello to a server without a token."""
    _reject(channel, frame, _WANTS_NOTHING, deadline)


def refused_by_tls(address: Address, error: ssl.SSLError) -> Untrusted:
    """Translate an error of TLS."""
    # Under TLS 1.3 the caller's handshake ends before the server has checked its certificate, so a
    # refusal arrives only later, as an alert in place of the first answer.
    reason = (error.reason or "").lower().replace("_", " ")
    if "wrong version" in reason:
        return Untrusted(str(address), "does not speak TLS")
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.rstrip(".")
        return Untrusted(str(address), f"shows an untrusted certificate: {why}")
    _, alert, meaning = reason.partition("alert ")
    if alert:
        reason = f"does not accept this side's certificate: {meaning}"
    else:
        reason = f"TLS failed: {reason}"
    return Untrusted(str(address), reason)


def _prove(channel: frames.Channel, address: Address, token: bytes, deadline: float) -> None:
    mine = secrets.token_bytes(_NONCE_BYTES)
    channel.send(_HELLO + mine, deadline)
    answer = channel.receive(deadline, bytes_max=_UNAUTHENTICATED_BYTES_MAX)
    if answer.startswith(_NOTICE):
        raise Untrusted(str(address), answer[len(_NOTICE) :].decode(errors="replace")[:200])
    theirs, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"server", mine, theirs)):
        raise Untrusted(str(address), "holds a different token than this side")
    channel.send(_proof(token, b"caller", mine, theirs), deadline)
    to_server, to_caller = _keys(token, mine, theirs)
    channel.seal(sending_key=to_server, receiving_key=to_caller)


def _admit_holder(channel: frames.Channel, token: bytes, deadline: float) -> None:
    hello = channel.receive(deadline, bytes_max=_UNAUTHENTICATED_BYTES_MAX)
    if not is_hello(hello):
        _reject(channel, hello, _WANTS_PROOF, deadline)
    theirs = hello[len(_HELLO) :]
    mine = secrets.token_bytes(_NONCE_BYTES)
    # Tokens have 256 random bits, because any process that connects may guess at one offline.
    channel.send(mine + _proof(token, b"server", theirs, mine), deadline)
    proof = channel.receive(deadline, bytes_max=_PROOF_BYTES)
    if not hmac.compare_digest(proof, _proof(token, b"caller", theirs, mine)):
        # We send no notice: a caller that has checked this side's proof holds the token itself.
        raise CallerRejected("does not prove that it knows the token")
    to_server, to_caller = _keys(token, theirs, mine)
    channel.seal(sending_key=to_caller, receiving_key=to_server)


def _proof(token: bytes, label: bytes, caller_nonce: bytes, server_nonce: bytes) -> bytes:
    return hmac.digest(token, b"downpour " + label + caller_nonce + server_nonce, "sha256")


def _keys(token: bytes, caller_nonce: bytes, server_nonce: bytes) -> tuple[bytes, bytes]:
    """Return the keys of the messages to the server, and of those to the caller."""
    nonces = caller_nonce, server_nonce
    return _proof(token, b"to server", *nonces), _proof(token, b"to caller", *nonces)


def _reject(channel: frames.Channel, frame: bytes, reason: str, deadline: float) -> NoReturn:
    answer = _NOTICE + reason.encode()
    if not is_hello(frame):
        # Answer a Thrift call; the library raises an error if it is not one.
        call, _ = frames.accelerated(frame)
        method, _, sequence = call.readMessageBegin()
        reply, buffer = frames.accelerated()
        reply.writeMessageBegin(method, TMessageType.EXCEPTION, sequence)
        TApplicationException(UNTRUSTED, reason).write(reply)
        answer = buffer.getvalue()
    channel.send(answer, deadline)
    raise CallerRejected(f"was rejected: {reason}")
