"""Finds the file system of a folder and its mount options, if the system tells (Linux)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")

_NETWORK = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "virtiofs"}
)
_HUGE_PAGES = frozenset({"huge=always", "huge=within_size"})
_MEANINGS = {
    "soft": "an unreachable server may end workers; a hard mount waits",
    "softerr": "an unreachable server may end workers; a hard mount waits",
    "nolock": "locks do not reach other machines",
    "local_lock=all": "locks do not reach other machines",
    "local_lock=flock": "locks do not reach other machines",
    "nobrl": "locks do not reach other machines",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system."""

    point: Path
    kind: str
    options: tuple[str, ...]

    @property
    def is_network(self) -> bool:
        """Whether its files may be on another machine; file systems in user space (FUSE) count."""
        return self.kind in _NETWORK or self.kind.startswith("fuse")

    @property
    def is_in_small_pages(self) -> bool:
        """Whether memory holds its files in pages of 4 KiB; each page costs a fault."""
        return self.kind == "tmpfs" and _HUGE_PAGES.isdisjoint(self.options)

    @property
    def doubtful(self) -> dict[str, str]:
        """The options that weaken the guarantees of files, and what each of them means."""
        return {option: _MEANINGS[option] for option in self.options if option in _MEANINGS}


def find_mount(path: Path, mounts: Path = MOUNTS) -> Mount | None:
    """Return the mount of a folder, or None if this system does not tell."""
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return innermost(lines, path.resolve())


def innermost(lines: Iterable[str], path: Path) -> Mount | None:
    """Return the mount that serves an absolute path; later lines cover earlier ones."""
    best: Mount | None = None
    for line in lines:
        mount = _parsed(line)
        if mount is None or not path.is_relative_to(mount.point):
            continue
        if best is None or mount.point.is_relative_to(best.point):
            best = mount
    return best


def _parsed(line: str) -> Mount | None:
    """Read a line as in proc(5): `36 35 98:0 /root /point options [tags] - kind source options`."""
    # The dash is there because the number of tags before it varies.
    front, dash, back = line.partition(" - ")
    fields, about = front.split(), back.split()
    if not dash or len(fields) < 6 or len(about) < 3:
        return None
    point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])
    options = tuple(dict.fromkeys([*fields[5].split(","), *about[2].split(",")]))
    return Mount(point=Path(point), kind=about[0], options=options)
