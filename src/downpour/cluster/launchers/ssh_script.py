"""Our side of ssh: scripts that look at hosts before anything starts, and that start workers.

Command lines and scripts are text that follows from values alone. Each worker is on a tether: a
guard beside it reads the connection's input, and tells the worker to leave when the input ends. So
the worker ends with the launcher, even if someone kills the launcher or the network fails.
"""

import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from uuid import uuid4

from downpour.base import VERSION
from downpour.base.errors import LaunchError, SpecError, last_line, one_line
from downpour.base.names import checked_calls
from downpour.base.options import option
from downpour.base.values import checked_labels, merged, small_number
from downpour.cluster.launchers import manager_host
from downpour.cluster.options import WorkerOptions
from downpour.host.paths import FILES, TOKEN, read_user_file

SLOTS_MAX = 1000
_HOST = re.compile(r"[A-Za-z0-9_@.:%\[\]][A-Za-z0-9_@.:%\[\]-]*")
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Host:
    """A machine on which `slots` workers may run, with their settings there.

    `python` is the interpreter that has downpour; `shared` is the shared directory's path there,
    empty if it is the same; `environment` holds further variables. Its workers have `labels`.
    """

    name: str
    slots: int = 1
    python: str = sys.executable
    shared: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    labels: tuple[str, ...] = ()


def read_hosts(path: str) -> tuple[Host, ...]:
    """Read a file of hosts."""
    try:
        text = read_user_file(path).decode()
    except OSError as error:
        accepted = f"must be a file with one host per line ({error.strerror})"
        raise SpecError("hosts", path, accepted) from None
    except UnicodeDecodeError:
        raise SpecError("hosts", path, "must be text, in UTF-8") from None
    return parse_hosts(text, path)


def parse_hosts(text: str, path: str) -> tuple[Host, ...]:
    """Return the hosts of a file's text; `path` is for errors."""
    hosts: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            if words := shlex.split(line, comments=True):
                host = _host(words)
                if host.name in hosts:
                    raise ValueError(f"{host.name} appears twice; give it slots instead")  # noqa: TRY301
                hosts[host.name] = host
        except (ValueError, SpecError) as error:
            raise SpecError("hosts", f"{path}, line {number}", str(error)) from None
    if not hosts:
        raise SpecError("hosts", path, "must name a host")
    return tuple(hosts.values())


def _host(words: list[str]) -> Host:
    name, *settings = words
    # A name that begins with a dash would be an option of ssh, and could run any command.
    if not _HOST.fullmatch(name):
        raise ValueError(f"{name!r} must be a host that ssh accepts")
    values: dict[str, str] = {}
    environment: dict[str, str] = {}
    labels: list[str] = []
    for word in settings:
        key, sign, value = word.partition("=")
        if not sign or key not in {"slots", "python", "shared", "env", "label"}:
            raise ValueError(f"{word!r} must be slots=, python=, shared=, env= or label=")
        if key == "env":
            match = _VARIABLE.fullmatch(value)
            if match is None:
                raise ValueError(f"env = {value!r} must be NAME=VALUE")
            environment[match[1]] = match[2]
        elif key == "label":
            labels.append(value)
        elif key in values:
            raise ValueError(f"{key}= appears twice")
        else:
            values[key] = value
    for key in ("python", "shared"):
        if key in values and not values[key].startswith("/"):
            raise ValueError(f"{key} = {values[key]!r} must be an absolute path")
    slots = _slots(values.pop("slots", "1"))
    variables = tuple(environment.items())
    return Host(name, slots, environment=variables, labels=checked_labels(labels), **values)


def _slots(text: str) -> int:
    slots = small_number(text)
    if slots is None or not 1 <= slots <= SLOTS_MAX:
        raise ValueError(f"slots = {text[:80]!r} must be a whole number from 1 to {SLOTS_MAX}")
    return slots


