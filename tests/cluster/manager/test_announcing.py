"""What a real manager tells the command of `--on-event`."""

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from downpour.base.states import ExperimentEvent
from downpour.cluster.manager.observations import LOOK_SECONDS, ManagerAnnouncer
from downpour.cluster.manager.status import WAITING_SECONDS
from downpour.cluster.options import ManagerOptions
from downpour.host.child import checked_command
from downpour.network.rpc.messages import Status
from tests.cluster.manager.conftest import options_of


@pytest.fixture
def options(tmp_path: Path) -> ManagerOptions:
    """A manager whose command writes what it is told into a pipe."""
    os.mkfifo(tmp_path / "told")
    code = f"import sys; open({str(tmp_path / 'told')!r}, 'w').write(sys.stdin.read())"
    command = checked_command(shlex.join([sys.executable, "-c", code]))
    return replace(options_of(tmp_path), on_event=command)


def told(folder: Path) -> tuple[str, str, str]:
    """Wait for the next event, and return its kind, experiment and reason."""
    event = json.loads((folder / "told").read_text())
    return event["kind"], event["experiment"], event["reason"]


def test_the_end_of_each_experiment_is_told_once(cluster: Any, tmp_path: Path) -> None:
    """With its name and the reason."""
    first, second = cluster.submit(epochs=1), cluster.submit(epochs=1, seed=2)
    for experiment in (first, first, second):
        cluster.client.cancel(experiment)
    for experiment in (first, second):
        assert told(tmp_path) == ("cancelled", experiment, "cancelled by request")


def test_a_manager_looks_now_and_then_whether_something_waits() -> None:
    """The driver's thread makes each status, so it is asked for seldom."""
    taken: list[ExperimentEvent] = []
    now, asked = [0.0], [0]
    announcer = ManagerAnnouncer(taken.append, lambda: now[0])

    def status() -> Status:
        asked[0] += 1
        return Status(change=1)

    for second in range(int(WAITING_SECONDS + 2 * LOOK_SECONDS)):
        now[0] = float(second)
        announcer.look(status)
    announcer.close()
    assert asked[0] <= second / LOOK_SECONDS
    assert [event.kind for event in taken] == ["waiting"]


def test_a_command_line_starts_the_same_manager(options: ManagerOptions) -> None:
    """As a supervisor and systemd do."""
    words = options.arguments()
    assert words[words.index("--on-event") + 1] == options.on_event
