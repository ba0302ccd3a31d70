"""Paths and names of a shared directory."""

import errno
import os
from pathlib import Path
from typing import get_args

import pytest
from filelock import UnixFileLock
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.base.values import PublishedFile
from downpour.files.store import (
    FINAL_NAME,
    RECORD_NAME,
    SPEC_NAME,
    ModelName,
    SharedDirectory,
    parse_name,
)
from downpour.files.store.directory import names_in
from downpour.files.store.layout import (
    AttemptKind,
    AttemptName,
    MeanName,
    OuterName,
    OwnName,
    WholeName,
    check_bare_name,
    is_in_flight,
    is_spent,
    last_of_shards,
    left_over,
)
from downpour.files.store.publish import explain

numbers = st.integers(0, 10**9)
tokens = st.text("0123456789abcdef", min_size=1, max_size=12)


VERSIONS = [
    st.builds(kind, version=numbers, token=tokens)
    for kind in (ModelName, OuterName, MeanName, WholeName)
]
OWN = st.builds(OwnName, version=numbers, shard=numbers, token=tokens)
ATTEMPTS = st.builds(
    AttemptName,
    kind=st.sampled_from(get_args(AttemptKind)),
    round=numbers,
    shard=numbers,
    attempt=numbers,
    token=tokens,
    checksum=st.sampled_from(["", "0f" * 16]),
)


@given(name=st.one_of(*VERSIONS, OWN, ATTEMPTS))
def test_names_are_read_back(name: ModelName | OwnName | AttemptName) -> None:
    """The numbers of a file's name come back from it; versions alone outlive an experiment."""
    assert parse_name(check_bare_name(str(name))) == name
    assert is_in_flight(str(name)) is not isinstance(name, ModelName | OuterName | MeanName)


@pytest.mark.parametrize(
    ("name", "spent"),
    [
        ("model-000007-ab.safetensors", True),
        ("update-000001-000000-000-ab.safetensors", True),
        ("snapshot-000001-000000-000-ab.safetensors", True),
        ("update-000002-000000-000-ab.safetensors", False),
        ("own-000009-000001-ab.safetensors", True),
        (SPEC_NAME, False),
    ],
)
def test_only_what_nobody_will_name_is_spent(name: str, *, spent: bool) -> None:
    """In round 2 that is what earlier rounds left, and models that nobody knows of."""
    assert is_spent(name, 2) is spent


@pytest.mark.parametrize("finished", [True, False])
def test_an_experiment_that_has_ended_leaves_its_result_and_what_people_read(
    *, finished: bool
) -> None:
    """One that did not finish has no result, also where its file was being published already."""
    update = "update-000001-000000-000-ab.safetensors"
    names = [SPEC_NAME, RECORD_NAME, "model-000007-ab.safetensors", FINAL_NAME, update]
    spent = left_over(names, finished=finished, kept=[], versions=[])
    assert spent == set(names[-1:] if finished else names[-2:])


def test_no_version_stays_that_is_not_named() -> None:
    """A manager that was cut off has published one late; without any names, all stay."""
    last, late = "model-000007-ab.safetensors", "model-000007-cd.safetensors"
    outer, state = "outer-000007-ab.safetensors", "optimizer-000006-000000-000-ab.safetensors"
    names = [last, late, outer, outer.replace("-ab", "-cd"), state, FINAL_NAME, SPEC_NAME]

    def published(*some: str) -> list[PublishedFile]:
        return [PublishedFile(name=name, size_bytes=1, checksum="") for name in some]

    kept, versions = published(state), published(last, outer)
    assert left_over(names, finished=True, kept=kept, versions=versions) == {late, names[3]}
    assert left_over(names, finished=True, kept=[], versions=[]) == {state}


def test_each_shard_s_last_state_is_found_among_the_files_of_an_ended_experiment() -> None:
    """A shard that was dropped has an older one; what the next round left over is not meant."""
    here = "optimizer-000002-000000-000-ab.safetensors"
    dropped = "optimizer-000001-000001-002-cd.safetensors"
    before, next_one = here.replace("-000002-", "-000001-"), here.replace("-000002-", "-000003-")
    names = [next_one, here, dropped, before, here.replace("optimizer", "update"), SPEC_NAME]
    assert last_of_shards("optimizer", names, 3) == {0: here, 1: dropped}
    # Without a round there are the states that the experiment began with.
    begun = "optimizer-000000-000000-000-ab.safetensors"
    assert last_of_shards("optimizer", [begun], 0) == {0: begun}


@pytest.mark.parametrize("name", [SPEC_NAME, RECORD_NAME, FINAL_NAME, "model-x-1.safetensors"])
def test_other_names_say_nothing(name: str) -> None:
    """Only models, updates and optimizer states carry numbers."""
    assert parse_name(name) is None


def test_names_sort_in_time() -> None:
    """Version 10 comes after version 9."""
    assert str(ModelName(9, "f")) < str(ModelName(10, "0"))


