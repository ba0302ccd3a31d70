"""A manager and workers as services: the units' text, and what is asked of systemd."""

import os
import re
from pathlib import Path

import pytest

from downpour.base.errors import LaunchError, SpecError
from downpour.cluster.launchers import supervisor
from downpour.cluster.options import ManagerOptions
from downpour.host.paths import Credentials
from downpour.launchers import LaunchPlan
from tests.conftest import Allow

ENDING = """\
Restart=on-failure
RestartPreventExitStatus=2
RestartSec=5
KillMode=mixed
TimeoutStopSec=60

[Install]
WantedBy=default.target
"""
MANAGER = (
    """\
[Unit]
Description=Downpour manager of /our lab/100%%
StartLimitIntervalSec=0

[Service]
Environment=PYTHONHASHSEED=0
Environment="DOWNPOUR_TOKEN_FILE=/our lab/100%%/token"
ExecStart=PYTHON -m downpour manager --shared "/our lab/100%%" --host 10.0.0.1 --port 4000 \
--data-dir "/d/\\"$$x\\\\"
"""
    + ENDING
)
WORKER = (
    """\
[Unit]
Description=Downpour worker of /our lab/100%%
StartLimitIntervalSec=0

[Service]
Environment=PYTHONHASHSEED=0
Environment=OMP_NUM_THREADS=2
Environment=MKL_NUM_THREADS=2
Environment=OMP_WAIT_POLICY=PASSIVE
Environment=GOMP_SPINCOUNT=1000
Environment="DOWNPOUR_TOKEN_FILE=/our lab/100%%/token"
ExecStart=PYTHON -m downpour worker --shared "/our lab/100%%" --name %H-%i \
--accept-code --place %i
"""
    + ENDING
)


@pytest.fixture(autouse=True)
def alone(allowing: Allow) -> None:
    """Units hold what the environment allows; here it allows nothing."""
    del allowing


def test_units_are_this_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Systemd's own signs in paths are escaped; a worker is named after its machine and slot."""
    monkeypatch.setattr("sys.executable", "PYTHON")
    manager = ManagerOptions(
        shared="/our lab/100%", host="10.0.0.1", port=4000, data_dir='/d/"$x\\'
    )
    texts = supervisor.units(LaunchPlan(manager, 2, threads=2))
    assert list(texts.values()) == [MANAGER, WORKER]
    names = [re.sub("[0-9a-f]{6}", "SUM", name) for name in texts]
    assert names == [
        "downpour-our-lab-100-SUM-manager.service",
        "downpour-our-lab-100-SUM-worker@.service",
    ]


def test_workers_alone_find_the_manager_through_the_directory() -> None:
    """And on loopback no token is needed."""
    texts = supervisor.units(LaunchPlan(ManagerOptions(shared="/lab"), 2), with_manager=False)
    ((name, text),) = texts.items()
    assert name.endswith("-worker@.service")
    assert "--manager" not in text
    assert "TOKEN" not in text


def test_a_token_itself_is_never_in_a_unit() -> None:
    """Others may read it there; a file is named instead."""
    secret = ManagerOptions(shared="/lab", credentials=Credentials(token="secret"))
    with pytest.raises(SpecError, match="needs --token-file"):
        supervisor.units(LaunchPlan(secret, 1))


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A systemctl that writes down what it is asked; it refuses if there is a file `refuse`."""
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n'
        f"[ ! -e {tmp_path}/refuse ] || {{ echo 'Failed to connect' >&2; exit 1; }}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(supervisor, "RUNNING", tmp_path)
    return tmp_path / "asked"


def test_units_are_written_enabled_and_removed_again(asked: Path, tmp_path: Path) -> None:
    """An instance of the template for each slot; workers stop before their manager."""
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path / "lab"), host="10.0.0.1"), 2)
    texts = supervisor.units(plan)
    manager, worker = texts
    slots = [worker.replace("@", "@1"), worker.replace("@", "@2")]
    assert supervisor.enable(plan, texts) == [manager, *slots]
    folder = tmp_path / "config" / "systemd" / "user"
    assert {path.name: path.read_text() for path in folder.iterdir()} == texts
    assert (tmp_path / "lab" / "token").stat().st_mode & 0o777 == 0o600
    assert asked.read_text().splitlines() == [
        "--user daemon-reload",
        f"--user enable --now {manager} {' '.join(slots)}",
    ]
    asked.unlink()
    all_slots = worker.replace("@", "@*")
    assert supervisor.disable(plan.manager.shared) == [all_slots, manager]
    assert not list(folder.iterdir())
    assert asked.read_text().splitlines() == [
        f"--user stop {all_slots} {manager}",
        f"--user disable {manager} {worker}",
        "--user daemon-reload",
    ]
    assert supervisor.disable(plan.manager.shared) == []


def test_a_refusal_of_systemd_is_quoted(asked: Path, tmp_path: Path) -> None:
    """In one line, with exit status 2."""
    (tmp_path / "refuse").touch()
    plan = LaunchPlan(ManagerOptions(shared=str(tmp_path / "lab")), 1)
    with pytest.raises(LaunchError, match="daemon-reload: Failed to connect") as told:
        supervisor.enable(plan, supervisor.units(plan))
    assert told.value.exit_status == 2
    assert asked.exists()
