"""A manager as a process: what strangers, streams and signals do to it."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest
import thrift

from downpour.base.errors import DownpourError
from downpour.host.paths import Credentials
from downpour.network.discovery import awaiting
from downpour.network.rpc import Address, ManagerClient, Trust, parse_address

TOKEN = "the token of these tests, which strangers lack"
HOLDER = Trust.load(Credentials(token=TOKEN))
SAID = re.compile(rb"manager at ([^,\s]+)")


@contextmanager
def managing(
    shared: Path, before: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Address, bytes]]:
    """A manager's process, its address, and what it said until then; ends it at last."""
    words = [sys.executable, "-m", "downpour", "manager", "--shared", str(shared), "--port=0"]
    process = subprocess.Popen(
        ["/bin/sh", "-c", f'{before} exec "$0" "$@"', *words],
        stderr=subprocess.PIPE,
        start_new_session=True,  # without a terminal
        env={"DOWNPOUR_TOKEN": TOKEN, "HOME": str(shared.parent), **(environment or {})},
    )
    with process:
        try:
            assert process.stderr is not None
            said = _until_it_serves(process.stderr)
            yield process, parse_address(SAID.findall(said)[0].decode()), said
        finally:
            process.kill()


def _until_it_serves(stream: IO[bytes]) -> bytes:
    said = b""
    for line in stream:
        said += line
        if SAID.search(line):
            return said
    raise AssertionError(said.decode())


def answers(address: Address) -> bool:
    """Whether the manager answers somebody who holds the token."""
    with ManagerClient(address, trust=HOLDER) as client:
        return bool(awaiting(20)(client.describe).version)


@pytest.mark.slow
def test_strangers_do_not_end_a_manager_with_few_descriptors(tmp_path: Path) -> None:
    """More connect than it may open files; it goes on, serves friends, and has said its limit."""
    with managing(tmp_path / "shared", before="ulimit -n 128;") as (process, address, said):
        assert b"at most 32 workers can connect, because this process may open 128 files" in said
        with ManagerClient(address, trust=HOLDER) as friend, ExitStack() as silent:
            friend.describe()
            for _ in range(200):
                silent.enter_context(_stranger(address))
            assert answers(address)
            assert friend.submit("shards = 2", "abcd1234")
            assert process.poll() is None


def _stranger(address: Address) -> socket.socket:
    sock = socket.socket()
    with suppress(OSError):
        sock.settimeout(20)
        sock.connect((address.host, address.port))
    return sock


@pytest.fixture
def pure(tmp_path: Path) -> dict[str, str]:
    """An environment in which thrift lacks its C extension."""
    part = shutil.ignore_patterns("fastbinary*", "__pycache__")
    shutil.copytree(Path(thrift.__file__).parent, tmp_path / "pure" / "thrift", ignore=part)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "pure"), *sys.path])}


@pytest.mark.slow
def test_a_manager_answers_without_the_c_extension_of_thrift(
    tmp_path: Path, pure: dict[str, str]
) -> None:
    """It falls back to the pure protocol, with one remark that says how to get the faster one."""
    with managing(tmp_path / "shared", environment=pure) as (_, address, said):
        assert said.count(b"thrift lacks its C extension") == 1
        assert b"pip install --force-reinstall --no-binary thrift thrift" in said
        assert answers(address)
    looks = "import downpour.cluster.doctor as d; print(d._thrift().verdict)"
    for environment, verdict in ((pure, b"warning\n"), ({}, b"ok\n")):
        words = [sys.executable, "-c", looks]
        found = subprocess.run(words, env=environment, capture_output=True, check=True)
        assert found.stdout == verdict


@pytest.mark.slow
def test_a_run_trains_without_the_c_extension_of_thrift(
    tmp_path: Path, pure: dict[str, str]
) -> None:
    """All its processes speak the pure protocol, and its log has the remark once."""
    words = ["run", "--epochs=1", "--workers=2", f"--shared={tmp_path / 'shared'}"]
    command = [sys.executable, "-m", "downpour", *words]
    subprocess.run(command, env={**os.environ, **pure}, capture_output=True, check=True)
    (log,) = tmp_path.glob("shared/logs/2*")
    assert log.read_text().count("thrift lacks its C extension") == 1


@pytest.mark.slow
def test_a_manager_outlives_the_reader_of_its_output_and_the_rotation_of_logs(
    tmp_path: Path,
) -> None:
    """A closed pipe costs only the lines; HUP without a terminal that closes ends no server."""
    with managing(tmp_path / "shared") as (process, address, _):
        assert process.stderr is not None
        process.stderr.close()
        process.send_signal(signal.SIGHUP)
        with ManagerClient(address) as stranger, suppress(DownpourError):
            stranger.describe()  # costs a warning in the log
        process.send_signal(signal.SIGHUP)
        assert answers(address)
        process.terminate()
        assert process.wait(60) == 0
