"""Files that users name: regular ones alone, and none without end."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.cluster.launchers.hosts import read_hosts
from downpour.files.spec_file import read_launch, read_spec
from downpour.host.paths import read_user_file
from downpour.predictor.learned import read_trained
from downpour_lab.fitting.training_data import read_traces
from downpour_lab.policylab.traced import read_recordings


def fifo(path: Path) -> None:
    """Make one without a writer, which would be waited for."""
    os.mkfifo(path)


def listening(path: Path) -> None:
    """Make a socket."""
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


ODD: dict[str, Callable[[Path], object]] = {
    "a FIFO": fifo,
    "a socket": listening,
    "a folder": Path.mkdir,
    "a device that never ends": lambda path: path.symlink_to("/dev/zero"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
}
READERS: dict[str, Callable[[Path], object]] = {
    "spec": read_spec,
    "launch": read_launch,
    "hosts": lambda path: read_hosts(str(path)),
    "predictor": read_trained,
    "traces": read_traces,
    "recordings": read_recordings,
}


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    """Configurations are often linked."""
    (tmp_path / "file").write_text("content")
    (tmp_path / "link").symlink_to("file")
    assert read_user_file(tmp_path / "link", 7) == b"content"
    with pytest.raises(OSError, match="Larger than 0 MiB"):
        read_user_file(tmp_path / "link", 6)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("odd", ODD)
def test_a_path_that_is_no_file_is_refused_at_once(tmp_path: Path, odd: str, reader: str) -> None:
    """None of the commands waits for it, or reads it without end."""
    path = tmp_path / "odd"
    ODD[odd](path)
    with pytest.raises(SpecError, match="odd"):
        READERS[reader](path)