SEEN = "downpour-seen: "
ENDED = "downpour-ended: "
_ENDED = re.compile(rf"{ENDED}([0-9]{{1,3}})")
CANNOT_RUN = (126, 127)
"""A shell's exit status for a program that it cannot run, or does not find."""
_SETTINGS = {
    "BatchMode": "yes",  # never asks for a password
    "ConnectTimeout": "10",
    "ControlMaster": "no",  # a master in the background would hold the output open
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "3",
    "LogLevel": "ERROR",  # no banners
}
_WORKER = """\
exec 3<&0
{worker} </dev/null 3<&- 2>&1 &
worker=$!
{{ while read -r _; do :; done; kill -TERM $worker; }} <&3 >/dev/null 2>&1 &
guard=$!
wait $worker
status=$?
kill $guard 2>/dev/null
echo "{ended}$status"
exit $status
"""
# Besides the clock and the folder, it tells fields of `Look`.
_LOOK = """\
import json, os, sys, time
seen = {"clock": time.time(), "version": "", "numerics": "", "folder": "missing"}
ours = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))
seen |= {"cores": len(ours(0)), "load": os.getloadavg()[0], "memory_bytes": 0}
seen["cards"] = 0
seen["caller"] = os.environ.get("SSH_CONNECTION", "").split(" ")[0]
folder, probe, numerics = sys.argv[1:]
if os.path.isdir(folder):
    seen["folder"] = "same" if os.path.exists(os.path.join(folder, probe)) else "another"
    if not os.access(folder, os.W_OK):
        seen["folder"] = "read-only"
try:
    from downpour.base import VERSION
    import psutil
    seen["version"] = VERSION
    seen["memory_bytes"] = psutil.virtual_memory().available
    if numerics == "yes":
        from downpour.learning.numerics import numeric_class
        seen["numerics"] = str(numeric_class("cpu"))
        from downpour.learning.auto import devices_for
        seen["cards"] = devices_for("auto").cards("auto")
except ImportError:
    pass
print("\\ndownpour-seen: " + json.dumps(seen))
"""


@checked_calls
@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """The options for starting workers by ssh.

    `hosts` is a file of hosts, and `ssh_config` takes the place of `~/.ssh/config`. `manager_host`
    is this machine's address as the hosts reach it; if it is empty, the one that they see.

    Raises:
        SpecError: an option is invalid; names it and the accepted values.
    """

    hosts: str = option(
        "hosts.txt",
        "A file with one host per line: HOST [slots=N] [python=PATH] [shared=PATH] "
        "[env=NAME=VALUE] "
        "[label=KEY=VALUE] ...; HOST is a name that ssh accepts.",
        "FILE",
        path=True,
    )
    ssh_config: str = option(
        "", "The configuration file of ssh.", "FILE", default="~/.ssh/config", path=True
    )
    manager_host: str = manager_host()

    def __post_init__(self) -> None:
        """Check them."""
        value = self.manager_host
        if value.startswith("-") or not value.isprintable() or " " in value:
            raise SpecError("manager_host", value, "must be an address of this machine")


def command(host: Host, options: SshOptions, script: str) -> list[str]:
    """Return the command line that runs a script on a host, with any user's shell."""
    words = ["ssh", "-T", "-x", "-a"]
    words += ["-F", options.ssh_config] if options.ssh_config else []
    for name, value in _SETTINGS.items():
        words += ["-o", f"{name}={value}"]
    return [*words, "--", host.name, f"exec /bin/sh -c {shlex.quote(script)}"]


