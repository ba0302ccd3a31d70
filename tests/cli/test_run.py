"""`downpour run` as a user types it."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from downpour.core.spec import Spec
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("forked_clusters")

COMMAND = [sys.executable, "-m", "downpour", "run"]
PATIENCE_SECONDS = 60


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--inside", "processes=20", "--inside", "how=pipeline"],
            "inside.processes = 20: digits-cnn can be cut into 7 stages at most",
        ),
        (
            ["--inside", "processes=2", "--model", "resnet18"],
            "inside.processes = 2: must be 1: a step changes bn1.num_batches_tracked, as batch",
        ),
    ],
)
def test_a_network_that_cannot_be_shared_is_told_before_it_trains(
    refused: Callable[..., str], tmp_path: Path, words: list[str], line: str
) -> None:
    """One line; the check at submission finds it, and no model version is made."""
    few = ["--train-limit", "100", "--workers", "1", "--shared", tmp_path]
    assert refused("run", *few, *words).startswith(line)
    assert not list(tmp_path.glob("experiments/*/model*"))


@pytest.mark.slow
def test_a_file_and_options_make_a_run(downpour: Callable[..., Any], tmp_path: Path) -> None:
    """What the option says wins; the result is all there is on standard output."""
    spec = tmp_path / "spec.toml"
    spec.write_text('name = "brief"\nepochs = 9\nshards = 2\n')
    shared = "--shared", tmp_path / "shared"
    outcome = downpour("run", spec, "--epochs", "1", "--json", *shared)
    assert (outcome.status, outcome.err) == (0, "")
    result = json.loads(outcome.out)
    assert (result["name"], result["state"], len(result["epochs"])) == ("brief", "finished", 1)
    again = downpour("results", result["experiment"], "--json", *shared)
    assert json.loads(again.out) == result


@pytest.mark.slow
def test_a_run_that_a_notice_ends_names_it_and_says_how_to_go_on(
    downpour: Callable[..., Any], tmp_path: Path
) -> None:
    """Its workers leave, and its status is that of Ctrl-C."""
    notice, shared = tmp_path / "notice", tmp_path / "shared"

    def take_machine() -> None:
        until(lambda: [*shared.glob("experiments/*/model-?????[1-9]*")])
        notice.touch()

    Thread(target=take_machine).start()
    words = "--shared", shared, "--workers", "1", "--epochs", "100000", "--notice", notice
    ended = downpour("run", *words)
    assert (ended.status, ended.out) == (130, "")
    *_, resumable, why = ended.err.splitlines()
    assert re.search(r"epochs are done; `downpour run --resume \S+ ", resumable)
    assert why == f"downpour: the notice {notice} says that this machine will be taken"


@pytest.mark.slow
def test_a_run_says_which_spec_it_found_how_many_workers_it_takes_and_what_auto_became(
    downpour: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Above the spec, which can be saved as a file; the arrangement inside is measured before."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "found.toml").write_text("epochs = 1\n")
    said = downpour("run", "--inside", "how=auto").err
    before, text = said.split("# experiment-")
    assert "inside: one process" in before
    comments = [line for line in text.splitlines() if line.startswith("# ")]
    assert comments[0] == "# no FILE was named, so this is found.toml"
    assert re.match(r"# \d+ workers?, for .* cores?; --workers takes another number", comments[1])
    assert comments[2].startswith(
        "# auto: optimizer_state = keep, outer.optimizer = none, meet = 4 or more, "
    )


def _hear_signals() -> None:
    """Undo what a shell or nohup does to its jobs, of which this test may be part."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status", "line"),
    [
        (signal.SIGINT, 130, "downpour: stopped"),
        (signal.SIGTERM, 143, "downpour: stopped by SIGTERM"),
        (signal.SIGHUP, 129, "downpour: stopped by SIGHUP"),
    ],
)
def test_a_signal_stops_everything(
    tmp_path: Path, number: signal.Signals, status: int, line: str
) -> None:
    """One line after the spec, the status of the signal, and no process left behind."""
    words = ["--epochs", "10000", "--workers", "2", "--shared", str(tmp_path)]
    with subprocess.Popen(
        [*COMMAND, *words],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_hear_signals,  # noqa: PLW1509 - no threads here yet
    ) as process:
        own = psutil.Process(process.pid)
        while len(own.children(recursive=True)) < 4:  # fork server, manager, two workers
            assert process.poll() is None
        children = own.children(recursive=True)
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_SECONDS)
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_SECONDS)
    assert not alive
    *shown, last = said.splitlines()
    assert last == line
    # If training had begun, the spec stands there, and how to continue. Nothing else does.
    if shown and "--resume" in shown[-1]:
        assert re.fullmatch(rf"\d+ of 10000 .* --shared {tmp_path}` continues", shown.pop())
    assert not shown or Spec.from_toml("\n".join(shown)).epochs == 10_000
    assert process.returncode == status
