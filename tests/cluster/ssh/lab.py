"""Three hosts for ssh: three daemons on loopback ports, with keys and settings of their own.

Everything of it lies in one temporary folder. Its processes, and those of its sessions, end with
it. The user's own keys, settings and agent are not used.
"""

import getpass
import os
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

PACKAGES = ("openssh-server", "openssh-client")
PROGRAMS = ("/usr/sbin/sshd", "ssh", "ssh-keygen")
HOSTS = ("n1", "n2", "n3")

_DAEMON = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/key-{host}
PidFile {folder}/{host}.pid
AuthorizedKeysFile {folder}/key-user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
MaxStartups 100:30:200
SetEnv DOWNPOUR_LAB={folder}
"""
_CLIENT = """
Host {host}
  Port {port}
"""
_CLIENTS = """
Host *
  HostName 127.0.0.1
  User {user}
  IdentityFile {folder}/key-user
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def why_not() -> str:
    """Say in a few words why there can be no lab here; empty where there can be one."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "a lab of ssh needs root on Linux"
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing and not installed(*PACKAGES):
        return f"a lab of ssh needs {missing[0]}, and apt-get cannot install it"
    return ""


class Lab:
    """The hosts; `config` is the file that ssh needs to reach them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="downpour-ssh-"))
        self.config = self.folder / "config"
        self._ports = dict(zip(HOSTS, free_ports(len(HOSTS)), strict=True))
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> None:
        """Make keys and settings, start a daemon for each host, and wait until all answer."""
        Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)
        for key in ("user", *HOSTS):
            words = [
                "ssh-keygen",
                "-q",
                "-t",
                "ed25519",
                "-N",
                "",
                "-f",
                f"{self.folder}/key-{key}",
            ]
            subprocess.run(words, check=True)
        known = [
            f"[127.0.0.1]:{port} {(self.folder / f'key-{host}.pub').read_text()}"
            for host, port in self._ports.items()
        ]
        (self.folder / "known_hosts").write_text("".join(known))
        clients = [_CLIENT.format(host=host, port=port) for host, port in self._ports.items()]
        values = {"user": getpass.getuser(), "folder": self.folder}
        self.config.write_text("".join(clients) + _CLIENTS.format(**values))
        for host in HOSTS:
            self.start(host)

    def start(self, host: str) -> None:
        """Start a host's daemon, and wait until it answers."""
        port = self._ports[host]
        settings = self.folder / f"sshd-{host}"
        settings.write_text(_DAEMON.format(port=port, folder=self.folder, host=host))
        with (self.folder / f"{host}.log").open("ab") as log:
            self._daemons[host] = subprocess.Popen(
                ["/usr/sbin/sshd", "-D", "-e", "-f", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        until(lambda: _answers(port))

    def lose(self, host: str) -> None:
        """Kill all that runs on a host: the daemons of its sessions, their shells and workers."""
        for process in psutil.Process(self._daemons[host].pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def restart(self) -> None:
        """Kill all hosts' daemons and those of their sessions, not what they run; start again."""
        for host, daemon in list(self._daemons.items()):
            sessions = psutil.Process(daemon.pid).children(recursive=True)
            daemon.kill()
            daemon.wait()
            for process in sessions:
                with suppress(psutil.NoSuchProcess):
                    if process.name().startswith("sshd"):
                        process.kill()
            self.start(host)

    def lose_worker(self, host: str) -> None:
        """Kill the workers of a host, and nothing else."""
        for process in psutil.Process(self._daemons[host].pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if "downpour" in process.cmdline():
                    process.kill()

    def running(self) -> list[psutil.Process]:
        """Return the workers, and the shells and guards beside them, that run on any host."""
        return [one for one in psutil.process_iter() if self._runs(one)]

    def down(self) -> None:
        """End every process of it, and remove its folder."""
        for process in self.running():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        for daemon in self._daemons.values():
            with suppress(ProcessLookupError):
                os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def hosts(self, *lines: str) -> str:
        """Write a file of hosts; return its path."""
        file = self.folder / "hosts.txt"
        file.write_text("\n".join(lines) + "\n")
        return str(file)

    def _runs(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return process.environ().get("DOWNPOUR_LAB") == str(self.folder)
        return False


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
