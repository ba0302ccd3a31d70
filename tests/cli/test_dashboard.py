"""The page as a user starts it: alone, and beside a run or a manager, with which it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

RECORDED = Path(__file__).parents[1] / "recorded"
COMMAND = [sys.executable, "-m", "downpour.cli"]
PAGE = re.compile(r"page at (http://127\.0\.0\.1:\d+/)")
TOKEN = "the token of these tests"


@contextmanager
def started(*words: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a command; gives its process, and where its page is."""
    line = [*COMMAND, *map(str, words)]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            told = (PAGE.match(line) for line in process.stderr)
            yield process, next(found[1] for found in told if found)
        finally:
            process.kill()


def asked(url: str, token: str = "") -> Any:
    """What a page answers, as JSON."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    with urlopen(Request(url, headers=headers), timeout=60) as answer:  # noqa: S310
        return json.load(answer)


@pytest.mark.slow
def test_a_folder_is_served_until_a_signal(refused: Callable[..., str]) -> None:
    """Its port is taken then; the signal ends it without a word."""
    with started("dashboard", RECORDED, "--port", 0) as (process, url):
        shown = asked(f"{url}api/experiments")["experiments"]
        assert {one["id"] for one in shown} == {"asynchronous", "gestures", "handoff", "refused"}
        port = url.strip("/").rpartition(":")[2]
        said = refused("dashboard", RECORDED, "--port", port)
        assert said == f"port = {port}: is in use on 127.0.0.1"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_a_token_is_asked_for_on_loopback_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the command is given one, as managers do."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    monkeypatch.setenv("DOWNPOUR_TOKEN_FILE", str(tmp_path / "token"))
    with started("dashboard", RECORDED / "handoff", "--port", 0) as (_, url):
        with pytest.raises(URLError, match="401"):
            asked(f"{url}api/experiments")
        assert len(asked(f"{url}api/experiments", TOKEN)["experiments"]) == 1


def ended(url: str) -> bool:
    """Whether no process listens there any more, once it has closed its connections."""
    host, _, port = url.removeprefix("http://").strip("/").rpartition(":")
    while True:
        try:
            with socket.create_connection((host, int(port)), timeout=60) as connection:
                connection.recv(1)  # until the server closes it
        except OSError:
            return True


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_managers_page_ends_with_it(tmp_path: Path, number: int) -> None:
    """However that ends, and it shows the shared directory from the beginning."""
    words = "manager", "--port", 0, "--shared", tmp_path / "shared", "--dashboard-port", 0
    with started(*words) as (process, url):
        assert asked(f"{url}api/experiments")["experiments"] == []
        process.send_signal(number)
        process.wait(60)
        assert ended(url)


@pytest.mark.slow
def test_a_clusters_page_ends_with_the_cluster(tmp_path: Path) -> None:
    """`up` returns and the page stays, until `down`."""
    words = "up", "--workers", 1, "--port", 0, "--shared", tmp_path, "--dashboard-port", 0
    said = subprocess.run([*COMMAND, *map(str, words)], check=True, capture_output=True, text=True)
    found = PAGE.search(said.stderr)
    assert found is not None
    try:
        assert asked(f"{found[1]}api/experiments")["experiments"] == []
    finally:
        down = [*COMMAND, "down", "--shared", str(tmp_path)]
        subprocess.run(down, check=True, capture_output=True)
    assert ended(found[1])


@pytest.mark.slow
def test_a_runs_page_shows_it_to_its_end(tmp_path: Path) -> None:
    """The last event says that the server has ended; all rounds are there by then."""
    words = "run", "--epochs", 12, "--workers", 2, "--shared", tmp_path, "--dashboard-port", 0
    with started(*words, "--train-limit", 300) as (process, url):
        shown: list[Any] = []
        while not shown:
            shown = asked(f"{url}api/experiments")["experiments"]
        with urlopen(f"{url}api/experiments/{shown[0]['id']}/events", timeout=100) as answer:  # noqa: S310
            text = answer.read().decode()
        *_, last = re.findall(r"^data: (.*seq.*)$", text, re.MULTILINE)
        assert json.loads(last)["experiment"]["state"] == "finished"
        assert "event: over" in text
        assert process.wait(60) == 0


@pytest.mark.slow
def test_a_simulation_leaves_records_for_the_page(
    tmp_path: Path, refused: Callable[..., str]
) -> None:
    """One for each experiment, from its journal; a second one does not replace it."""
    words = ["simulate", "--seed", "10", "--keep", str(tmp_path)]
    subprocess.run([*COMMAND, *words], check=True, capture_output=True)
    with started("dashboard", tmp_path, "--port", 0) as (_, url):
        shown = asked(f"{url}api/experiments")["experiments"]
        assert {one["id"] for one in shown} == {path.name for path in tmp_path.iterdir()}
        frame = asked(f"{url}api/experiments/{shown[0]['id']}/frame")
    assert frame["attempts"]
    assert frame["versions"]
    assert "has a record of" in refused(*words)