def test_a_new_shared_directory_has_its_folders(tmp_path: Path) -> None:
    """Opening makes what is missing, leaves no probe behind, and can be repeated."""
    for _ in range(2):
        shared = SharedDirectory.open(tmp_path / "a" / "b", create=True)
        assert sorted(names_in(shared.root)) == ["datasets", "experiments", "logs", "presence"]
        assert names_in(shared.presence) == []


def test_a_worker_makes_nothing_in_a_directory(tmp_path: Path) -> None:
    """It may be the point of a mount that is away; a wrong path is an error."""
    SharedDirectory.open(tmp_path, create=False)
    with pytest.raises(SharedDirectoryError, match="no such folder"):
        SharedDirectory.open(tmp_path / "wrong", create=False)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("create", [True, False])
def test_a_file_is_no_shared_directory(tmp_path: Path, *, create: bool) -> None:
    """Something else in its place is named."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(SharedDirectoryError, match="not a folder"):
        SharedDirectory.open(tmp_path / "file", create=create)


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for the superuser")
def test_a_read_only_directory_is_refused(tmp_path: Path) -> None:
    """A folder that cannot be written is refused before anybody trains."""
    tmp_path.chmod(0o500)
    with pytest.raises(SharedDirectoryError, match="not writable"):
        SharedDirectory.open(tmp_path, create=True)
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.EACCES, "not writable"),
        (errno.EROFS, "not writable"),
        (errno.ENOSPC, "full"),
        (errno.ENOENT, "no such folder"),
        (errno.ENOTDIR, "not a folder"),
        (errno.ESTALE, os.strerror(errno.ESTALE)),
    ],
)
def test_reasons_are_one_line(number: int, told: str) -> None:
    """What the system says becomes what a user can mend."""
    assert explain(OSError(number, os.strerror(number))).startswith(told)


def test_experiments_are_created_once(tmp_path: Path) -> None:
    """An identifier is taken by the first, and its store lies in its folder."""
    shared = SharedDirectory.open(tmp_path, create=True)
    file = shared.create_experiment("e1").put_new(SPEC_NAME, [b"seed = 1"])
    assert shared.experiment_path("e1") == tmp_path / "experiments" / "e1"
    assert bytes(shared.store("e1").read(file)) == b"seed = 1"
    with pytest.raises(StoreError, match="e1 already exists"):
        shared.create_experiment("e1")


def test_experiments_stay_in_their_folder(tmp_path: Path) -> None:
    """An identifier from a message cannot lead elsewhere."""
    shared = SharedDirectory.open(tmp_path, create=True)
    with pytest.raises(StoreError, match="not a bare name"):
        shared.experiment_path("../presence")


def test_a_worker_in_the_same_folder_reads_the_managers_presence(tmp_path: Path) -> None:
    """What the manager announced is read back, until it is withdrawn."""
    manager = SharedDirectory.open(tmp_path, create=True)
    presence = manager.announce("a secret nobody can guess")
    worker = SharedDirectory(tmp_path, patience_seconds=0)
    assert worker.read_presence(presence.name) == "a secret nobody can guess"
    presence.withdraw()
    assert list(manager.presence.iterdir()) == []
    with pytest.raises(SharedDirectoryError, match="different folder"):
        worker.read_presence(presence.name)


def test_presence_is_withdrawn_though_the_file_system_has_taken_its_lock(tmp_path: Path) -> None:
    """The lock's file is refused by then, and whoever withdraws has more to give back."""
    presence = SharedDirectory.open(tmp_path, create=True).announce("secret")
    assert isinstance(presence.lock, UnixFileLock)
    held = presence.lock._context.lock_file_fd
    assert held is not None
    os.close(held)
    presence.withdraw()
    assert list((tmp_path / "presence").iterdir()) == []


def test_a_worker_in_a_folder_where_no_manager_has_led_is_told_so_at_once(tmp_path: Path) -> None:
    """Nothing that it could wait for comes to such a folder."""
    manager = SharedDirectory.open(tmp_path / "one", create=True)
    (tmp_path / "two").mkdir()
    slept: list[float] = []
    worker = SharedDirectory(tmp_path / "two", patience_seconds=3, sleep=slept.append)
    with pytest.raises(SharedDirectoryError, match="it sees a different folder"):
        worker.read_presence(manager.announce("secret").name)
    assert not slept
    assert not list((tmp_path / "two").iterdir())


def test_a_worker_in_another_folder_is_told_so(tmp_path: Path) -> None:
    """After looking for a while, the worker learns that the folders differ."""
    slept: list[float] = []
    manager = SharedDirectory.open(tmp_path / "one", create=True)
    SharedDirectory.open(tmp_path / "two", create=True)
    worker = SharedDirectory(tmp_path / "two", patience_seconds=3, sleep=slept.append)
    with pytest.raises(
        SharedDirectoryError, match="two: the manager's presence file is missing here"
    ):
        worker.read_presence(manager.announce("secret").name)
    assert sum(slept) >= 3
