"""Variables of the environment, and a working directory, that cannot be meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.badinput.conftest import Refused, is_one_line

VARIABLES: list[tuple[str, str, list[str], str]] = [
    ("DOWNPOUR_MANAGER", "host:port", ["list"], "manager = 'host:port'"),
    ("DOWNPOUR_MANAGER", "127.0.0.1:1", ["status"], "127.0.0.1:1 cannot be reached"),
    ("DOWNPOUR_MANAGER", "127.0.0.1:1", ["ping"], "127.0.0.1:1 cannot be reached"),
    ("DOWNPOUR_SHARED", "~nobody-of-that-name", ["run"], "shared = '~nobody-of-that-name'"),
    ("DOWNPOUR_SHARED", "x" * 300, ["doctor"], "shared = 'xxx"),
    ("DOWNPOUR_DATA", "nowhere", ["run"], "'nowhere' does not exist"),
    ("DOWNPOUR_TOKEN_FILE", "nowhere", ["list"], "token_file = 'nowhere'"),
    ("DOWNPOUR_TLS_CERT", "nowhere", ["list"], "tls"),
    ("DOWNPOUR_TLS_CA", "nowhere", ["list"], "tls"),
    ("DOWNPOUR_TOKEN", "short", ["manager", "--shared", "s", "--port", "0"], "token"),
]


@pytest.mark.parametrize(("variable", "value", "words", "named"), VARIABLES)
def test_a_variable_is_refused(
    bad: Refused,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    value: str,
    words: list[str],
    named: str,
) -> None:
    """As the option would be that it stands for."""
    monkeypatch.setenv(variable, value)
    bad(words, named)


@pytest.mark.parametrize("words", [["run"], ["doctor"], ["grid", "x.toml"], ["certs", "a"]])
def test_a_working_directory_may_be_gone(tmp_path: Path, words: list[str]) -> None:
    """Whatever is relative to it cannot be, and that is said."""
    gone = tmp_path / "gone"
    script = f"mkdir {gone}; cd {gone}; rmdir {gone}; exec {sys.executable} -P -m downpour.cli "
    told = subprocess.run(
        ["sh", "-c", script + " ".join(words)],
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (told.returncode, told.stdout) == (2, "")
    is_one_line(told.stderr)
