"""Installs the wheel where nothing else is, and does there what a newcomer does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT_SECONDS = 600
INSTALLER = Path(__file__).parents[1] / "scripts" / "install.py"
PAGE = """downpour dashboard shared_dir --port 0 2>said & page=$!
until grep -q '^page at' said; do kill -0 $page || { cat said >&2; exit 1; }; sleep 0.2; done
kill $page"""
"""Serves a page until it says where it is; fails if it ends before that."""


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


def install_lowest(wheel: Path, pyproject: Path, into: Path) -> Path:
    """Make an environment with the wheel and the lowest version of each package that it declares.

    Packages of packages are as new as those allow. The environment can serve the live page.

    Returns:
        The environment's Python.
    """
    subprocess.run([sys.executable, "-m", "venv", into], check=True)
    python = into / "bin" / "python"
    lowest = ["--resolution=lowest-direct", f"--requirement={pyproject}", "--extra=dashboard"]
    subprocess.run([python, INSTALLER, *lowest], check=True)
    subprocess.run([python, INSTALLER, "--no-deps", wheel], check=True)
    return python


def first_steps(python: Path, folder: Path, *, page: bool = False) -> list[str]:
    """Run `--version`, `init`, and the commands that `init` prints, and return what each printed.

    Args:
        python: the environment's, with the `downpour` command beside it.
        folder: gets a `home` and a `project`, and is made if it is missing.

        page: look at the results on a live page, too.

    Raises:
        CalledProcessError: a command failed; what it said is on standard error.
    """
    home, project = folder / "home", folder / "project"
    home.mkdir(parents=True)
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
    return [version, advice, run(f"{advice}\n{PAGE}" if page else advice)]
