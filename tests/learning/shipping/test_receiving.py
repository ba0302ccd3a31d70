"""A worker runs the code that was submitted: its own files, or those that came with the task."""

import gzip
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from typing import Any

import pytest

from downpour.base.errors import OtherCode, SpecError, UnfitWorker
from downpour.core.spec import ResolvedSpec
from downpour.files.store import Store
from downpour.learning.allowlist import FOLDERS, VARIABLE, load_factory
from downpour.learning.shipping import REMEDY, folder_in_use, settle_code
from downpour.learning.user_code import check_code
from tests.learning.shipping.conftest import FACTORY, PROJECT, Shipment, forget_modules, written
from tests.learning.shipping.test_bundle import named

CHANGED = {**PROJECT, "shipped_lab/layers.py": b"WIDTH = 2\n"}


def run(spec: ResolvedSpec, store: Store) -> Any:
    """Do what a worker does before it trains, and call the factory."""
    assert settle_code(spec, store, accepts=True) == ""
    check_code("model", FACTORY, spec.code)
    return load_factory("model", FACTORY)()


def test_a_machine_without_the_code_takes_it(shipment: Shipment) -> None:
    """A package, and a module beside it that no allow-list names: the factory imports it."""
    assert run(*shipment.of(PROJECT)) == (1, 1)
    assert [path.name for path in shipment.own.iterdir() if path.is_dir()] == [
        shipment.of(PROJECT)[0].code_bundle
    ]


