"""What hosts are asked for by ssh, without a host; several workers of this machine at once."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Event

import psutil
import pytest

from downpour.base import VERSION
from downpour.base.errors import LaunchError, SpecError, last_line
from downpour.base.names import Devices
from downpour.cluster.launchers import ssh
from downpour.cluster.launchers.ssh import (
    SshEngine,
    TetheredWorkers,
    address_seen,
    numbered,
    on_a_card,
)
from downpour.cluster.launchers.ssh_script import (
    Host,
    Look,
    command,
    look_at,
    look_script,
    parse_hosts,
    read_hosts,
    refuse_unfit,
    status_in,
    worker_script,
)
from downpour.cluster.manager.process import Manager, start_manager
from downpour.cluster.options import ManagerOptions, WorkerOptions
from downpour.host.paths import Credentials
from downpour.launchers import LaunchPlan, SshOptions
from downpour.learning import accelerators, auto
from downpour.network.rpc import ManagerClient
from downpour.network.rpc.messages import Status

HOST = Host("n1", python="/venv/bin/python", shared="/mnt/our lab", environment=(("A", "b c"),))
WORKER = WorkerOptions(
    shared="/lab",
    manager="10.0.0.1:4000",
    name="worker-1",
    credentials=Credentials(token="secret", token_file="/lab/token", tls_ca="/etc/ca.pem"),
)
GOLDEN = """\
export OMP_NUM_THREADS=2
export DOWNPOUR_TOKEN_FILE='/mnt/our lab/token'
export DOWNPOUR_TLS_CA=/etc/ca.pem
export A='b c'
IFS= read -r DOWNPOUR_TOKEN && export DOWNPOUR_TOKEN
exec 3<&0
/venv/bin/python -m downpour worker --manager 10.0.0.1:4000 --shared '/mnt/our lab' \
--name worker-1 </dev/null 3<&- 2>&1 &
worker=$!
{ while read -r _; do :; done; kill -TERM $worker; } <&3 >/dev/null 2>&1 &
guard=$!
wait $worker
status=$?
kill $guard 2>/dev/null
echo "downpour-ended: $status"
exit $status
"""


def test_a_worker_is_started_by_this_script() -> None:
    """Paths are the host's, and the token itself is nowhere in it."""
    assert worker_script(WORKER, HOST, {"OMP_NUM_THREADS": "2"}) == GOLDEN
    assert "secret" not in GOLDEN


def test_ssh_never_asks_and_never_lingers() -> None:
    """The command line says all that matters, whatever the user's configuration says."""
    words = command(HOST, SshOptions(ssh_config="/lab/config"), "echo 'a'")
    assert words[:6] == ["ssh", "-T", "-x", "-a", "-F", "/lab/config"]
    assert words[-3:] == ["--", "n1", """exec /bin/sh -c 'echo '"'"'a'"'"''"""]
    assert {"BatchMode=yes", "ControlMaster=no"} <= set(words)


