"""Authenticates two processes to each other: once per connection, before the first message.

::

    caller                                     server
       ◀── TLS 1.3, certificates both ways ──▶            if certificates are used
    hello: magic, nonce           ───────────▶            if a token is used
                                  ◀─────────── nonce, proof of the server
    proof of the caller           ───────────▶            the first call follows at once

A proof is an HMAC-SHA256, under the token, of a label and both nonces. So the token never travels.
The labels keep a peer from sending back our own proof, and the nonces keep it from using a proof
twice. The caller knows that the server holds the token before it sends anything else. Keys derived
in the same way authenticate every message that follows, so that an attacker who merely relays a
handshake cannot add a message.

A rejected caller gets the reason in a form that it understands: an exception for a Thrift client, a
notice for a caller that has sent a hello.
"""

from __future__ import annotations

import hmac
import secrets
import ssl
from typing import Any, NoReturn

from thrift.Thrift import TApplicationException, TMessageType

from downpour.base.errors import Unreachable, Untrusted
from downpour.network.rpc import frames
from downpour.network.rpc.address import Address
from downpour.network.rpc.trust import Trust

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
_WANTS_PROOF = "requires a token: put its token into DOWNPOUR_TOKEN or token_file"
_WANTS_NOTHING = (
    "has no token, so it cannot prove who it is: give it one, or remove it on this side"
)


class CallerRejected(Exception):
    """A caller was rejected; states the reason."""


def greet(channel: frames.Channel, address: Address, trust: Trust, deadline: float) -> None:
    """Authenticate this side to a server, and the server to this side.

    Raises:
        Untrusted: one side does not accept the other; states the reason.
        Unreachable: the server closed the connection without an answer.
        TimeoutError: the deadline passed.
        OSError: the connection broke.
    """
    if trust.calling is not None:
        _secure(channel, address, trust.calling, deadline)
    if trust.token is not None:
        _prove(channel, address, trust.token, deadline)


def admit(channel: frames.Channel, trust: Trust, deadline: float) -> None:
    """Authenticate a caller, if this side demands credentials.

    Raises:
        CallerRejected: the caller could not authenticate itself.
        TimeoutError: the deadline passed.
        OSError: the connection broke.
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
        return Untrusted(str(address), f"shows an untrusted certificate: {_why(error)}")
    _, alert, meaning = reason.partition("alert ")
    if alert:
        reason = f"does not accept this side's certificate: {meaning}"
    else:
        reason = f"TLS failed: {reason}"
    return Untrusted(str(address), reason)


def _why(error: ssl.SSLCertVerificationError) -> str:
    return error.verify_message.rstrip(".")


def _secure(
    channel: frames.Channel, address: Address, context: ssl.SSLContext, deadline: float
) -> None:
    try:
        channel.secure(context, deadline, server_hostname=address.host)
    except (ssl.SSLEOFError, ConnectionError) as error:
        reason = "it ended the TLS handshake; does it speak TLS?"
        raise Unreachable(str(address), reason) from error
    except ssl.SSLError as error:
        raise refused_by_tls(address, error) from error


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
    # The server proves itself first, so any process that connects may guess at the token offline.
    # That is why tokens have 256 random bits.
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
    channel.send(
        _NOTICE + reason.encode() if is_hello(frame) else _rejection(frame, reason), deadline
    )
    raise CallerRejected(f"was rejected: {reason}")


def _rejection(frame: bytes, reason: str) -> bytes:
    """Return the answer to a Thrift call; raises the library's error if it is not one."""
    call, _ = frames.accelerated(frame)
    method, _, sequence = call.readMessageBegin()
    reply: Any
    reply, buffer = frames.accelerated()
    reply.writeMessageBegin(method, TMessageType.EXCEPTION, sequence)
    TApplicationException(UNTRUSTED, reason).write(reply)
    answer: bytes = buffer.getvalue()
    return answer
