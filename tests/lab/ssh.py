"""The way from host to host: a daemon for ssh on each, and a user who may log in everywhere.

Keys and settings lie in the hosts' home folders in the lab's folder. The keys, settings and agent
of whoever runs the lab are not used.
"""

from collections.abc import Iterable
from pathlib import Path

from tests.lab.failing import run, until, why_missing
from tests.lab.hosts import LabHost

_DAEMON = """
HostKey {lab}/key-host
PidFile none
AuthorizedKeysFile {lab}/key-user.pub
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
MaxStartups 100:30:200
ClientAliveInterval 15
Subsystem sftp internal-sftp
"""
_CLIENT = """
Host *
  IdentityFile {lab}/key-user
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {lab}/known_hosts
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""
_SSHD = "/usr/sbin/sshd"


def why_no_ssh() -> str:
    """Say in a few words what is missing; empty if nothing is."""
    return why_missing("ssh", "openssh-client") or why_missing(_SSHD, "openssh-server")


def write_keys(lab: Path) -> None:
    """Make the keys of a lab, and the settings of its daemons."""
    Path("/run/sshd").mkdir(mode=0o755, parents=True, exist_ok=True)  # sshd wants it
    for key in ("user", "host"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key, "-f", lab / f"key-{key}")
    (lab / "known_hosts").write_text(f"* {(lab / 'key-host.pub').read_text()}")
    (lab / "sshd_config").write_text(_DAEMON.format(lab=lab))


def start_sshd(lab: Path, host: LabHost) -> None:
    """Let a host be reached by ssh, and its user reach all others."""
    settings = host.home / ".ssh"
    settings.mkdir(mode=0o700, exist_ok=True)
    (settings / "config").write_text(_CLIENT.format(lab=lab))
    log = host.home / "sshd.log"
    host.run(_SSHD, "-f", lab / "sshd_config", "-E", log)  # it goes on in the background
    until(f"{host.name} listens for ssh", lambda: "listening" in log.read_text())


def hosts_file(lab: Path, hosts: Iterable[LabHost]) -> Path:
    """Write the file for `downpour run --on ssh --hosts`, with a label of each host's name."""
    lines = []
    for host in hosts:
        variables = [f" env={name}={value}" for name, value in host.environment.items()]
        lines.append(f"{host.name} label=host={host.name}{''.join(variables)}\n")
    file = lab / "hosts.txt"
    file.write_text("".join(lines))
    return file
