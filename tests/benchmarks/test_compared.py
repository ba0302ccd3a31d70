"""The comparison with other systems: what is made of what they print."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


OURS = ("compared", "peers.running", "peers.parts", "peers.known", "peers", "slowing", "common")


@pytest.fixture(autouse=True)
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The benchmark as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("compared")
    for name in OURS:
        sys.modules.pop(name, None)


@pytest.fixture
def running(compared: Any) -> Any:
    """How a peer is run."""
    return sys.modules[compared.run.__module__]


@pytest.fixture
def parts(compared: Any) -> Any:
    """What is measured of it."""
    return sys.modules[compared.parts.__module__]


def ran(*events: tuple[str, float], status: int = 0, ended: float = 20.0) -> Any:
    """A run that began at 10 and has said these events."""
    said = [{"event": event, "at": at, "accuracy": 0.5} for event, at in events]
    return sys.modules["peers.running"].Ran(
        events=said,
        status=status,
        began=10.0,
        ended=ended,
        memory_mb=100.0,
        user_seconds=30.0,
        load=1.0,
    )


def test_events_are_found_among_whatever_a_system_prints(running: Any) -> None:
    """Its log stands before a line, or between them, and a line may be torn."""
    lines = [
        "starting\n",
        '(Worker pid=3) {"event": "first", "at": 1.5}\n',
        "{torn\n",
        '{"x": 1}\n',
        '{"event": "epoch", "at": 2}{"event": "end", "at": 3} {\n',
    ]
    assert [one["event"] for one in running.said(lines)] == ["first", "epoch", "end"]


def test_a_row_is_the_median_of_the_repetitions(compared: Any, parts: Any) -> None:
    """An epoch counts from the first step on; what no run has said stays empty."""
    runs = [ran(("first", 10 + at), ("epoch", 14 + at)) for at in (1.0, 2.0, 9.0)]
    wanted = parts.parts(3000)
    row = compared.row(compared.PEERS[0], wanted, {"trained": runs, "rounds": runs})
    assert (row["first_batch_seconds"], row["epoch_seconds"]) == (2.0, 4.0)
    assert (row["accuracy_percent"], row["round_ms"]) == (50.0, None)
    assert (row["memory_mb"], row["user_seconds"]) == (100.0, 30.0)
    assert row["lines"] > 5


def test_the_target_is_reached_when_it_is_first_said(parts: Any) -> None:
    """From the command on; a run that never came there has none."""
    run = ran(("epoch", 11.0), ("accuracy", 12.0), ("accuracy", 16.0), ("accuracy", 17.0))
    assert parts.of_target(None, [run]) == {"target_seconds": None}
    run.events[2]["accuracy"] = run.events[3]["accuracy"] = 0.975
    assert parts.of_target(None, [run])["target_seconds"] == 6.0


def test_a_measurement_alone_joins_the_kept_ones(compared: Any) -> None:
    """A column stays until it is measured again, in the order of the peers."""
    kept = [{"peer": "downpour", "round_ms": 1.0, "lines": 3}]
    rows = [{"peer": "downpour", "lines": 4}, {"peer": "ddp", "lines": 5}]
    assert compared.merged(kept, rows) == [
        rows[1],
        {"peer": "downpour", "round_ms": 1.0, "lines": 4},
    ]


def test_a_slow_worker_stands_still_three_quarters_of_the_time(
    compared: Any, running: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From the first batch on: its processor time is about a quarter of what has passed."""
    script = tmp_path / "peer.py"
    script.write_text(
        "import json, os, time\n"
        "def say(event, **facts):\n"
        "    print(json.dumps({'event': event, 'at': time.time(), **facts}), flush=True)\n"
        "say('worker', pid=os.getpid()); say('first')\n"
        "began, spent = time.time(), time.process_time()\n"
        "while time.process_time() - spent < 0.3: pass\n"
        "say('accuracy', accuracy=0.9, ratio=(time.time() - began) / 0.3)\n"
        "time.sleep(60)\n"
    )
    monkeypatch.setattr(sys.modules["peers.known"], "SCRIPTS", tmp_path)
    peer = compared.Peer(name="own", script="peer.py")
    done = running.run(peer, Path(sys.executable), running.Way(slow=True, until=0.9))
    assert done.events[-1]["ratio"] > 2.5
    assert done.ended - done.began < 30, "it is ended when it has come there"


@pytest.mark.parametrize(
    ("events", "status", "ended", "said"),
    [
        ([("epoch", 11.0), ("killed", 11.0), ("epoch", 14.5)], 0, 20.0, "next epoch after 3.5 s"),
        ([("epoch", 11.0), ("killed", 11.0)], 1, 12.0, "stops after 1.0 s and loses everything"),
        ([("epoch", 11.0), ("killed", 11.0)], -9, 900.0, "hangs"),
        ([("killed", 11.0), *(("epoch", 12.0) for _ in range(4))], -9, 20.0, "after 1.0 s"),
        ([("killed", 11.0), *(("epoch", 12.0) for _ in range(2))], -9, 20.0, "loses everything"),
        ([("epoch", 11.0)], 0, 12.0, "no worker is known"),
    ],
)
def test_the_consequences_of_a_death_are_told(
    parts: Any, events: list[tuple[str, float]], status: int, ended: float, said: str
) -> None:
    """By what is printed after it, and by how the run ends."""
    assert parts.after_kill(ran(*events, status=status, ended=ended)).endswith(said)


