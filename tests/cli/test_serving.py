"""The page, and `--metrics-port`, as a user starts them, with a real manager and worker."""

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
from prometheus_client.parser import text_string_to_metric_families

RECORDED = Path(__file__).parents[1] / "recorded"
COMMAND = [sys.executable, "-m", "downpour"]
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
        assert said == f"port = {port}: is in use on 127.0.0.1; 0 picks a free one"
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


SERVING = re.compile(r"(?:manager|worker) at ([^\s,]+), ")
METRICS = re.compile(r"metrics at (http://127\.0\.0\.1:\d+/metrics)\n")


@pytest.mark.parametrize("command", ["manager", "worker"])
def test_a_port_that_cannot_be_had_is_named(
    refused: Callable[..., str], tmp_path: Path, command: str
) -> None:
    """Before a manager becomes the leader, and before a worker looks for one."""
    at = command, "--port", 0, "--shared", tmp_path, "--metrics-port"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (
            refused(*at, port)
            == f"metrics_port = {port}: is in use on 127.0.0.1; 0 picks a free one"
        )
    assert refused(*at, 65536).startswith("metrics_port = 65536: a port from 0 to 65535")
    assert not list((tmp_path / "terms").glob("*"))


@contextmanager
def measured(*words: str) -> Iterator[tuple[str, str]]:
    """Start a command that serves; gives its address and the URL of its metrics."""
    with subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said, told = SERVING.match(process.stderr.readline()), process.stderr.readline()
            metrics = METRICS.fullmatch(told)
            assert said
            assert metrics, told
            yield said[1], metrics[1]
        finally:
            process.kill()


def names(url: str) -> set[str]:
    """Fetch; return the names of our own metrics, as the page of docs has them."""
    with urlopen(url, timeout=10) as answer:  # noqa: S310
        told = re.findall(r"^# TYPE (downpour_\w+) ", answer.read().decode(), re.MULTILINE)
    return set(told)


def scraped(url: str) -> dict[tuple[str, ...], float]:
    """Fetch and parse; returns each sample by its name and the values of its labels."""
    with urlopen(url, timeout=10) as answer:  # noqa: S310
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


@pytest.mark.slow
def test_a_cluster_that_trains_can_be_watched(tmp_path: Path) -> None:
    """Both say where; manager and worker agree about what was done."""
    common = "--shared", str(tmp_path), "--metrics-port", "0"
    with (
        measured("manager", "--port", "0", *common) as (manager, its),
        measured("worker", "--manager", manager, *common) as (_, theirs),
    ):
        submit = [
            "submit",
            "--manager",
            manager,
            "--watch",
            "--shards",
            "2",
            "--epochs",
            "3",
            "--meet",
            "1",
        ]
        subprocess.run([*COMMAND, *submit], capture_output=True, check=True)
        of_manager, of_worker = scraped(its), scraped(theirs)
        told = names(its) | names(theirs)
    assert of_manager["downpour_experiments", "finished"] == 1
    assert of_manager["downpour_rounds_total",] == 3
    assert of_manager["downpour_attempts_ended_total", "counted"] == 6
    assert of_worker["downpour_worker_tasks_total", "trained"] == 6
    assert of_worker["downpour_worker_steps_total",] > 0
    assert of_worker["downpour_worker_samples_per_second",] > 0
    assert of_worker["downpour_worker_train_seconds_count",] == 6
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "monitoring.md").read_text("utf-8")
    assert set(re.findall(r"`(downpour_\w+)`", page)) == told