def test_a_machine_with_other_code_takes_it(
    shipment: Shipment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it has imported its own before, from a folder that Python looks in first."""
    monkeypatch.syspath_prepend(str(written(tmp_path / "mine", PROJECT)))
    importlib.import_module("shipped_lab.nets")
    assert run(*shipment.of(CHANGED)) == (2, 1)


def test_a_machine_with_the_very_code_reads_nothing(
    shipment: Shipment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own files are as good, and whoever debugs sees their paths."""
    mine = written(tmp_path / "mine", PROJECT)
    monkeypatch.setenv(FOLDERS, str(mine))
    spec, store = shipment.named("0" * 64, b"no bundle at all", PROJECT)
    assert run(spec, store) == (1, 1)
    assert sys.modules["shipped_lab.nets"].__file__ == str(mine / "shipped_lab" / "nets.py")
    assert not shipment.own.exists()


def test_changed_code_needs_no_restart_and_the_old_may_come_again(shipment: Shipment) -> None:
    """What was made of the former keeps its code; what is imported from now on is the latter."""
    assert run(*shipment.of(PROJECT)) == (1, 1)
    former = load_factory("model", FACTORY)
    assert run(*shipment.of(CHANGED)) == (2, 1)
    assert former() == (1, 1)
    assert run(*shipment.of(PROJECT)) == (1, 1)


def test_a_machines_own_code_counts_again_where_it_is_the_submitted(
    shipment: Shipment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an experiment with a bundle comes one with these files, or with none."""
    monkeypatch.setenv(FOLDERS, str(written(tmp_path / "mine", PROJECT)))
    assert run(*shipment.of(CHANGED)) == (2, 1)
    assert run(*shipment.of(PROJECT)) == (1, 1)
    assert folder_in_use() is None
    assert run(*shipment.of(CHANGED)) == (2, 1)
    spec, store = shipment.of(PROJECT)
    ours = spec.replace(model="digits-cnn", code={}, code_bundle=None)
    assert settle_code(ours, store, accepts=True) == ""
    assert folder_in_use() is None


def test_code_that_is_used_is_not_unpacked_again(shipment: Shipment) -> None:
    """One file is read, once, for any number of experiments and processes of a machine."""
    spec, store = shipment.of(PROJECT)
    run(spec, store)
    forget_modules()
    (folder,) = (path for path in shipment.own.iterdir() if path.is_dir())
    inode = folder.stat().st_ino
    other, empty = shipment.named(str(spec.code_bundle), None, PROJECT)
    run(other, empty)
    assert folder.stat().st_ino == inode


def test_a_copy_that_was_edited_is_made_again(shipment: Shipment) -> None:
    """Whether a file changed, came along, is gone, or is a link to somewhere else."""
    spec, store = shipment.of(PROJECT)
    run(spec, store)
    (folder,) = (path for path in shipment.own.iterdir() if path.is_dir())
    layers = folder / "shipped_lab" / "layers.py"

    def linked() -> None:
        elsewhere = folder.parent / "elsewhere.py"
        layers.rename(elsewhere)
        layers.symlink_to(elsewhere)

    changes: list[Callable[[], object]] = [
        lambda: layers.write_bytes(b"WIDTH = 7\n"),
        lambda: (folder / "shipped_lab" / "more.py").write_bytes(b""),
        layers.unlink,
        linked,
    ]
    for change in changes:
        settle_code(
            spec.replace(model="digits-cnn", code={}, code_bundle=None), store, accepts=True
        )
        change()
        assert run(spec, store) == (1, 1)
        assert layers.read_bytes() == PROJECT["shipped_lab/layers.py"]
        assert not layers.is_symlink()


def test_a_month_without_use_removes_a_copy(shipment: Shipment) -> None:
    """Also what a process has left that died while it unpacked; what is used stays."""
    run(*shipment.of(PROJECT))
    (used,) = (path for path in shipment.own.iterdir() if path.is_dir())
    partial, recent = shipment.own / ".abc.partial", shipment.own / ("1" * 64)
    for folder, days in ((used, 31), (partial, 31), (recent, 29)):
        (folder / "lab").mkdir(parents=True)
        os.utime(folder, (0, time.time() - days * 86_400))
    run(*shipment.of(CHANGED))
    assert not used.exists()
    assert not partial.exists()
    assert recent.exists()


def test_a_use_keeps_a_copy(shipment: Shipment) -> None:
    """It counts once a day."""
    spec, store = shipment.of(PROJECT)
    run(spec, store)
    (used,) = (path for path in shipment.own.iterdir() if path.is_dir())
    run(*shipment.of(CHANGED))
    os.utime(used, (0, time.time() - 20 * 86_400))
    run(spec, store)
    assert time.time() - used.stat().st_mtime < 3600


def test_spawned_processes_find_the_same_code(shipment: Shipment) -> None:
    """As those of a DataLoader do, on systems where they are not forked."""
    run(*shipment.of(CHANGED))
    given_path = get_preparation_data("any")["sys_path"]
    asked = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); import shipped_lab.nets as n"
    words = [sys.executable, "-c", f"{asked}; print(n.build())", json.dumps(given_path)]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "(2, 1)\n"


def test_a_shipped_module_is_no_factory(shipment: Shipment) -> None:
    """An allowed module imports it, as it might any other; a spec cannot name it."""
    run(*shipment.of({**PROJECT, "shipped_helpers.py": b"DEPTH = 1\ndef build(): return 9\n"}))
    with pytest.raises(SpecError, match="allows modules under shipped_lab on "):
        load_factory("model", "shipped_helpers:build")


@pytest.mark.parametrize("accepts", [True, False])
def test_the_allow_list_still_rules(
    shipment: Shipment, monkeypatch: pytest.MonkeyPatch, *, accepts: bool
) -> None:
    """A factory that is not allowed is not even read, and the remedy is not to accept code."""
    monkeypatch.setenv(VARIABLE, "something_else")
    spec, store = shipment.of(PROJECT)
    assert settle_code(spec, store, accepts=accepts) == ""
    assert folder_in_use() is None
    assert not shipment.own.exists()


def test_a_worker_that_refuses_says_how_to_accept(
    shipment: Shipment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it lacks the code or has another version; nothing is read."""
    spec, store = shipment.of(PROJECT)
    assert settle_code(spec, store, accepts=False) == REMEDY
    monkeypatch.setenv(FOLDERS, str(written(tmp_path / "mine", CHANGED)))
    assert settle_code(spec, store, accepts=False) == REMEDY
    assert not shipment.own.exists()
    assert settle_code(spec.replace(code_bundle=None), store, accepts=False) == ""


def refusal(spec: ResolvedSpec, store: Store) -> str:
    """Return the line with which a worker refuses a bundle."""
    with pytest.raises(UnfitWorker) as error:
        settle_code(spec, store, accepts=True)
    line = str(error.value)
    assert line.startswith("this worker cannot use the experiment's code: ")
    assert line.isprintable()
    assert folder_in_use() is None
    return line


def test_a_bundle_that_is_missing_truncated_or_a_bomb_is_refused(shipment: Shipment) -> None:
    """One line each, and no file is written."""
    whole, _ = shipment.of(PROJECT)
    digest = str(whole.code_bundle)
    bomb = gzip.compress(b" " * (16 * 2**20))
    for packed, why in (
        (None, "no such file in the shared directory"),
        (b"", "ends too soon"),
        (b"PK\3\4", "damaged"),
        (bomb, "more than 8 MiB"),
        (bytes(9 * 2**20), "its file has more than"),
        (named({"shipped_lab.py": ""})[0], "its SHA-256 is another"),
    ):
        assert why in refusal(*shipment.named(digest, packed, PROJECT))
    assert not list(shipment.own.rglob("*.py"))


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../escaped.py", "not the path of a Python module"),
        ("pytest.py", "pytest is also an installed package"),
        ("hypothesis/__init__.py", "hypothesis is also an installed package"),
    ],
)
def test_a_bundle_that_stands_in_for_others_is_refused(
    shipment: Shipment, path: str, why: str
) -> None:
    """Although its digest is the one that the spec names, and so are those of all its files."""
    files = {**PROJECT, path: b"raise SystemExit"}
    packed, digest = named({name: content.decode() for name, content in files.items()})
    assert why in refusal(*shipment.named(digest, packed, files))
    assert not list(shipment.own.parent.parent.rglob("escaped.py"))


