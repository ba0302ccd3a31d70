"""Paths and files that a user names, locks on folders, and credentials."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.cluster.launchers.ssh_script import read_hosts
from downpour.files.spec_file import read_launch, read_spec
from downpour.host.paths import (
    FILES,
    Credentials,
    FolderLock,
    path_of,
    read_user_file,
    without_credentials,
)
from downpour.predictor.learned import read_trained
from downpour_lab.fitting.training_data import read_traces
from downpour_lab.policylab.conditions import read_recordings


def test_text_and_paths_are_paths() -> None:
    """`~` is put into full; nothing else changes, and nothing has to be there."""
    assert path_of("shared", "a/b") == Path("a/b")
    assert path_of("shared", Path("nowhere")) == Path("nowhere")
    assert path_of("shared", "~/here") == Path.home() / "here"
    assert path_of("shared", "s3") == Path("s3")  # a folder, though s3:// begins a bucket's URL


@pytest.mark.parametrize("given", ["", 5, None, b"bytes", "nul\0", "~nobody-of-that-name/x"])
def test_a_malformed_path_is_refused(given: object) -> None:
    """The line names the field; an empty path would be the current folder, which nobody meant."""
    with pytest.raises(SpecError, match=r"^shared = .*: must be a path"):
        path_of("shared", given)


@pytest.mark.parametrize("given", ["x" * 256, "y/" * 2100, "é" * 128])
def test_a_path_is_as_long_as_a_system_takes(given: str) -> None:
    """Bytes count, of the whole and of each name in it."""
    with pytest.raises(SpecError, match="at most 4095 bytes, and 255 between two slashes"):
        path_of("shared", given)


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


def test_a_lock_in_a_folder_that_is_away_is_refused_and_makes_nothing(tmp_path: Path) -> None:
    """The folder may be a mount; once it is back, the same lock can be taken."""
    lock = FolderLock(tmp_path / "mount" / "datasets" / "lock", timeout=0)
    with pytest.raises(FileNotFoundError), lock:
        raise AssertionError("it is held")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mount" / "datasets").mkdir(parents=True)
    with lock:
        assert lock.is_locked


def test_no_other_lock_is_used() -> None:
    """A `FileLock` would make its folder with all parents."""
    package = Path(__file__).parents[2] / "src" / "downpour"
    users = [path for path in package.rglob("*.py") if " FileLock" in path.read_text("utf-8")]
    assert [path.name for path in users] == ["paths.py"]


def test_the_token_is_not_shown() -> None:
    """Not even where credentials land in a log by mistake."""
    assert "hush" not in repr(Credentials(token="hush"))


def test_an_environment_says_all_of_it() -> None:
    """What is handed on that way arrives as it was, or is taken away with all else left alone."""
    given = Credentials(token="hush", token_file="t", tls_cert="c", tls_key="k", tls_ca="a")
    variables = given.to_environment()
    assert Credentials.from_environment(variables) == given
    assert variables.keys() == {"DOWNPOUR_TOKEN", *FILES.values()}
    assert Credentials().to_environment() == {}
    assert Credentials.from_environment({}) == Credentials()
    assert without_credentials({**variables, "PATH": "/bin"}) == {"PATH": "/bin"}
