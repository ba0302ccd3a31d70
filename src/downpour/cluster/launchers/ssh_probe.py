"""Probes all hosts at once before anything starts: can we reach them, and do they fit?"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from downpour.base.errors import LaunchError
from downpour.base.version import VERSION
from downpour.cluster.launchers.hosts import Host
from downpour.cluster.launchers.ssh_script import (
    CANNOT_RUN,
    SEEN,
    SshOptions,
    command,
    last_words,
    look_script,
)
from downpour.host.text import one_line

LOOK_SECONDS = 60.0
_AT_ONCE = 32
_SSH_FAILED = 255


@dataclass(frozen=True, slots=True)
class Look:
    """The result of a look at a host: the obstacle (empty: none), and the findings.

    `caller` is the address of this machine as the host sees it. The host's clock is `ahead_seconds`
    ahead of this one, and `numerics` is its numeric class, if requested. About `load` of its
    `cores` are busy, and `memory_bytes` are available without swapping; 0: it did not tell.
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


def look_at(
    hosts: Sequence[Host], options: SshOptions, shared: Path, *, numerics: bool = False
) -> list[Look]:
    """Look at all hosts at once; returns a result for each, in order.

    A temporary file in the shared directory shows whether the hosts see the same directory.
    """
    # Import it here: help texts import this module, and must not wait for numpy.
    from downpour.files.store.publish import TEMPORARY_PREFIX

    probe = shared / f"{TEMPORARY_PREFIX}ssh-{uuid4().hex[:12]}"
    try:
        probe.touch()

        def look(host: Host) -> Look:
            return _look(host, options, probe, numerics=numerics)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(look, hosts))
    finally:
        probe.unlink(missing_ok=True)


def refuse_unfit(looks: Sequence[Look]) -> None:
    """Refuse hosts that cannot be used.

    Raises:
        LaunchError: the first obstacle, and how many more there are.
    """
    unfit = [look for look in looks if look.obstacle]
    if unfit:
        more = f" ({len(unfit) - 1} more hosts are unusable)" if len(unfit) > 1 else ""
        raise LaunchError(f"{unfit[0].host.name}: {unfit[0].obstacle}{more}", asked_wrongly=True)


def run_ssh(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run ssh to its end.

    Raises:
        LaunchError: it is not installed.
        TimeoutExpired: it took too long.
    """
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
        raise LaunchError(
            "ssh is not installed: install openssh-client", asked_wrongly=True
        ) from None


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
    seen = json.loads(found[-1].removeprefix(SEEN))
    # The host read its clock between `before` and `after`, so only a time outside of them shows a
    # difference.
    ahead = max(seen["clock"] - after, 0.0) or min(seen["clock"] - before, 0.0)
    obstacle = _obstacle(host, str(probe.parent), seen["version"], seen["folder"])
    return Look(
        host,
        obstacle,
        caller=seen["caller"],
        ahead_seconds=ahead,
        numerics=one_line(seen["numerics"]),
        version=one_line(seen["version"]),
        cores=seen["cores"],
        load=seen["load"],
        memory_bytes=seen["memory_bytes"],
    )


def _reason(host: Host, done: subprocess.CompletedProcess[str]) -> str:
    """Return why a host did not even answer."""
    words = one_line(last_words(done.stderr.splitlines())).removeprefix("ssh: ")
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
