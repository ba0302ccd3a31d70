"""A real Slurm with three virtual nodes: a controller and three daemons, all on this machine.

Everything of it lies in one temporary folder. Its processes, and those of its jobs, end with it.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import psutil

from tests.cluster.packages import installed
from tests.waiting import free_ports, until

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "squeue", "scancel", "munged")
NODES = ("n1", "n2", "n3")
CORES = 4
"""Of a node; the three share the machine's, so that nothing is said of speed here."""

_SETTINGS = """
ClusterName=virt
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
CryptoType=crypto/munge
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
KillWait=5
JobRequeue=1
MinJobAge=300
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,batch_sched_delay=0,bf_interval=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
{nodes}
PartitionName=all Nodes={names} Default=YES MaxTime=60 State=UP
PartitionName=closed Nodes={names} AllowGroups=nobody_is_in_this State=UP
"""
# AuthInfo: a requeued job waits for the life of a credential, which is two minutes by default.


def why_not() -> str:
    """Say in a few words why there can be no lab here; empty where there can be one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a Slurm lab needs root on Linux"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing and not installed(*PACKAGES):
        return f"a Slurm lab needs {missing[0]}, and apt-get cannot install it"
    return ""


class Lab:
    """The cluster; `environment` is what its commands need."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="downpour-slurm-"))
        self.folder.chmod(0o755)  # munged runs as another user
        self.environment = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        """Start everything, and wait until all nodes are idle."""
        for name in ("munge", "log", "state", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        self._start_munge()
        (self.folder / "slurm.conf").write_text(self._settings())
        self._daemon("slurmctld", "-D", "-c")
        for node in NODES:
            self.start_node(node)
        until(lambda: self.run("sinfo", "-h", "-o", "%D %t") == "3 idle")

    def down(self) -> None:
        """End every process that was told its configuration, those of jobs too; remove its folder.

        Jobs and their daemons are in sessions of their own, and stay when a node's daemon ends.
        """
        with suppress(AssertionError, OSError, subprocess.TimeoutExpired):
            self.run("scancel", f"--user={os.geteuid()}")
            until(lambda: not self.tasks(), 20)
        told = [
            one
            for one in psutil.process_iter(["environ"])
            if (one.info["environ"] or {}).get("SLURM_CONF") == self.environment["SLURM_CONF"]
        ]
        # A step's daemon writes its title over its environment, so it is known by its child.
        steps = [step for one in told if (step := _step_of(one)) is not None]
        for name in list(self._daemons):
            self._kill(name)
        for process in [*steps, *told]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def restart_controller(self) -> None:
        """Kill the controller, and start one that goes on with its jobs."""
        self._kill("slurmctld")
        self._daemon("slurmctld", "-D")
        until(lambda: self.run("scontrol", "ping", status=None).endswith("UP"))

    def start_node(self, node: str) -> None:
        self._daemon("slurmd", "-D", "-N", node, name=node)

    def lose_node(self, node: str) -> None:
        """Pull a node's plug: its daemon, the daemons of its steps, and all that they run."""
        steps = [
            one
            for one in psutil.process_iter(["name"])
            if one.info["name"] == "slurmstepd" and _runs_on(one, node)
        ]
        families = [*steps, *(child for one in steps for child in one.children(recursive=True))]
        self._kill(node)
        for process in families:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def run(self, *words: str, status: int | None = 0) -> str:
        """Run a command of Slurm; return what it says."""
        environment = {**os.environ, **self.environment}
        done = subprocess.run(
            words, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert status is None or done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
        return (done.stdout + done.stderr).strip()

    def tasks(self, *options: str) -> list[tuple[str, str, str]]:
        """Return the tasks that have not ended: array and index, state, node."""
        said = self.run("squeue", "-h", "-r", "-o", "%i|%T|%N", *options)
        lines = [line.split("|") for line in said.splitlines()]
        return [(task, state, node) for task, state, node in lines]

    def restarts(self, task: str) -> int:
        """Return how often Slurm has requeued a task."""
        said = self.run("squeue", "-h", "-r", "--states=all", "-j", task, "--Format=RestartCnt")
        return int(said)

    def _settings(self) -> str:
        host, free = socket.gethostname(), free_ports(1 + len(NODES))
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CORES} "
            f"RealMemory=4000 Features={node},all"
            for node, port in zip(NODES, free[1:], strict=True)
        )
        values = {"host": host, "user": getpass.getuser(), "port": free[0], "nodes": nodes}
        return _SETTINGS.format(folder=self.folder, names=",".join(NODES), **values)

    def _start_munge(self) -> None:
        """Start a daemon of munge with a key of its own, as the user that runs the lab."""
        folder = self.folder / "munge"
        (folder / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "key").chmod(0o400)
        files = {"key-file": "key", "pid-file": "pid", "seed-file": "seed", "log-file": "log"}
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", "--force", f"--socket={folder}/socket", *options)
        until((folder / "socket").exists)

    def _daemon(self, program: str, *options: str, name: str = "") -> None:
        path = shutil.which(program)
        assert path is not None
        with (self.folder / "log" / f"{name or program}.out").open("ab") as log:
            self._daemons[name or program] = subprocess.Popen(
                [path, *options],
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _kill(self, name: str) -> None:
        process = self._daemons.pop(name, None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _step_of(process: psutil.Process) -> psutil.Process | None:
    """Return the daemon of the step that a process is the first of."""
    with suppress(psutil.NoSuchProcess):
        parent = process.parent()
        if parent is not None and parent.name() == "slurmstepd":
            return parent
    return None


def _runs_on(step: psutil.Process, node: str) -> bool:
    """Whether a step's daemon is a node's: what it runs is told its node."""
    for child in step.children(recursive=True):
        with suppress(psutil.Error):
            if child.environ().get("SLURMD_NODENAME") == node:
                return True
    return False