@pytest.mark.parametrize(
    ("pids", "said"), [((1, 2, 3), "with a new worker"), ((1, 2, 1), "with the remaining workers")]
)
def test_it_is_told_whether_a_dead_worker_is_replaced(
    parts: Any, pids: tuple[int, int, int], said: str
) -> None:
    """By a process that was not heard of before; one that is left may speak again."""
    run = ran(("epoch", 11.0), ("killed", 11.0), ("epoch", 14.5))
    at = zip((10.5, 10.6, 12.0), pids, strict=True)
    run.events.extend({"event": "worker", "at": time, "pid": pid} for time, pid in at)
    assert parts.after_kill(run) == f"continues {said}: next epoch after 3.5 s"


def test_every_process_of_a_run_is_counted_to_its_end(running: Any) -> None:
    """A system's own processes compute too; what is left of them is ended with the run."""
    burn = "import time\nwhile time.process_time() < 1: sum(range(100_000))"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    words = [sys.executable, "-c", script]
    with (
        subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process,
        running.watched(process, running.Way(weighed=True)) as took,
    ):
        process.wait()
    assert took.memory > 1e6
    assert 0.3 < sum(took.user.values()) < 3


def test_leftovers_of_an_ended_run_are_named(parts: Any) -> None:
    """A journal or a checkpoint is not lost with the process."""
    run = ran(("killed", 11.0), status=-9, ended=12.0)
    assert parts.after_kill(run, "keeps a journal") == "stops after 1.0 s and keeps a journal"


def test_the_worker_that_was_last_heard_of_is_killed(running: Any) -> None:
    """A driver may have made a network first, and is not one."""
    heard = [{"event": "worker", "pid": 5}, {"event": "worker", "pid": 7}, {"event": "first"}]
    assert running.last_worker(heard) == 7


def test_a_system_finds_its_environment_and_its_own_variables(compared: Any, running: Any) -> None:
    """Its programs and its Python are found first, as in an environment that is activated."""
    peer = compared.Peer(name="own", script="plain.py", environment={"OWN_TELEMETRY": "0"})
    variables = running.variables(peer, Path("/peers/own/bin/python"))
    assert variables["PATH"].startswith(f"/peers/own/bin{os.pathsep}")
    assert variables["OWN_TELEMETRY"] == "0"


def test_a_peer_whose_program_is_missing_is_a_line_that_says_where_it_is(
    compared: Any, tmp_path: Path
) -> None:
    """Nothing is made or fetched for it."""
    program = importlib.import_module("peers.known").Program(name="no-such-java", package="java17")
    peer = compared.Peer(name="none", script="plain.py", program=program)
    with pytest.raises(LookupError, match=r"^no-such-java is not on the PATH \(Debian: apt-get"):
        compared.environment_of(peer, tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_peer_has_its_script_and_exact_versions(compared: Any) -> None:
    """What is compared can be had again."""
    for peer in compared.PEERS:
        assert (compared.SCRIPTS / peer.script).is_file()
        assert all("==" in pin for pin in peer.requirements), peer.name
    assert compared.versions()["flwr"] == "1.41.0"


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_is_a_line_with_the_reason(
    compared: Any, parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The others are measured all the same."""
    monkeypatch.setattr(compared, "ENVIRONMENTS", tmp_path)
    peer = compared.Peer(name="none", script="plain.py", requirements=("./no-such-package",))
    *_, [row] = compared.measure([peer], parts.parts(64), 1)
    assert row["after_kill"].startswith("skipped: ./no-such-package: ")


def test_the_page_has_the_table_of_the_figures_that_were_kept(compared: Any) -> None:
    """Nobody types a figure."""
    docs = BENCHMARKS.parent / "docs"
    kept = json.loads((docs / "results" / "compared.json").read_text("utf-8"))
    page = (docs / "results" / "compared.md").read_text("utf-8")
    assert compared.markdown(kept["rows"], compared.COLUMNS) in page


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_peer_and_downpour_are_measured(
    compared: Any, parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both print every event that the figures are made of."""
    if "DOWNPOUR_DATA" not in os.environ:
        pytest.skip("DOWNPOUR_DATA names no folder with MNIST")
    monkeypatch.setattr(compared, "ENVIRONMENTS", tmp_path)
    peers = [peer for peer in compared.PEERS if peer.name in {"plain", "downpour"}]
    wanted = parts.parts(2000)
    del wanted["target"], wanted["large"]  # minutes each
    *_, rows = compared.measure(peers, wanted, 1)
    for row in rows:
        assert None not in row.values(), row
        assert row["peer"] == "plain" or row["after_kill"].startswith("continues")
