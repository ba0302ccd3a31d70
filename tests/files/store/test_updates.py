"""Updates that nobody reported are found, and known for what they are by their files alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.base.values import AttemptId
from downpour.files.store import DirectoryStore, Work, find_updates, publish_work
from downpour.files.store.layout import attempt_name

ATTEMPT = AttemptId(experiment="any", round=2, shard=1, attempt=3)
WORK = Work(
    parameters={"w": np.arange(6, dtype=np.float32)},
    optimizer_state={"w/momentum": np.ones(6, dtype=np.float32)},
    samples=100,
    steps=7,
    loss=0.1 + 0.2,
)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """An empty directory."""
    return DirectoryStore(tmp_path, patience_seconds=0)


def test_a_published_update_is_found(store: DirectoryStore) -> None:
    """Numbers and files are those of the report; only the seconds are not known."""
    file, state = publish_work(store, ATTEMPT, WORK)
    [(attempt, update)] = find_updates(store, [ATTEMPT, replace(ATTEMPT, shard=0)])
    assert (attempt, update.file, update.optimizer_state) == (ATTEMPT, file, state)
    assert (update.samples, update.steps, update.loss) == (100, 7, 0.1 + 0.2)


def test_two_attempts_give_files_of_the_same_bytes(store: DirectoryStore) -> None:
    """What a file says of itself follows from its task alone."""
    one = publish_work(store, ATTEMPT, WORK)[0]
    other = publish_work(store, replace(ATTEMPT, attempt=4), WORK)[0]
    assert one.checksum == other.checksum


def test_whole_updates_keep_their_bytes(store: DirectoryStore) -> None:
    """As they were before there was another way of writing them."""
    file, state = publish_work(store, ATTEMPT, WORK)
    assert state is not None
    assert (file.size_bytes, file.checksum) == (240, "e78a448401712935478d144d01798a60")
    assert (state.size_bytes, state.checksum) == (96, "183e90158883a361ddbf8523b0096947")


def test_an_update_that_cannot_be_published_leaves_no_state_behind(store: DirectoryStore) -> None:
    """The worker publishes the state first, and only the worker can know about it."""
    unfit = {"weight": np.array([1j])}
    state = {"momentum": np.ones(2, np.float32)}
    work = Work(parameters=unfit, optimizer_state=state, samples=1, steps=1, loss=1.0)
    with pytest.raises(SpecError, match="complex"):
        publish_work(store, ATTEMPT, work)
    assert store.list() == []


def test_only_what_is_asked_for_is_found(store: DirectoryStore) -> None:
    """Neither other attempts' updates, nor one of another kind, nor strange files."""
    publish_work(store, replace(ATTEMPT, attempt=4), WORK)
    store.put_new("model-000001-ab.safetensors", [b"a model"])
    store.put_new(attempt_name("snapshot", ATTEMPT, "ab"), [b"a snapshot"])
    assert list(find_updates(store, [ATTEMPT])) == []


@pytest.mark.parametrize("part", [0, 1], ids=["update", "optimizer state"])
@pytest.mark.parametrize("at", [-1, -8, 40])
def test_an_altered_update_is_skipped(store: DirectoryStore, part: int, at: int) -> None:
    """The name says what its checksum was, and the update what that of its state was."""
    file = publish_work(store, ATTEMPT, WORK)[part]
    assert file is not None
    path = store.path / file.name
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)
    assert list(find_updates(store, [ATTEMPT])) == []


def test_an_update_whose_optimizer_state_is_gone_is_left_aside(store: DirectoryStore) -> None:
    """The next round would begin with a fresh state."""
    state = publish_work(store, ATTEMPT, WORK)[1]
    assert state is not None
    store.delete(state.name)
    assert list(find_updates(store, [ATTEMPT])) == []


def test_an_update_that_never_had_an_optimizer_state_is_found(store: DirectoryStore) -> None:
    """An optimizer may have none, such as SGD without momentum."""
    publish_work(store, ATTEMPT, replace(WORK, optimizer_state={}))
    [(_, update)] = find_updates(store, [ATTEMPT])
    assert update.optimizer_state is None


def test_a_short_or_foreign_update_is_skipped(store: DirectoryStore) -> None:
    """A name alone proves nothing."""
    whole = publish_work(store, replace(ATTEMPT, shard=9), WORK)[0]
    content = (store.path / whole.name).read_bytes()
    store.put_new(attempt_name("update", ATTEMPT, "aa"), [content])
    store.put_new(attempt_name("update", ATTEMPT, "bb"), [content[:-4]])
    assert list(find_updates(store, [ATTEMPT])) == []
    good = publish_work(store, ATTEMPT, WORK)[0]
    [(_, update)] = find_updates(store, [ATTEMPT])
    assert update.file == good
