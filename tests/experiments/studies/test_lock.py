"""The lock of a study's folder: one process at a time, and every other can see which."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Timer

import pytest
from filelock import FileLock

from downpour.base.errors import SpecError
from downpour.experiments.studies.folder import held, holder


def test_who_holds_a_folder_is_named_until_it_lets_go(tmp_path: Path) -> None:
    """Also if the holder ends with an error; afterwards another process may hold it."""
    assert holder(tmp_path) is None
    with pytest.raises(ZeroDivisionError), held(tmp_path):
        _fail_while(f"process {os.getpid()}", tmp_path)
    assert holder(tmp_path) is None
    with held(tmp_path), pytest.raises(SpecError, match="is already running it"), held(tmp_path):
        pass


def test_a_look_keeps_no_process_out(tmp_path: Path) -> None:
    """A look takes the lock, too, for a moment; a process that comes to hold it waits."""
    look = FileLock(tmp_path / "run.lock", thread_local=False)
    look.acquire()
    Timer(0.02, look.release).start()
    with held(tmp_path):
        assert holder(tmp_path) == f"process {os.getpid()}"


def _fail_while(who: str, folder: Path) -> None:
    assert holder(folder) == who
    raise ZeroDivisionError


def test_a_folder_that_cannot_be_held_is_refused(tmp_path: Path) -> None:
    """In one line; to a look it is held by no process."""
    (tmp_path / "run.lock").mkdir()
    with pytest.raises(SpecError, match="folder = "), held(tmp_path):
        pass
    assert holder(tmp_path) is None