def test_a_file_that_the_experiment_does_not_name_is_refused(shipment: Shipment) -> None:
    """Each file's digest is compared as well, and so is what Python then finds."""
    packed, digest = named({name: content.decode() for name, content in CHANGED.items()})
    line = refusal(*shipment.named(digest, packed, PROJECT))
    assert "shipped_lab/layers.py has changed since the submission" in line
    fewer = {name: content for name, content in PROJECT.items() if "helpers" not in name}
    spec, store = shipment.of(fewer)
    settle_code(spec.replace(code={**shipment.of(PROJECT)[0].code}), store, accepts=True)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("shipped_lab.nets")


def test_code_of_this_machine_that_hides_the_bundle_is_never_run(
    shipment: Shipment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package here beats a bundle's folder without __init__.py; then the worker refuses."""
    monkeypatch.setenv(FOLDERS, str(written(tmp_path / "mine", CHANGED)))
    bare = {name: content for name, content in PROJECT.items() if "__init__" not in name}
    spec, store = shipment.of(bare)
    settle_code(spec, store, accepts=True)
    with pytest.raises(OtherCode):
        check_code("model", FACTORY, spec.code)


def test_a_machine_without_a_folder_of_its_own_uses_a_temporary_one(
    shipment: Shipment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose user has no home; if there is none either, the worker is unfit."""
    shipment.own.parent.write_text("a file has the folder's name")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "no copy here: No such file" in refusal(*shipment.of(PROJECT))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert run(*shipment.of(PROJECT)) == (1, 1)
    folder = folder_in_use()
    assert folder is not None
    assert folder.parent.parent == tmp_path
    assert folder.parent.stat().st_mode & 0o777 == 0o700