def test_a_worker_runs_until_its_leash_ends_and_its_status_comes_last(tmp_path: Path) -> None:
    """The script, as a host's shell runs it: input held open, then ended."""
    python = tmp_path / "python"
    python.write_text(
        "#!/bin/sh\ntrap 'echo left; exit 7' TERM\necho $DOWNPOUR_TOKEN\nwhile :; do :; done\n"
    )
    python.chmod(0o755)
    words = ["/bin/sh", "-c", worker_script(WORKER, Host("n1", python=str(python)), {})]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("secret\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "secret\n"
        shell.stdin.close()
        assert shell.stdout.read() == "left\ndownpour-ended: 7\n"
    assert shell.returncode == 7


def test_the_workers_of_a_host_have_places_of_their_own(tmp_path: Path) -> None:
    """So they take its cards in turn, wherever the others are; a free place is taken again."""
    placed: list[str] = []

    def words(host: Host, script: str) -> list[str]:
        place = re.search(r"--place (\d+)", script)
        placed.append(f"{host.name}:{place[1] if place else 0}")
        return ["/bin/sh", "-c", "cat"]  # it ends with its input

    engine = TetheredWorkers([Host("n1", slots=2), Host("n2", slots=2)], words)
    for number in range(4):
        engine.start(replace(WORKER, name=f"worker-{number}"), {}, tmp_path / "log")
    assert placed == ["n1:0", "n2:0", "n1:1", "n2:1"]
    engine.stop("worker-0")
    while not engine.ended():
        pass
    engine.start(replace(WORKER, name="worker-0"), {}, tmp_path / "log")
    assert placed[-1] == "n1:0"
    engine.close()


def test_a_worker_that_hangs_ends_with_its_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ignores the end of its input, and holds the shell's output open; no process stays."""
    monkeypatch.setattr(ssh, "_CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(ssh, "_READ_SECONDS", 10.0)
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! > {pids}.new; mv {pids}.new {pids}; wait"
    engine = TetheredWorkers([Host("n1")], lambda *_: ["/bin/sh", "-c", script])
    engine.start(WORKER, {}, tmp_path / "log")
    while not pids.exists():
        pass
    engine.close()
    sleeping = int(pids.read_text())
    assert not psutil.pid_exists(sleeping) or psutil.Process(sleeping).status() == "zombie"


def test_a_host_tells_its_version_and_folder(tmp_path: Path) -> None:
    """The script, as a host's shell runs it; its last line is read, whatever was printed before."""
    (tmp_path / "probe").touch()
    script = look_script(Host("n1"), str(tmp_path), "probe", numerics=False)
    said = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    seen = json.loads(said.stdout.splitlines()[-1].partition(": ")[2])
    assert (seen["version"], seen["folder"]) == (VERSION, "same")


def test_a_shell_without_ssh_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the probe that lay in the shared directory meanwhile is gone."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LaunchError, match="install openssh-client"):
        look_at([HOST], SshOptions(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_first_obstacle_is_told_and_how_many_more_there_are() -> None:
    """The user can correct it, so the exit status is 2."""
    refuse_unfit([Look(HOST)])
    with pytest.raises(LaunchError, match=r"^n1: no \(1 more hosts are unusable\)$") as told:
        refuse_unfit([Look(HOST, "no"), Look(HOST, "nor that")])
    assert told.value.exit_status == 2


def test_hosts_are_read_a_line_each() -> None:
    """Comments and empty lines are none; quotes keep spaces."""
    line = "anna@n2 slots=2 python=/p shared=/s env=A=1 'env=B=x y' label=gpu=a40 label=site=b"
    text = f"# ours\n\nn1\n{line} # loud\n"
    variables, labels = (("A", "1"), ("B", "x y")), ("gpu=a40", "site=b")
    second = Host("anna@n2", 2, "/p", "/s", variables, labels)
    assert parse_hosts(text, "hosts.txt") == (Host("n1"), second)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "hosts.txt': must name a host"),
        ("n1\n-oProxyCommand=x", "line 2': '-oProxyCommand=x' must be a host"),
        ("n1 slots=two", "line 1': slots = 'two' must be a whole number"),
        ("n1 slots=0", "slots = '0' must be a whole number from 1"),
        ("n1 gpus=2", "'gpus=2' must be slots=, python=, shared=, env= or label="),
        ("n1 label=gpu", "label = 'gpu': must be KEY=VALUE"),
        ("n1 python=venv/python", "python = 'venv/python' must be an absolute path"),
        ("n1 shared=", "shared = '' must be an absolute path"),
        ("n1 env=A", "env = 'A' must be NAME=VALUE"),
        ("n1 slots=1 slots=2", "slots= appears twice"),
        ("n1\nn1", "line 2': n1 appears twice"),
        ("n1 'env=A", "No closing quotation"),
    ],
)
def test_a_line_that_cannot_be_meant_is_told_with_its_number(text: str, reason: str) -> None:
    """The error names the file, the line and what is accepted."""
    with pytest.raises(SpecError) as told:
        parse_hosts(text, "hosts.txt")
    assert reason in str(told.value)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    """Neither a missing one nor a picture is a file of hosts."""
    with pytest.raises(SpecError, match="No such file"):
        read_hosts(str(tmp_path / "none"))
    (tmp_path / "picture").write_bytes(b"\xff\xd8")
    with pytest.raises(SpecError, match="UTF-8"):
        read_hosts(str(tmp_path / "picture"))


def test_more_workers_than_slots_are_refused(tmp_path: Path) -> None:
    """And a plan spreads its workers over the hosts before any has a second one."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("n1 slots=2\nn2\n")
    engine = SshEngine(SshOptions(hosts=str(hosts)))
    manager = ManagerOptions(shared=str(tmp_path))
    with pytest.raises(LaunchError, match=r"4 workers, but .*hosts.txt has slots for 3"):
        engine.check(LaunchPlan(manager, 4))
    lines = engine.planned(LaunchPlan(manager, 3)).splitlines()
    placed = [line.split()[-2] for line in lines if line.startswith("# ssh")]
    assert placed == ["n1", "n2", "n1"]


def test_hosts_without_the_needed_labels_have_no_slots(tmp_path: Path) -> None:
    """The error says what the others lack; a label of all workers counts everywhere."""
    hosts = tmp_path / "hosts.txt"
    hosts.write_text("n1 slots=5\nn2 label=gpu=a40\n")
    manager = ManagerOptions(shared=str(tmp_path))
    needy = LaunchPlan(manager, 2, labels=("site=b",), needs=("site", "gpu"))
    with pytest.raises(LaunchError, match=r"slots for 1 on hosts with site and gpu$") as told:
        SshEngine(SshOptions(hosts=str(hosts))).check(needy)
    assert told.value.exit_status == 2
    plan = LaunchPlan(manager, 2, labels=("site=b",), needs=("site=b",))
    planned = SshEngine(SshOptions(hosts=str(hosts))).planned(plan)
    assert [f"-- {host} /bin/sh" in planned for host in ("n1", "n2")] == [True, True]


def test_the_address_that_other_machines_see_is_taken_and_no_jump_hosts() -> None:
    """A host behind a jump host sees that one's address, where no manager listens."""
    assert address_seen(["192.0.2.7", "127.0.0.1"]) == "127.0.0.1"
    assert address_seen(["127.0.0.1", "127.0.0.9"]) == "127.0.0.9"
    assert address_seen(["", "192.0.2.7"]) not in {"", "192.0.2.7"}


def test_output_of_a_shell_or_banner_is_not_taken_for_a_status() -> None:
    """Only a line of ours says how a worker has ended."""
    assert status_in("downpour-ended: 75") == 75
    assert status_in("welcome; downpour-ended: 75") is None
    assert last_line("a\ndownpour: no such folder\n \n") == "no such folder"


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
    monkeypatch.setattr(auto, "_may_have_any", lambda *_: True)
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
    """Wait until `number` workers have registered."""
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
    command = [sys.executable, "-m", "downpour", *words, str(tmp_path)]
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
    command = [sys.executable, "-m", "downpour", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stderr
