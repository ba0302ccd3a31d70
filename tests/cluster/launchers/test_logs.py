"""The logs of runs on this machine do not grow in number for ever."""

from __future__ import annotations

import os
from pathlib import Path

from downpour.cluster.launchers.cluster import KEPT, new_log

NO_PROCESS = 999_999_999


def test_the_last_logs_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    """Of thirty the oldest go; a user's own file stays, and the log of a run that goes on."""
    folder = tmp_path / "logs"
    folder.mkdir()
    old = [folder / f"20260101-0000{second:02}-{NO_PROCESS}" for second in range(30)]
    others = [folder / "notes.txt", folder / f"20250101-000000-{os.getpid()}"]
    for path in [*old, *others]:
        path.touch()
    log = new_log(tmp_path)
    log.touch()
    left = set(folder.iterdir()) - {log}
    assert left == {*old[-(KEPT - 1) :], *others}


def test_the_folder_is_made_where_there_is_none(tmp_path: Path) -> None:
    """The log itself is its owner's to open."""
    log = new_log(tmp_path / "new")
    assert log.parent.is_dir()
    assert not log.exists()
    assert log.name.endswith(f"-{os.getpid()}")
