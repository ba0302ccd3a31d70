"""Finding a well-known dataset, or downloading it once."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets.built_in import found_or_downloaded

SPEC = Spec.make({"dataset": "mnist"})
NAMES = ("file",)


def fetched(root: Path) -> None:
    """Download one file."""
    (root / "Set").mkdir(parents=True)
    (root / "Set" / "file").write_text("content")


def test_a_download_happens_once_and_appears_whole(tmp_path: Path) -> None:
    """Ten that start together find the same file; one of them fetched it."""
    calls: list[Path] = []

    def fetch(root: Path) -> None:
        calls.append(root)
        fetched(root)

    with ThreadPoolExecutor(10) as pool:
        places = (None, tmp_path)
        work = [
            pool.submit(found_or_downloaded, SPEC, "Set", NAMES, places, fetch) for _ in range(10)
        ]
    assert {tuple(done.result()) for done in work} == {(tmp_path / "Set" / "file",)}
    assert len(calls) == 1
    assert calls[0].parent == tmp_path
    assert not calls[0].exists()


def test_the_data_folder_comes_first(tmp_path: Path) -> None:
    """What the user gives wins over the cache, and nothing is downloaded."""
    for place in ("data", "cache"):
        fetched(tmp_path / place)
    places = (tmp_path / "data", tmp_path / "cache")
    found = found_or_downloaded(SPEC, "Set", NAMES, places, fetch=lambda _root: 1 / 0)
    assert found == [tmp_path / "data" / "Set" / "file"]


def test_a_download_that_fails_leaves_nothing_and_says_why(tmp_path: Path) -> None:
    """The first line of the reason, and what to do; half a folder is replaced next time."""

    def fail(root: Path) -> None:
        fetched(root)
        raise OSError("no route to host\nand more")

    with pytest.raises(SpecError, match=r"\(no route to host\).*Set/"):
        found_or_downloaded(SPEC, "Set", NAMES, (None, tmp_path), fail)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    (tmp_path / "Set").mkdir()
    assert found_or_downloaded(SPEC, "Set", NAMES, (None, tmp_path), fetched)


def test_a_reason_that_begins_by_announcing_others_is_told_in_full(tmp_path: Path) -> None:
    """As torchvision tells what each server of MNIST said."""

    def fail(_root: Path) -> None:
        raise RuntimeError("Error downloading a.gz:\nTried http://b/, got:\nno route to host\n")

    told = r"\(Error downloading a\.gz: Tried http://b/, got: no route to host\)"
    with pytest.raises(SpecError, match=told):
        found_or_downloaded(SPEC, "Set", NAMES, (None, tmp_path), fail)


def test_a_download_of_another_machine_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client that asked too early believes that it is missing until it lists the folder."""
    listed: list[object] = []
    listing = os.listdir

    def noted(path: Path) -> list[str]:
        listed.append(path)
        return listing(path)

    fetched(tmp_path)
    is_file = Path.is_file
    monkeypatch.setattr(os, "listdir", noted)
    monkeypatch.setattr(Path, "is_file", lambda path: tmp_path in listed and is_file(path))
    found = found_or_downloaded(SPEC, "Set", NAMES, (None, tmp_path), lambda _root: 1 / 0)
    assert found == [tmp_path / "Set" / "file"]


def test_a_server_that_falls_silent_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads without a timeout of their own get one."""
    monkeypatch.setattr("downpour.learning.datasets.built_in.SILENT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"

        def fetch(_root: Path) -> None:
            urlopen(url)

        with pytest.raises(SpecError, match="timed out"):
            found_or_downloaded(SPEC, "Set", NAMES, (None, tmp_path), fetch)
