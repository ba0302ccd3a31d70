"""A command line in this process: its status and what it wrote, and a manager for it to call."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from downpour.cli import run_command
from downpour.cluster.manager.process import start_manager
from downpour.cluster.options import ManagerOptions
from downpour.host.paths import FILES, TOKEN
from downpour.learning.allowlist import FOLDERS
from downpour.learning.allowlist import VARIABLE as ALLOWED


@dataclass(frozen=True)
class Outcome:
    """What a command came to."""

    status: int
    out: str
    err: str


Downpour = Callable[..., Outcome]


@pytest.fixture
def downpour(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Downpour:
    """Run a command in this process, as a terminal of 80 columns would show it."""
    for variable in (
        "DOWNPOUR_MANAGER",
        "DOWNPOUR_SHARED",
        "DOWNPOUR_DATA",
        TOKEN,
        *FILES.values(),
    ):
        monkeypatch.delenv(variable, raising=False)
    for variable in (ALLOWED, FOLDERS):  # commands add to them; what they add is undone
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    monkeypatch.setenv("COLUMNS", "80")

    def run(*words: object) -> Outcome:
        capsys.readouterr()
        status = run_command([str(word) for word in words])
        return Outcome(status, *capsys.readouterr())

    return run


@pytest.fixture
def refused(downpour: Downpour) -> Callable[..., str]:
    """Run a command that must be refused in one line with status 2; returns the line."""

    def run(*words: object) -> str:
        outcome = downpour(*words)
        assert outcome.status == 2, outcome
        assert outcome.out == ""
        assert outcome.err.startswith("downpour: ")
        assert outcome.err.count("\n") == 1, outcome.err
        return outcome.err.removeprefix("downpour: ").rstrip("\n")

    return run


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """Give the signals back that a manager or a worker has taken over."""
    kept = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@dataclass(frozen=True)
class Served:
    """A manager that answers, and its shared directory."""

    address: str
    shared: Path


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A manager that no worker joins."""
    shared = tmp_path_factory.mktemp("shared")
    manager = start_manager(ManagerOptions(shared=str(shared), port=0, patience_seconds=0.2))
    yield Served(str(manager.address), shared)
    manager.close()
