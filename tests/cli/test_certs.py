"""`downpour certs`: what it says, and what it refuses in one line."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

Downpour = Callable[..., Any]
Refused = Callable[..., str]


def test_it_says_what_was_written_and_how_to_use_it(downpour: Downpour, tmp_path: Path) -> None:
    """Every file is listed; the options and variables name files that are there."""
    folder = tmp_path / "my certs"
    outcome = downpour("certs", "first,10.0.0.5", "second", "--out", folder, "--days", 7)
    assert (outcome.status, outcome.err) == (0, "")
    for path in folder.iterdir():
        assert f"\n{path}: " in "\n" + outcome.out
    assert f"{folder / 'first.pem'}: for first, 10.0.0.5; valid until " in outcome.out
    options = [shlex.split(line) for line in outcome.out.splitlines() if "--tls-" in line]
    exports = [shlex.split(line) for line in outcome.out.splitlines() if "export " in line]
    for name, words, variables in zip(("first", "second"), options, exports, strict=True):
        files = [str(folder / file) for file in (f"{name}.pem", f"{name}-key.pem", "ca.pem")]
        assert words[0::2] == ["--tls-cert", "--tls-key", "--tls-ca"]
        assert words[1::2] == files
        names = ("DOWNPOUR_TLS_CERT", "DOWNPOUR_TLS_KEY", "DOWNPOUR_TLS_CA")
        assert variables[1:] == [f"{n}={f}" for n, f in zip(names, files, strict=True)]


def test_no_key_is_printed(downpour: Downpour, tmp_path: Path) -> None:
    """Only where it is."""
    said = downpour("certs", "first", "--out", tmp_path).out
    assert "PRIVATE" not in said
    secret = (tmp_path / "first-key.pem").read_text().splitlines()[1]
    assert secret not in said


def test_a_machine_added_later_is_told_alone(downpour: Downpour, tmp_path: Path) -> None:
    """The authority was listed when it was made."""
    downpour("certs", "first", "--out", tmp_path)
    said = downpour("certs", "second", "--out", tmp_path).out
    assert re.findall(r"^On (\S+),", said, re.MULTILINE) == ["second"]
    assert "the authority" not in said


def test_what_is_there_stays(downpour: Downpour, refused: Refused, tmp_path: Path) -> None:
    """The same call again is refused, with the file that it would have written."""
    downpour("certs", "first", "--out", tmp_path)
    line = refused("certs", "first", "--out", tmp_path)
    file = tmp_path / "first.pem"
    assert line == f"NAME = 'first': {file} exists, and this command never overwrites files"
