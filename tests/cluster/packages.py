"""Debian's packages that a lab needs, installed where this machine lacks them."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

_POLICY = Path("/usr/sbin/policy-rc.d")


@contextmanager
def alone(purpose: str = "packages") -> Iterator[None]:
    """Let one process at a time do this: apt-get fails where another one installs."""
    with FileLock(Path(tempfile.gettempdir(), f"downpour-tests-{os.geteuid()}-{purpose}.lock")):
        yield


def installed(*packages: str) -> bool:
    """Install packages, without daemons, as root with apt-get; return whether that went well."""
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return False
    with alone():
        made = not _POLICY.exists()
        if made:
            _POLICY.write_text("#!/bin/sh\nexit 101\n")
            _POLICY.chmod(0o755)
        try:
            install = ["apt-get", "install", "-qqy", "--no-install-recommends", *packages]
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            for command in (["apt-get", "update", "-qq"], install):
                done = subprocess.run(command, env=environment, capture_output=True, check=False)
            return done.returncode == 0
        finally:
            if made:
                _POLICY.unlink()
