"""The fork server as its launcher sees it: JSON lines in, JSON lines out."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import pytest

from downpour.cluster.launchers import forkserver
from downpour.cluster.options import ManagerOptions
from downpour.core.spec import Spec
from downpour.network.rpc import ManagerClient, parse_address

PATIENCE_SECONDS = 60
LOOKED_AT = """
import os
from torch import nn, optim
from downpour import Task

print("no news")

class Calm(Task):
    def model(self):
        return nn.Linear(2, 2)
    def examples(self, part):
        return None
    def loss(self, model, batch):
        return model(batch).sum()
    def optimizer(self, groups):
        return optim.SGD(groups, lr=0.1, momentum=0.25)

class Wild(Calm):
    def optimizer(self, groups):
        os._exit(0)
"""


@contextmanager
def running(*imports: str, folder: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A fork server, until the block ends."""
    command = [sys.executable, "-m", forkserver.__name__, *imports]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        text=True,
    ) as process:
        yield process
        if process.stdin and not process.stdin.closed:
            process.stdin.close()
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """A fork server of its own, which ends with the test."""
    with running() as process:
        yield process


def ask(
    server: subprocess.Popen[str], options: ManagerOptions | dict[str, Any], role: str = "manager"
) -> None:
    """Ask for a process."""
    assert server.stdin is not None
    fields = options if isinstance(options, dict) else asdict(options)
    request = {"role": role, "name": "boss", "options": fields}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()


def news(server: subprocess.Popen[str]) -> dict[str, Any]:
    """Read the next line."""
    pipe: IO[str] | None = server.stdout
    assert pipe is not None
    told: dict[str, Any] = {"pid": 0}
    while "pid" in told:  # of every process, which other tests look at
        told = json.loads(pipe.readline())
    return told


@pytest.mark.slow
def test_a_failed_start_says_why_and_a_started_process_ends_with_the_requests(
    server: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Status 2 is the user's mistake; the next manager serves until the server's input ends."""
    (tmp_path / "file").touch()
    ask(server, ManagerOptions(shared=str(tmp_path / "file"), port=0))
    told = news(server)
    assert "not a folder" in told["error"]
    assert told["status"] == 2
    assert news(server) == {"name": "boss", "exited": 2}
    ask(server, ManagerOptions(shared=str(tmp_path), port=0))
    address = news(server)["answer"]
    with ManagerClient(parse_address(address)) as client:
        assert client.list_experiments() == ()
    assert server.stdin is not None
    server.stdin.close()
    assert news(server) == {"name": "boss", "exited": 0}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what a process has open")
@pytest.mark.parametrize("then", ["", "threading.Thread(target=time.sleep, args=(9,)).start()"])
def test_packages_are_imported_once_for_all_unless_they_begin_threads(
    tmp_path: Path, then: str
) -> None:
    """A thread would be missing in a fork, so a server that has one begins again without.

    If an import fails, the process that needs the package reports it.
    """
    text = f"import threading, time\nprint('no news')\nheld = open('imported', 'ab')\n{then}\n"
    (tmp_path / "yarn.py").write_text(text)
    (tmp_path / "broken.py").write_text("raise SystemExit('broken')")
    names = "missing_everywhere:name", "broken", "yarn:held", "yarn:no_such_name", "yarn"
    with running(*names, folder=tmp_path) as server:
        ask(server, ManagerOptions(shared=str(tmp_path / "shared"), port=0))
        with ManagerClient(parse_address(news(server)["answer"])) as client:
            assert client.list_experiments() == ()
        held = {path.resolve() for path in Path(f"/proc/{server.pid}/fd").iterdir()}
    assert (tmp_path / "imported").exists()
    assert (tmp_path / "imported" in held) == (not then)


@pytest.mark.slow
def test_a_fork_looks_at_the_optimizer_of_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the code prints is no answer; one that ends its process tells no optimizer."""
    monkeypatch.setenv("DOWNPOUR_ALLOW", "look_lab")
    (tmp_path / "look_lab.py").write_text(LOOKED_AT)
    with running(folder=tmp_path) as server:
        answer, error = {"answer": '{"momentum": 0.25, "settings": {}}'}, {"status": 2}
        for task, expected in (("Calm", answer), ("Wild", error)):
            spec = Spec.make({"task": f"look_lab:{task}", "meet": 1}).to_toml()
            ask(server, {"spec": spec, "path": [str(tmp_path), *sys.path]}, "look")
            assert expected.items() <= news(server).items()
            assert "exited" in news(server)


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 5000, "🙂" * 5000, "\udcff" * 5000])
def test_news_of_any_length_is_one_whole_line(text: str) -> None:
    """A long error is cut, and the line still fits a pipe at once and can be read."""
    reading, writing = os.pipe()
    server = forkserver.ForkServer(requests=reading, news=writing)
    server._tell(name="worker-1", error=text)
    line = os.read(reading, 2**20)
    assert len(line) <= select.PIPE_BUF
    assert line.endswith(b"\n")
    assert json.loads(line)["error"] == text[:600]
    for descriptor in (reading, writing, server._wake, server._woken):
        os.close(descriptor)
