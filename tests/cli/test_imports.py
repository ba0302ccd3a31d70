"""Processes import nothing that they need not before they are useful."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# What shows, reports or trains; each costs 0.05 to 4 s of a processor.
SHOWS = {"rich", "matplotlib", "pandas", "sklearn", "scipy", "cryptography", "obstore", "optuna"}
OTHERS = {"downpour.cluster.launchers", "downpour.experiments", "downpour.show", "downpour_lab"}
NEVER = SHOWS | OTHERS
TORCH = {"torch", "sympy"}
_IMPORTED = re.compile(r"import time: .*\| +(\S+)$")


@contextmanager
def process(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a command that tells on standard error what it imports, and kill it at the end."""
    command = [sys.executable, "-X", "importtime", "-m", "downpour.cli", *map(str, words)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            running.kill()


def imported_until(sign: str, running: subprocess.Popen[str]) -> tuple[set[str], str]:
    """Return the packages and parts of ours that were imported before a line, and that line."""
    names = set()
    for line in running.stderr or ():
        if found := _IMPORTED.match(line.rstrip()):
            first, *more = found[1].split(".")
            names |= {first, *(f"{first}.{part}" for part in more[:1])}
        elif line.startswith(sign):
            return names, line
    raise AssertionError(f"no line begins with {sign!r}")


@pytest.mark.parametrize("command", ["ping", "manager", "worker"])
def test_a_command_imports_itself_alone(command: str) -> None:
    """The other commands' modules stay out, so that health checks and workers start quickly."""
    with process(command, "--no-such-option") as running:
        names, _ = imported_until("downpour: No such option", running)
    assert not names & (
        NEVER | TORCH | {"numpy", "thrift", "downpour.core.spec", "downpour.network.rpc"}
    )


def test_predictors_from_a_file_are_scored_without_torch(tmp_path: Path) -> None:
    """Only a predictor that is trained needs it."""
    with process("predictor", "score", tmp_path / "none.npz") as running:
        names, _ = imported_until("downpour: ", running)
    assert "downpour_lab.fitting" in names
    assert not names & TORCH


def test_managers_and_workers_and_health_checks_import_what_they_need(tmp_path: Path) -> None:
    """A manager until it serves, a worker until it has registered, and a check altogether."""
    with process("manager", "--port", 0, "--shared", tmp_path) as manager:
        names, line = imported_until("manager at ", manager)
        assert not names & NEVER
        address = line.split()[2].rstrip(",")
        with process("worker", "--manager", address, "--shared", tmp_path) as worker:
            names, _ = imported_until("worker at ", worker)
            assert not names & (NEVER | {"downpour.core.scheduler", "torch._dynamo", "sympy"})
        with process("ping", address, "--shared", tmp_path) as check:
            names = set(re.findall(r"\| +([\w.]+)$", check.communicate()[1], re.MULTILINE))
            assert check.returncode == 0
        assert not names & (NEVER | TORCH | {"downpour.core.scheduler", "downpour.core.spec"})
