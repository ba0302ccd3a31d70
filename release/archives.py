"""Builds the source distribution and the wheel, to the same bytes each time."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tarfile
from pathlib import Path


def build(source: Path, into: Path, epoch_seconds: int) -> tuple[Path, Path]:
    """Build both from a folder of sources, and return the source distribution and the wheel.

    The wheel is made from the source distribution, as an installer would make it.

    Args:
        source: the project; nothing is written there.
        into: a folder that holds both afterwards, and is made.
        epoch_seconds: the time, since 1970, that all files in both carry.

    Raises:
        CalledProcessError: the build failed; what it said is on standard error.
    """
    into.mkdir(parents=True)
    _run_build("--sdist", source, into, epoch_seconds)
    [sdist] = into.glob("*.tar.gz")
    settle(sdist, epoch_seconds)
    unpacked = into / "unpacked"
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    [project] = unpacked.iterdir()
    _run_build("--wheel", project, into, epoch_seconds)
    [wheel] = into.glob("*.whl")
    return sdist, wheel


def _run_build(kind: str, source: Path, into: Path, epoch_seconds: int) -> None:
    line = [sys.executable, "-m", "build", "--no-isolation", kind]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch_seconds)}
    done = subprocess.run(
        [*line, "--outdir", str(into), str(source)],
        env=environment,
        umask=0o022,
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.stderr.write(done.stdout + done.stderr)
        done.check_returncode()


def settle(sdist: Path, epoch_seconds: int) -> None:
    """Write a `.tar.gz` anew without what differs between builds: order, times, owners, modes."""
    with tarfile.open(sdist) as archive:
        members = sorted(archive.getmembers(), key=lambda member: member.name)
        contents = [archive.extractfile(member) if member.isfile() else None for member in members]
        settled = sdist.with_suffix(".new")
        with (
            settled.open("wb") as raw,
            gzip.GzipFile("", "wb", mtime=epoch_seconds, fileobj=raw) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as new,
        ):
            for member, content in zip(members, contents, strict=True):
                member.mtime, member.mode = epoch_seconds, 0o755 if member.isdir() else 0o644
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.pax_headers = {}
                new.addfile(member, content)
    settled.replace(sdist)
