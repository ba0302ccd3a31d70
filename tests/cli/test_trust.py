"""Token and certificates, as users give them: what is refused in one line, and what then works."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from downpour.cluster.manager.process import Manager, start_manager
from downpour.cluster.operations.certificates import issue
from downpour.cluster.options import ManagerOptions
from downpour.host.paths import Credentials

Refused = Callable[..., str]
HERE = "127.0.0.1"
TOKEN = "the token of these tests"
WANTED = "needs a token (DOWNPOUR_TOKEN or token_file) or TLS "


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of one authority: for a machine that is here, and for one that is elsewhere."""
    folder = tmp_path_factory.mktemp("certs")
    issue([f"here,{HERE},localhost", "elsewhere,10.9.9.9"], folder, days=9)
    return folder


def tls(folder: Path, name: str) -> list[str]:
    """The options that name a machine's files."""
    files = {"cert": f"{name}.pem", "key": f"{name}-key.pem", "ca": "ca.pem"}
    return [word for flag, file in files.items() for word in (f"--tls-{flag}", f"{folder / file}")]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file that holds a token."""
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o600)
    return path


@pytest.fixture
def guarded(tmp_path: Path, token_file: Path, certs: Path) -> Iterator[Manager]:
    """A manager that asks for a token over TLS, and its shared directory."""
    (tmp_path / "shared").mkdir()
    credentials = Credentials(
        token_file=str(token_file),
        tls_cert=str(certs / "here.pem"),
        tls_key=str(certs / "here-key.pem"),
        tls_ca=str(certs / "ca.pem"),
    )
    options = ManagerOptions(shared=str(tmp_path / "shared"), port=0, credentials=credentials)
    manager = start_manager(options)
    yield manager
    manager.close()


def test_a_worker_of_a_manager_elsewhere_is_asked_for_a_token_too(
    refused: Refused, tmp_path: Path
) -> None:
    """It would listen where others reach it; the manager is not even called."""
    line = refused("worker", "--manager", "192.0.2.1", "--shared", tmp_path)
    assert line.startswith((f"host = '::': {WANTED}", f"host = '0.0.0.0': {WANTED}"))


@pytest.mark.parametrize("command", ["manager", "worker", "ping"])
def test_keys_and_certificates_that_do_not_serve_are_named(
    refused: Refused, tmp_path: Path, certs: Path, command: str
) -> None:
    """Each in one line that names the option; the terminal is not asked for a password."""
    key = certs / "here-key.pem"
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    locked, junk, missing = tmp_path / "locked.pem", tmp_path / "junk.pem", tmp_path / "missing.pem"
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"password"),
        )
    )
    locked.chmod(0o600)
    junk.write_text("no certificate")
    pair = f"not a certificate and its key in PEM form, without a password (key: {key})"
    shared = ["--shared", str(tmp_path)] if command != "ping" else []
    for option, path, line in (
        ("--tls-key", missing, "cannot be read (No such file or directory)"),
        ("--tls-key", tmp_path, "cannot be read (Is a directory)"),
        ("--tls-key", certs / "elsewhere-key.pem", f"is not the key for {certs / 'here.pem'}"),
        ("--tls-cert", key, pair),
        ("--tls-cert", junk, pair),
        ("--tls-ca", junk, "holds no certificate in PEM form"),
        ("--tls-ca", "", "mutual TLS needs tls_cert, tls_key and tls_ca"),
    ):
        told = refused(command, *tls(certs, "here"), option, path, *shared)
        assert told == f"{option[2:].replace('-', '_')} = '{path}': {line}"
    told = refused(command, *tls(certs, "here"), "--tls-key", locked, *shared)
    assert told == f"tls_cert = '{certs / 'here.pem'}': {pair.replace(str(key), str(locked))}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_key_that_is_not_this_users_is_named(
    refused: Refused, tmp_path: Path, certs: Path
) -> None:
    """With the system's own word."""
    key = tmp_path / "key.pem"
    key.touch(mode=0)
    told = refused("ping", *tls(certs, "here"), "--tls-key", key)
    assert told == f"tls_key = '{key}': cannot be read (Permission denied)"


def test_members_are_answered(
    downpour: Callable[..., Any], guarded: Manager, token_file: Path, certs: Path
) -> None:
    """With options or with variables, whichever are given."""
    told = downpour("ping", guarded.address, "--token-file", token_file, *tls(certs, "here"))
    assert told.status == 0, told
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DOWNPOUR_TOKEN", TOKEN)
        environment.setenv("DOWNPOUR_TLS_CERT", str(certs / "elsewhere.pem"))
        environment.setenv("DOWNPOUR_TLS_KEY", str(certs / "elsewhere-key.pem"))
        environment.setenv("DOWNPOUR_TLS_CA", str(certs / "ca.pem"))
        assert downpour("status", "--manager", guarded.address).status == 0


def test_a_worker_under_another_name_than_its_certificates_is_refused(
    refused: Refused,
    downpour: Callable[..., Any],
    guarded: Manager,
    tmp_path: Path,
    token_file: Path,
    certs: Path,
) -> None:
    """The manager calls it back, sees whose certificate that is, and goes on without it."""
    member = ["--manager", guarded.address, "--token-file", token_file]
    line = refused("worker", *member, "--shared", tmp_path / "shared", *tls(certs, "elsewhere"))
    told = r"advertise: the manager cannot call back at 127\.0\.0\.1:\d+ \(\S+ shows an untrusted "
    told += r"certificate: IP address mismatch, certificate is not valid for '127\.0\.0\.1'\); "
    assert re.match(told, line), line
    status = downpour("status", *member, *tls(certs, "here"))
    assert status.status == 0
    assert "127.0.0.1" not in status.out
