"""`make release`: builds the archives of the last commit, tries the wheel, and lists its licenses.

Afterwards dist/ holds the source distribution, the wheel, the licenses of what the wheel depends
on, and a bill of materials (CycloneDX). Nothing is uploaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from archives import build
from contents import check_sdist, check_wheel
from licenses import BUNDLED, add_licenses, installed_in, license_table
from trial import first_steps, install, install_lowest

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def git(*words: str) -> bytes:
    """Return what Git prints about this repository."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


@contextmanager
def step(what: str) -> Iterator[None]:
    """Say how long a step took, once it has succeeded."""
    began = time.monotonic()
    yield
    print(f"{time.monotonic() - began:6.1f} s  {what}", flush=True)


def build_twice(commit: str, folder: Path) -> list[Path]:
    """Build a commit in two folders, and return the archives of the first.

    Raises:
        SystemExit: the two builds differ.
    """
    epoch_seconds = int(git("log", "-1", "--format=%ct", commit))
    made = []
    for name in ("first", "second"):
        source = folder / name / "source"
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit))) as archive:
            archive.extractall(source, filter="data")
        made.append(build(source, folder / name / "dist", epoch_seconds))
    for first, second in zip(*made, strict=True):
        if first.read_bytes() != second.read_bytes():
            sys.exit(f"two builds of {first.name} differ, so the build is not reproducible")
    return list(made[0])


def check_contents(commit: str, sdist: Path, wheel: Path) -> None:
    """Refuse archives that hold less or more than the package.

    Raises:
        SystemExit: with a line for each file.
    """
    tracked = set(git("ls-tree", "-r", "--name-only", commit).decode().splitlines())
    wrong = [f"{sdist.name} {line}" for line in check_sdist(sdist, tracked)]
    wrong += [f"{wheel.name} {line}" for line in check_wheel(wheel, tracked)]
    if wrong:
        sys.exit("\n".join(wrong))


def describe(python: Path, name: str, version: str) -> None:
    """Write licenses and bill of materials of the environment that the wheel was tried in."""
    (DIST / f"{name}.licenses.md").write_text(license_table(installed_in(python.parents[1])))
    bill = DIST / f"{name}.cdx.json"
    line = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
    line += ["--output-format", "JSON", "--output-file", str(bill), "--mc-type", "library"]
    subprocess.run([*line, "--pyproject", str(ROOT / "pyproject.toml"), str(python)], check=True)
    # It reads Downpour's name from pyproject.toml, where the version is dynamic.
    told = json.loads(bill.read_text())
    told["metadata"]["component"]["version"] = version
    told["components"].append(BUNDLED)
    add_licenses(told["components"], installed_in(python.parents[1]))
    bill.write_text(json.dumps(told, indent=2) + "\n")


def main() -> None:
    """Do every step; the first that fails ends it."""
    if git("status", "--porcelain"):
        print("Some changes are not committed, and are not in the release.", file=sys.stderr)
    began, commit = time.monotonic(), git("rev-parse", "HEAD").decode().strip()
    with tempfile.TemporaryDirectory(prefix="downpour-release-") as made:
        folder = Path(made)
        with step("built twice, to the same bytes"):
            sdist, wheel = build_twice(commit, folder)
        with step("the archives hold the package and nothing else"):
            check_contents(commit, sdist, wheel)
        with step("installed into a fresh environment"):
            python = install(wheel, folder / "fresh")
        with step("ran `downpour --version`, `init`, and the commands that `init` prints"):
            first_steps(python, folder)
        with step("did the same with the lowest versions that it declares, and served a page"):
            pyproject = folder / "first" / "source" / "pyproject.toml"
            lowest = install_lowest(wheel, pyproject, folder / "lowest")
            first_steps(lowest, folder / "with-lowest", page=True)
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir()
        with step("wrote licenses and bill of materials"):
            name, version = wheel.name.split("-")[:2]
            describe(python, f"{name}-{version}", version)
        for archive in (sdist, wheel):
            shutil.copy(archive, DIST)
    for path in sorted(DIST.iterdir()):
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path.relative_to(ROOT))
    print(f"{time.monotonic() - began:.0f} s in all")


if __name__ == "__main__":
    main()
