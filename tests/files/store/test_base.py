"""What every store keeps, and which names it takes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from downpour.base.errors import FileCorrupt, FileMissing, StoreError
from downpour.base.values import PublishedFile
from downpour.files.store import DirectoryStore, Store
from downpour.files.store.bucket import Bucket
from downpour.files.store.directory import FileCache, ObjectFiles, read_regular
from downpour.files.store.layout import MemoryStore, check_bare_name
from downpour.files.store.publish import RetryPolicy


def _objects(path: Path) -> Store:
    from obstore.store import MemoryStore as Objects

    bucket = Bucket("s3://memory", Objects())
    return ObjectFiles(bucket, "experiments/a", FileCache(path), RetryPolicy(seconds=0))


STORES: dict[str, Callable[[Path], Store]] = {
    "directory": lambda path: DirectoryStore(path, RetryPolicy(seconds=0)),
    "memory": lambda _path: MemoryStore(),
    "objects": _objects,
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """One store of each kind."""
    return STORES[request.param](tmp_path)


def test_published_bytes_can_be_read(store: Store) -> None:
    """The chunks come back joined and read-only, with size and checksum as they were reported."""
    file = store.put_new("a", [b"one ", bytearray(b"two "), memoryview(b""), memoryview(b"three")])
    whole = b"one two three"
    checksum = xxhash.xxh3_128_hexdigest(whole)
    assert file == PublishedFile(name="a", size_bytes=len(whole), checksum=checksum)
    for verified in (False, True):
        content = store.read(file, verified=verified)
        assert bytes(content) == whole
        assert content.readonly


def test_a_packed_file_is_read_as_what_was_put(store: Store, tmp_path: Path) -> None:
    """It has the checksum of its content, and is told from a damaged one."""
    chunks = [b"head", bytes(9000)]
    content, plain = b"".join(chunks), store.put_new("plain", chunks)
    file = store.put_new("a", chunks, packs=True)
    assert store.describe("a") == file
    assert file.checksum == plain.checksum
    assert bytes(store.read(file)) == bytes(store.read(store.link(file, "b"))) == content
    if isinstance(store, DirectoryStore):
        assert file.size_bytes == (tmp_path / "a").stat().st_size < 200
        assert read_regular(tmp_path / "a") == content
        (tmp_path / "c").write_bytes((tmp_path / "a").read_bytes()[:-2])
        with pytest.raises(FileCorrupt, match="its end is missing"):
            read_regular(tmp_path / "c")
        for place in (20, -1):
            held = bytearray((tmp_path / "b").read_bytes())
            held[place] ^= 255
            (tmp_path / "b").write_bytes(held)
            with pytest.raises(FileCorrupt):
                store.read(replace(file, name="b"))


def test_chunks_may_change_after_publishing(store: Store) -> None:
    """The store keeps a copy."""
    chunk = bytearray(b"before")
    file = store.put_new("a", [chunk])
    chunk[:] = b"after!"
    assert bytes(store.read(file)) == b"before"


def test_a_file_may_have_a_second_name(store: Store) -> None:
    """It outlives the first one, and no name is taken twice."""
    file = store.put_new("a", [b"bytes"])
    assert store.link(file, "b") == replace(file, name="b")
    with pytest.raises(StoreError, match="already published"):
        store.link(store.put_new("c", [b"others"]), "b")
    store.delete("a")
    assert bytes(store.read(replace(file, name="b"))) == b"bytes"
    assert store.list() == ["b", "c"]


def test_an_empty_file_is_a_file(store: Store) -> None:
    """No chunks at all make a file of no bytes."""
    file = store.put_new("empty", [])
    assert file.size_bytes == 0
    assert bytes(store.read(file)) == b""


def test_names_are_never_reused(store: Store) -> None:
    """A second file of one name is refused, and the first stays as it is."""
    file = store.put_new("a", [b"first"])
    with pytest.raises(StoreError, match="never reuses"):
        store.put_new("a", [b"second"])
    assert bytes(store.read(file)) == b"first"


def test_a_failing_source_publishes_nothing(store: Store) -> None:
    """Where the chunks fail midway, no name appears."""

    def chunks() -> object:
        yield b"half"
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="broke"):
        store.put_new("a", chunks())  # type: ignore[arg-type]
    assert store.list() == []


@pytest.mark.parametrize("verified", [False, True])
def test_a_missing_file_and_one_of_another_size_are_told(store: Store, *, verified: bool) -> None:
    """By name, verified or not."""
    never = PublishedFile(name="never", size_bytes=1, checksum="0" * 32)
    with pytest.raises(FileMissing, match="never"):
        store.read(never, verified=verified)
    file = replace(store.put_new("a", [b"bytes"]), size_bytes=9)
    with pytest.raises(FileCorrupt, match="holds 5 bytes, but 9 were published"):
        store.read(file, verified=verified)


def test_another_checksum_shows_only_where_it_is_verified(store: Store) -> None:
    """The fold hashes on its own."""
    file = replace(store.put_new("a", [b"bytes"]), checksum="0" * 32)
    assert bytes(store.read(file, verified=False)) == b"bytes"
    with pytest.raises(FileCorrupt, match="checksum"):
        store.read(file)


def test_a_file_of_which_only_the_name_is_known(store: Store) -> None:
    """It can be described, and read up to a limit; a missing one is missing."""
    file = store.put_new("a", [b"one ", b"two"])
    assert store.describe("a") == file
    assert store.read_unchecked("a", limit_bytes=5) == b"one t"
    for door in (store.describe, lambda name: store.read_unchecked(name, limit_bytes=1)):
        with pytest.raises(FileMissing, match="never"):
            door("never")


def test_the_list_is_sorted(store: Store) -> None:
    """Names are listed in their order, not in that of publishing."""
    for name in ("b", "c", "a"):
        store.put_new(name, [])
    assert store.list() == ["a", "b", "c"]


def test_deleting_twice_is_fine_and_views_survive_it(store: Store) -> None:
    """A deleted file is gone for everybody, but whoever looks at it may go on."""
    file = store.put_new("a", [b"bytes"])
    view = store.read(file)
    store.delete("a")
    store.delete("a")
    assert store.list() == []
    with pytest.raises(FileMissing):
        store.describe("a")
    assert bytes(view) == b"bytes"
    other = store.put_new("a", [b"other"])
    assert bytes(store.read(other)) == b"other"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "/a", "../a", "a\\b", "a\0b", ".hidden", "a\nb", "x" * 201, "é" * 101],
)
def test_names_that_are_not_bare_are_refused_everywhere(store: Store, name: str) -> None:
    """Nothing that could name a thing outside the directory passes any door."""
    with pytest.raises(StoreError, match="not a bare name"):
        check_bare_name(name)
    file = PublishedFile(name=name, size_bytes=0, checksum="")
    doors: list[Callable[[], object]] = [
        lambda: store.put_new(name, []),
        lambda: store.read(file),
        lambda: store.delete(name),
    ]
    for door in doors:
        with pytest.raises(StoreError, match="not a bare name"):
            door()
    assert store.list() == []


@pytest.mark.parametrize("name", ["a", "model-000001-abc.safetensors", "x" * 200, "é" * 100])
def test_ordinary_names_pass(name: str) -> None:
    """A bare name of up to 200 bytes is returned as it is."""
    assert check_bare_name(name) == name