def worker_script(worker: WorkerOptions, host: Host, environment: Mapping[str, str]) -> str:
    """Return a script that starts a worker on a host, and reports at the end how it has ended.

    The token is the first line of input, because other users can read command lines.
    """
    worker = _there(worker, host)
    files = replace(worker.credentials, token="").to_environment()
    variables = {**environment, **files, **dict(host.environment)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if worker.credentials.token:
        lines.append(f"IFS= read -r {TOKEN} && export {TOKEN}")
    started = shlex.join([host.python, "-m", "downpour", *worker.arguments()])
    return "\n".join([*lines, _WORKER.format(worker=started, ended=ENDED)])


def look_script(host: Host, shared: str, probe: str, *, numerics: bool) -> str:
    """Return a script that looks at a host, and for the file `probe` in the directory."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in host.environment]
    words = [host.python, "-c", _LOOK, host.shared or shared, probe, "yes" if numerics else "no"]
    return "\n".join([*lines, f"exec {shlex.join(words)} </dev/null"])


def status_in(line: str) -> int | None:
    """Return how a worker has ended, if a line of a host's output says so."""
    match = _ENDED.fullmatch(line)
    return int(match[1]) if match else None


def _there(worker: WorkerOptions, host: Host) -> WorkerOptions:
    """Return the worker with the host's labels, and with paths as the host has them."""
    worker = replace(worker, labels=merged(worker.labels, host.labels))
    if not host.shared:
        return worker
    files = {name: getattr(worker.credentials, name) for name in FILES}
    for name, path in files.items():
        if path and PurePath(path).is_relative_to(worker.shared):
            inside = PurePath(path).relative_to(worker.shared)
            files[name] = str(PurePath(host.shared) / inside)
    return replace(worker, shared=host.shared, credentials=worker.credentials.with_files(files))


LOOK_SECONDS = 60.0
_AT_ONCE = 32
_SSH_FAILED = 255


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look at a host: the obstacle (empty: none), and the findings.

    `caller` is the address of this machine as the host sees it. The host's clock is `ahead_seconds`
    ahead of this one. About `load` of its `cores` are busy, and `memory_bytes` are available
    without swapping; 0: it did not tell. If requested, `numerics` is its numeric class, and `cards`
    are its accelerators.
    """

    host: Host
    obstacle: str = ""
    caller: str = ""
    ahead_seconds: float = 0.0
    numerics: str = ""
    version: str = ""
    cores: int = 0
    load: float = 0.0
    memory_bytes: int = 0
    cards: int = 0


def look_at(
    hosts: Sequence[Host], options: SshOptions, shared: Path, *, numerics: bool = False
) -> list[Look]:
    """Look at all hosts at once; returns a result for each, in order.

    A temporary file in the shared directory shows whether the hosts see the same directory.
    """
    from downpour.files.store.publish import TEMPORARY_PREFIX

    probe = shared / f"{TEMPORARY_PREFIX}ssh-{uuid4().hex[:12]}"
    try:
        probe.touch()
        look = partial(_look, options=options, probe=probe, numerics=numerics)
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(look, hosts))
    finally:
        probe.unlink(missing_ok=True)


def refuse_unfit(looks: Sequence[Look]) -> None:
    """Refuse hosts that cannot be used."""
    unfit = [look for look in looks if look.obstacle]
    if unfit:
        more = f" ({len(unfit) - 1} more hosts are unusable)" if len(unfit) > 1 else ""
        raise LaunchError(f"{unfit[0].host.name}: {unfit[0].obstacle}{more}", asked_wrongly=True)


def run_ssh(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run ssh to its end."""
    try:
        return subprocess.run(  # noqa: S603 - words of this package
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LOOK_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        reason = "ssh is not installed: install openssh-client"
        raise LaunchError(reason, asked_wrongly=True) from None


def _look(host: Host, options: SshOptions, probe: Path, *, numerics: bool) -> Look:
    script = look_script(host, str(probe.parent), probe.name, numerics=numerics)
    before = time.time()
    try:
        done = run_ssh(command(host, options, script))
    except subprocess.TimeoutExpired:
        return Look(host, f"it did not answer within {LOOK_SECONDS:.0f} s")
    after = time.time()
    found = [line for line in done.stdout.splitlines() if line.startswith(SEEN)]
    if not found:
        return Look(host, _reason(host, done))
    seen: dict[str, Any] = json.loads(found[-1].removeprefix(SEEN))
    clock, folder = seen.pop("clock"), seen.pop("folder")
    # The host read its clock between `before` and `after`: only a time outside is a difference.
    ahead = max(clock - after, 0.0) or min(clock - before, 0.0)
    obstacle = _obstacle(host, str(probe.parent), seen["version"], folder)
    seen |= {name: one_line(text) for name, text in seen.items() if isinstance(text, str)}
    return Look(host, obstacle, ahead_seconds=ahead, **seen)


def _reason(host: Host, done: subprocess.CompletedProcess[str]) -> str:
    """Return why a host did not even answer."""
    words = last_line(done.stderr).removeprefix("ssh: ")
    if done.returncode == _SSH_FAILED:
        hint = "; ssh must work without a password" if "Permission denied" in words else ""
        return f"ssh: {words or 'no connection'}{hint}"
    if done.returncode in CANNOT_RUN:
        return f"cannot run {host.python}; name a Python that has downpour with python="
    return f"it exited with status {done.returncode}: {words or 'no output'}"


def _obstacle(host: Host, shared: str, version: str, folder: str) -> str:
    """Return why a host that has answered cannot be used; empty: it can."""
    if not version:
        return f"{host.python} has no downpour; name a Python that has it with python="
    if version != VERSION:
        return f"it has downpour {version}, this machine {VERSION}; install the same on both"
    where = host.shared or shared
    return {
        "same": "",
        "missing": f"{where} is no folder there; mount it, or set shared= to its path",
        "another": f"{where} is another folder there; mount the same one, or set shared=",
        "read-only": f"{where} is not writable there",
    }[folder]
