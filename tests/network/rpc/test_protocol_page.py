"""The protocol's page and the committed stubs are what is spoken."""

import os
import re
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from threading import Thread
from time import monotonic

import pytest

from downpour.base.errors import IncompatiblePeer
from downpour.network.rpc import Address, Trust, trust
from downpour.network.rpc.frames import Channel

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "protocol.md").read_text(
    encoding="utf-8"
)

TRUST = Trust(token=b"0123456789abcdef")


def example(name: str) -> bytes:
    """Return the bytes of a frame in the page's example."""
    found = re.search(rf"^{re.escape(name)}\n((?:  [0-9a-f]+\n)+)", PAGE, re.MULTILINE)
    assert found is not None
    return bytes.fromhex("".join(found[1].split()))


def test_a_caller_says_what_stands_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hello, proof and a first sealed call, with the nonces of the example."""
    monkeypatch.setattr(secrets, "token_bytes", lambda count: b"\1" * count)
    one, other = tcp_pair()
    with one, other:
        other.sendall(example("answer"))
        channel = Channel(one)
        deadline = handshake_deadline()
        trust.greet(channel, Address("127.0.0.1", 1), TRUST, deadline)
        channel.send(example("describe()")[4:-32], deadline)
        said = b"".join(example(name) for name in ("hello", "proof", "describe()"))
        assert received(other, len(said)) == said


def test_a_server_answers_what_stands_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """And takes the caller's proof, and the sealed call."""
    monkeypatch.setattr(secrets, "token_bytes", lambda count: b"\2" * count)
    one, other = tcp_pair()
    with one, other:
        for name in ("hello", "proof", "describe()"):
            other.sendall(example(name))
        channel = Channel(one)
        trust.admit(channel, TRUST, handshake_deadline())
        assert channel.receive(handshake_deadline()) == example("describe()")[4:-32]
        assert received(other, 68) == example("answer")


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def handshake_deadline() -> float:
    """Return a moment that does not come in a test."""
    return monotonic() + 30


def received(sock: socket.socket, count: int) -> bytes:
    """Read so many bytes."""
    said = b""
    while len(said) < count:
        said += sock.recv(count - len(said))
    return said


@pytest.mark.parametrize(
    ("begins", "told"),
    [
        (b"\x80\x01\x00\x01", "without a frame"),
        (b"GET / HTTP/1.1", "HTTP"),
        (b"\x16\x03\x01\x02", "TLS"),
        (b"\x7f\xff\xff\xff", "framed transport, or over"),
    ],
)
def test_another_transport_is_named(begins: bytes, told: str) -> None:
    """Whoever looks into the log reads what the caller should speak."""
    one, other = tcp_pair()
    with one, other:
        Thread(target=other.sendall, args=(begins,)).start()
        with pytest.raises(IncompatiblePeer, match=told):
            Channel(one).receive(handshake_deadline())


ROOT = Path(__file__).parents[3]

GENERATED = ROOT / "src/downpour/network/rpc/generated"


def version_of(compiler: str) -> str:
    """What a compiler says about itself."""
    command = [compiler, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_stubs_are_what_the_compiler_makes(tmp_path: Path) -> None:
    """Nobody edits them, and nobody changes the protocol without them."""
    compiler = shutil.which(os.environ.get("THRIFT", "thrift"))
    if compiler is None or " 0.24." not in version_of(compiler):
        pytest.skip("no Thrift compiler 0.24: name one in THRIFT, or put it on PATH")
    script = ROOT / "idl/generate.sh"
    environment = {**os.environ, "THRIFT": compiler}
    subprocess.run(["sh", script, tmp_path], check=True, env=environment)
    made = {path.name: path.read_text() for path in tmp_path.glob("*.py")}
    assert made == {path.name: path.read_text() for path in GENERATED.glob("*.py")}


def test_other_languages_get_a_namespace_of_their_own() -> None:
    """Without one, a language's classes land in no package, where Java cannot import them."""
    protocol = (ROOT / "idl/downpour.thrift").read_text(encoding="utf-8")
    assert re.findall(r"^namespace (\S+) ", protocol, re.MULTILINE) == ["py", "*", "java", "netstd"]
