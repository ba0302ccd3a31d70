"""How a lab says in one line why it cannot do something, and gets the programs that it needs."""

import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import cache

from tests.cluster.packages import installed

PATIENCE_SECONDS = 60.0


class NoLab(Exception):
    """There can be no such lab here, in one line."""


def why_missing(program: str, package: str) -> str:
    """Say in a few words that a program is missing, which apt-get installs where it can."""
    if shutil.which(program) is not None or _installed(package):
        return ""
    return f"a lab needs {program}, and apt-get cannot install {package}"


@cache
def _installed(package: str) -> bool:
    """Try it once: without a network each attempt takes its time."""
    return installed(package)


def run(*words: object, text: str | None = None) -> str:
    """Run a program of the system's, which must succeed; returns what it says."""
    line = [str(word) for word in words]
    done = subprocess.run(line, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise NoLab(f"{said or f'status {done.returncode}'} ({shlex.join(line)[:200]})")
    return done.stdout


def until(what: str, look: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
    """Look again and again until it is so; NoLab when the time is over."""
    begun = time.monotonic()
    while not look():
        if time.monotonic() - begun > seconds:
            raise NoLab(f"after {seconds:.0f} s still not: {what}")
        time.sleep(0.01)
