"""Installs the wheel where nothing else is, and does there what a newcomer does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT_SECONDS = 600


def install(wheel: Path, into: Path) -> Path:
    """Make an environment that holds the wheel and what it depends on, even without pip.

    Returns:
        The environment's Python.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", into], check=True)
    python = into / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", str(wheel)], check=True)
    # The bill of materials need not tell where the wheel lay on this machine.
    for note in into.rglob("direct_url.json"):
        note.unlink()
    return python


def first_steps(python: Path, folder: Path) -> list[str]:
    """Run `--version`, `init`, and the commands that `init` prints, and return what each printed.

    Args:
        python: the environment's, with the `downpour` command beside it.
        folder: an empty folder; it gets a `home` and a `project`.

    Raises:
        CalledProcessError: a command failed; what it said is on standard error.
    """
    home, project = folder / "home", folder / "project"
    home.mkdir()
    project.mkdir()
    environment = {"HOME": str(home), "PATH": f"{python.parent}:/usr/bin:/bin"}

    def run(line: str) -> str:
        done = subprocess.run(
            ["sh", "-ec", line],
            cwd=project,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=LIMIT_SECONDS,
        )
        return done.stdout

    version = run("downpour --version")
    advice = run("downpour init")
    return [version, advice, run(advice)]
