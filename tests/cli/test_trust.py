"""Users pass a token and certificates: what commands refuse, and a cluster that uses both."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from downpour.cluster.certificates import issue
from downpour.cluster.manager.process import Manager, start_manager
from downpour.cluster.options import ManagerOptions
from downpour.host.paths import Credentials

Refused = Callable[..., str]
HERE = "127.0.0.1"
TOKEN = "the token of these tests"
WANTED = "needs a token (DOWNPOUR_TOKEN, or --token-file with a file of `downpour manager --make"


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


COMMAND = [sys.executable, "-m", "downpour"]
PATIENCE_SECONDS = 60
ADDRESSES = ("10.77.1.1", "10.77.1.2", "10.77.1.3", "10.77.1.4")
LOOPBACK = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")


@dataclass(frozen=True)
class Network:
    """Where the processes run: how commands get there, and an address for each machine."""

    entrance: tuple[str, ...]
    addresses: tuple[str, ...]


@pytest.fixture
def network() -> Iterator[Network]:
    """A network namespace with addresses that are not loopback's, or else loopback."""
    tools = [shutil.which(name) for name in ("unshare", "nsenter", "ip")]
    if os.geteuid() != 0 or not all(tools):
        yield Network((), LOOPBACK)
        return
    with subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo ready; exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as holder:
        try:
            assert holder.stdout is not None
            if holder.stdout.readline() != b"ready\n":
                yield Network((), LOOPBACK)
                return
            enter = ("nsenter", f"--net=/proc/{holder.pid}/ns/net")
            subprocess.run([*enter, "ip", "link", "set", "lo", "up"], check=True)
            for address in ADDRESSES:
                words = ["ip", "address", "add", f"{address}/24", "dev", "lo"]
                subprocess.run([*enter, *words], check=True)
            yield Network(enter, ADDRESSES)
        finally:
            holder.kill()


class Running:
    """A process of ours: what it says, line by line, while it runs and after."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.said = ""
        self._lines = SimpleQueue[str]()
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def heard(self, pattern: str) -> str:
        """Wait for a line with the pattern; returns its first group."""
        while line := self._lines.get(timeout=PATIENCE_SECONDS):
            if found := re.search(pattern, line):
                return found[1]
        raise AssertionError(f"ended without {pattern!r}: {self.said}")

    def ended(self) -> int:
        """Wait for its end; returns its status."""
        self.process.wait(PATIENCE_SECONDS)
        self._thread.join(PATIENCE_SECONDS)
        return self.process.returncode

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            self._lines.put(line)
        self._lines.put("")


@dataclass(frozen=True)
class Cluster:
    """Machines with addresses and certificates, and the files that all of them see."""

    network: Network
    folder: Path

    @property
    def shared(self) -> Path:
        return self.folder / "shared"

    @contextmanager
    def runs(self, number: int, *words: str, name: int | None = None) -> Iterator[Running]:
        """Run a command on a machine, with its own certificate or another's; end it at last."""
        certs = self.folder / "certs"
        own = self.network.addresses[number if name is None else name]
        environment = {
            **os.environ,
            "DOWNPOUR_TOKEN_FILE": str(self.shared / "token"),
            "DOWNPOUR_TLS_CERT": str(certs / f"{own}.pem"),
            "DOWNPOUR_TLS_KEY": str(certs / f"{own}-key.pem"),
            "DOWNPOUR_TLS_CA": str(certs / "ca.pem"),
        }
        with subprocess.Popen(
            [*self.network.entrance, *COMMAND, *words],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield Running(process)
            finally:
                process.kill()

    @contextmanager
    def worker(self, number: int, manager: str, name: int | None = None) -> Iterator[Running]:
        """Run a worker on a machine, saying all it can."""
        words = ["worker", "--verbose", "--manager", manager, "--shared", str(self.shared)]
        words += ["--host", self.network.addresses[number], "--name", f"worker-{number}"]
        with self.runs(number, *words, name=name) as running:
            yield running


@pytest.fixture
def cluster(tmp_path: Path, network: Network) -> Cluster:
    """Machines without anything running."""
    issue(network.addresses, tmp_path / "certs", days=2)
    (tmp_path / "shared").mkdir()
    return Cluster(network, tmp_path)


def secrets_of(cluster: Cluster) -> list[str]:
    """The token, and a line out of each key."""
    keys = [
        path.read_text().splitlines()[1] for path in (cluster.folder / "certs").glob("*-key.pem")
    ]
    return [(cluster.shared / "token").read_text().strip(), *keys]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_cluster_under_tls_trains_and_a_worker_that_is_none_harms_nobody(
    cluster: Cluster,
) -> None:
    """Digits are learned; a worker with another's certificate ends with one line and status 2.

    No secret is in what any of them says, in a command line, or in a file that they share.
    """
    host = cluster.network.addresses[0]
    manager_words = ["manager", "--verbose", "--make-token", "--host", host, "--port", "0"]
    with ExitStack() as stack:
        manager = stack.enter_context(
            cluster.runs(0, *manager_words, "--shared", str(cluster.shared))
        )
        address = manager.heard(rf"manager at ({re.escape(host)}:\d+), ")
        workers = [stack.enter_context(cluster.worker(number, address)) for number in (1, 2)]
        for number, worker in zip((1, 2), workers, strict=True):
            own = re.escape(cluster.network.addresses[number])
            worker.heard(rf"worker at ({own}:\d+), manager ")
        impostor = stack.enter_context(cluster.worker(3, address, name=1))
        assert impostor.ended() == 2
        (complaint,) = re.findall("^downpour: .*", impostor.said, re.MULTILINE)
        assert "advertise: the manager cannot call back at " in complaint
        assert "Traceback" not in impostor.said
        assert "IP address mismatch" in complaint
        words = ["submit", "--manager", address, "--watch", "--model", "digits-cnn"]
        words += ["--dataset", "digits", "--shards", "4", "--epochs", "3"]
        submitted = stack.enter_context(cluster.runs(3, *words))
        everybody = [manager, *workers, submitted]
        lines = [Path(f"/proc/{one.process.pid}/cmdline") for one in everybody]
        told = [line.read_bytes().decode() for line in lines if line.exists()]
        assert submitted.ended() == 0, submitted.said
        assert "finished in" in submitted.said
        for one in [*workers, manager]:
            one.process.send_signal(signal.SIGINT)
            assert one.ended() == 0, one.said
        told += [one.said for one in [*everybody, impostor]]
    files = [path for path in cluster.shared.rglob("*") if path.is_file() and path.name != "token"]
    assert any(path.name == "model.safetensors" for path in files)
    told += [path.read_text(errors="ignore") for path in files]
    secrets = secrets_of(cluster)
    assert len(secrets) == 6
    for secret in secrets:
        assert not [text for text in told if secret in text]
