"""`downpour doctor` and `downpour certs`."""

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from downpour.base import VERSION

Downpour = Callable[..., Any]
Refused = Callable[..., str]


def test_a_folder_that_is_well_ends_with_status_0(downpour: Downpour, served: Any) -> None:
    """A row a check, within 80 columns, and nothing on standard error."""
    outcome = downpour("doctor", "--shared", served.shared, "--manager", served.address)
    assert (outcome.status, outcome.err) == (0, "")
    rows = [line.split() for line in outcome.out.splitlines() if " ok " in line]
    assert len(rows) == 13
    assert max(map(len, outcome.out.splitlines())) <= 80


def test_the_folders_own_manager_is_asked_without_its_address(
    downpour: Downpour, served: Any, tmp_path: Path
) -> None:
    """The row says who answers; in a folder without a manager, it says so and nothing failed."""
    shown = downpour("doctor", "--shared", served.shared)
    assert shown.status == 0
    words = " ".join(shown.out.split())
    assert f"{served.address} runs downpour {VERSION} and has no workers" in words
    assert "it is the manager's" in words
    alone = downpour("doctor", "--shared", tmp_path)
    assert (alone.status, "none leads here" in alone.out) == (0, True)


def test_a_failed_check_ends_with_status_2(downpour: Downpour, served: Any, tmp_path: Path) -> None:
    """The row says what to change; for programs it is JSON."""
    words = ("doctor", "--shared", tmp_path, "--manager", served.address)
    shown = downpour(*words)
    assert shown.status == 2
    assert "mount the manager's folder here" in shown.out
    told = downpour(*words, "--json")
    found = json.loads(told.out)
    assert (told.status, found["healthy"]) == (2, False)
    checks = {check["check"]: check for check in found["checks"]}
    assert checks["same folder"]["verdict"] == "failed"
    assert checks["speed"]["figures"]["publish_ms"] > 0


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two hosts: one is this machine, the other cannot be reached."""
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        "#!/bin/sh\n"
        'case "$*" in *"-- away "*) echo "ssh: no route" >&2; exit 255;; esac\n'
        'for script; do :; done; exec /bin/sh -c "$script"\n'
    )
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    file = tmp_path / "hosts.txt"
    file.write_text("here\naway slots=2\n")
    return file


@pytest.mark.slow
def test_hosts_get_a_row_each_and_a_line_for_each_problem(
    downpour: Downpour, served: Any, hosts: Path
) -> None:
    """One that cannot be used makes the exit status 2, and the other rows are there anyway."""
    shown = downpour("doctor", "--shared", served.shared, "--hosts", hosts)
    assert shown.status == 2
    rows = {words[0]: words for line in shown.out.splitlines() if (words := line.split())}
    assert rows["here"][1:4] in (["ok", "1", VERSION], ["warning", "1", VERSION])
    assert "away: ssh: no route" in shown.out.splitlines()
    assert max(map(len, shown.out.splitlines())) <= 80
    told = json.loads(downpour("doctor", "--shared", served.shared, "--hosts", hosts, "--json").out)
    assert not told["healthy"]
    assert [one["look"]["host"]["name"] for one in told["hosts"]] == ["here", "away"]
    assert told["hosts"][0]["look"]["numerics"].startswith("torch ")


def test_hosts_need_a_folder_to_be_compared_with(refused: Callable[..., str], hosts: Path) -> None:
    """Whether they have the same one cannot be told otherwise."""
    nowhere = hosts.parent / "nowhere"
    assert "is no folder here" in refused("doctor", "--shared", nowhere, "--hosts", hosts)


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
