"""Several workers of this machine by one command."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from downpour.base.names import Devices
from downpour.cluster.launchers.ssh import numbered, on_a_card
from downpour.cluster.manager.process import Manager, start_manager
from downpour.cluster.options import ManagerOptions, WorkerOptions
from downpour.learning import accelerators, devices
from downpour.network.rpc import ManagerClient
from downpour.network.rpc.messages import Status


def test_names_ports_and_files_count_up() -> None:
    """Any free port stays any free port."""
    one = WorkerOptions(shared="s", name="w", port=7000, metrics_port=0, ready_file="/run/ready")
    two = numbered(one, 2)
    assert (two.name, two.port, two.metrics_port) == ("w-2", 7001, 0)
    assert two.ready_file == "/run/ready-2"
    assert numbered(WorkerOptions(shared="s", name="w"), 3).metrics_port is None


def test_those_of_one_machine_take_its_cards_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker's process is told of its own."""
    monkeypatch.setattr(accelerators, "devices_here", lambda: Devices({"cuda": 2}))
    monkeypatch.setattr(devices, "_may_have_any", lambda *_: True)
    asked = WorkerOptions(shared="s", name="w", device="cuda")
    for one in (asked, WorkerOptions(shared="s", name="w")):  # which asks for auto
        cards = [on_a_card(numbered(one, number)).device for number in (1, 2, 3)]
        assert cards == ["cuda:0", "cuda:1", "cuda:0"]
    assert on_a_card(numbered(replace(asked, device="cpu"), 2)).device == "cpu"


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """A manager for workers to join."""
    manager = start_manager(ManagerOptions(shared=str(tmp_path), port=0))
    yield manager
    manager.close()


def joined(client: ManagerClient, number: int) -> Status:
    """Wait until so many workers are there."""
    for _ in range(600):
        status = client.status()
        if len(status.workers) == number:
            return status
        Event().wait(0.1)
    raise AssertionError(status)


@pytest.mark.slow
def test_all_join_and_all_leave_at_one_signal(manager: Manager, tmp_path: Path) -> None:
    """The manager shows their labels and processes; the command ends well when all have left."""
    words = ["worker", "--count", "2", "--name", "w", "--label", "rack=3", "--shared"]
    command = [sys.executable, "-m", "downpour.cli", *words, str(tmp_path)]
    with (
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as several,
        ManagerClient(manager.address) as client,
    ):
        try:
            status = joined(client, 2)
            assert {worker.worker for worker in status.workers} == {"w-1", "w-2"}
            assert {worker.labels for worker in status.workers} == {("rack=3",)}
            assert len({worker.pid for worker in status.workers}) == 2
        finally:
            several.terminate()
        assert several.stderr is not None
        said = several.stderr.read()
        assert several.wait() == 0, said
        joined(client, 0)
    assert said.count("worker at 127.0.0.1") == 2
    assert " w-1: worker at" in said


@pytest.mark.slow
def test_the_status_of_one_that_fails_is_the_commands(tmp_path: Path) -> None:
    """Here no manager comes, so an engine may try again."""
    words = ["worker", "--count", "2", "--connect-seconds", "0", "--shared", str(tmp_path)]
    command = [sys.executable, "-m", "downpour.cli", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stderr
