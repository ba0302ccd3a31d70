"""A bucket: over the wire to a server that honours conditions, and to such as do not."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import NotSupportedError
from obstore.store import MemoryStore, ObjectStore, S3Store

from downpour.base.errors import FileMissing, SharedDirectoryError, SpecError
from downpour.files.store import bucket as bucket_module
from downpour.files.store.bucket import Bucket, KeyTakenError
from downpour.files.store.directory import FileCache, ObjectFiles
from downpour.files.store.publish import RetryPolicy
from downpour.host.paths import checked_url
from tests.files.objects.lab import ForgetfulS3, MoodyS3, S3Server, environment

SetEnv = Callable[[dict[str, str]], None]


@pytest.fixture
def set_env(monkeypatch: pytest.MonkeyPatch) -> SetEnv:
    """Sets variables of the environment for one test."""

    def put(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.fixture(params=["memory", "s3"])
def bucket(request: pytest.FixtureRequest, set_env: SetEnv) -> Bucket:
    """An empty place in memory, and one at the server."""
    if request.param == "memory":
        return Bucket("s3://memory", MemoryStore())
    server: S3Server = request.getfixturevalue("s3")
    set_env(server.environment)
    name = f"s3://bucket/{abs(hash(request.node.name)):x}"
    return Bucket.at(name)


def test_an_object_is_what_was_put(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bytes and by file, in pieces or at once; listed by folder, not by those below it."""
    bucket.put_new("a/one", b"1")
    (tmp_path / "two").write_bytes(b"22")
    bucket.put_new("a/two", tmp_path / "two")
    bucket.put_new("a/deeper/three", b"333")
    assert bucket.get("a/one") == b"1"
    assert bucket.get("a/two") == b"22"
    assert bucket.names("a") == ["one", "two"]
    bucket.fetch("a/two", tmp_path / "fetched")
    assert (tmp_path / "fetched").read_bytes() == b"22"
    monkeypatch.setattr(bucket_module, "PIECE_BYTES", 2)
    moved: list[int] = []
    assert bucket.get("a/deeper/three", moved.append) == b"333"
    assert moved == [2, 1]
    bucket.fetch("a/deeper/three", tmp_path / "pieces")
    assert (tmp_path / "pieces").read_bytes() == b"333"


def test_a_missing_object_is_missing(bucket: Bucket, tmp_path: Path) -> None:
    """Reading says so by name; removing does not mind; a folder without objects is empty."""
    with pytest.raises(FileMissing, match="never"):
        bucket.get("a/never")
    with pytest.raises(FileMissing, match="never"):
        bucket.fetch("a/never", tmp_path / "never")
    assert not (tmp_path / "never").exists()
    bucket.remove("a/never")
    assert bucket.names("a") == []


def test_of_many_writers_of_a_key_one_succeeds(bucket: Bucket) -> None:
    """Create-if-absent is what publishing rests on."""

    def write(number: int) -> int | None:
        try:
            bucket.put_new("raced", b"%d" % number)
        except KeyTakenError:
            return None
        return number

    # One after the other at first: the server in the tests looks and then writes.
    assert write(99) == 99
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(write, range(16))) == [None] * 16
    assert bucket.get("raced") == b"99"


def test_a_repeated_request_finds_its_own_object(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where an answer was lost the client asks again, and its own object has the key."""
    put: Any = obstore.put

    def twice(*args: object, **options: object) -> object:
        put(*args, **options)
        return put(*args, **options)

    monkeypatch.setattr(obstore, "put", twice)
    bucket.put_new("once", b"x")
    assert bucket.get("once") == b"x"


@pytest.mark.slow
@pytest.mark.parametrize("status", [409, 412])
def test_a_refusal_for_a_key_that_does_not_exist_is_an_outage(status: int, set_env: SetEnv) -> None:
    """S3 may answer so without any such object; a caller that waits and retries gets the name."""
    with MoodyS3(refusals=100, status=status) as server:
        set_env(environment(server.endpoint))
        with pytest.raises(SharedDirectoryError, match="although no such object exists"):
            Bucket.at("s3://bucket").put_new("a", b"x")


@pytest.mark.parametrize("status", [409, 412])
def test_files_are_published_although_the_store_refuses_them_at_first(
    status: int, set_env: SetEnv, tmp_path: Path
) -> None:
    """The retries of the shared directory take a refusal without an object for its outage."""
    with MoodyS3(refusals=2, status=status) as server:
        set_env(environment(server.endpoint))
        file = _files(tmp_path).put_new("a", [b"x"])
        assert Bucket.at("s3://bucket").get(f"folder/{file.name}") == b"x"


def test_a_large_object_has_as_long_as_its_bytes_need(
    set_env: SetEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout of small requests would end its upload, each time that it begins anew."""
    monkeypatch.setattr(bucket_module, "PIECE_BYTES", 2)
    monkeypatch.setattr(bucket_module, "_CLIENT", {"timeout": "100ms"})
    with MoodyS3(seconds=0.3) as server:
        set_env(environment(server.endpoint))
        Bucket.at("s3://bucket").put_new("a", b"333")


def test_one_conflict_is_retried_at_once(set_env: SetEnv) -> None:
    """S3 documents it as such, so a check of the store does not take it for a fault."""
    with MoodyS3(refusals=1, status=409) as server:
        set_env(environment(server.endpoint))
        Bucket.at("s3://bucket").put_new("a", b"x")
        assert Bucket.at("s3://bucket").get("a") == b"x"


def test_a_publication_whose_answers_are_lost_is_not_another_ones(
    set_env: SetEnv, tmp_path: Path
) -> None:
    """One mark serves all attempts, so the attempt after the lost answers finds its own object."""
    with MoodyS3(losses=1, refusals=0) as server:
        set_env(environment(server.endpoint))
        # The client's own retries are off: only those of the shared directory are left.
        bucket = replace(Bucket.at("s3://bucket"), objects=_without_retries(server.endpoint))
        cache = FileCache(tmp_path)
        policy = RetryPolicy(seconds=5.0, sleep=lambda _: None)
        ObjectFiles(bucket, "folder", cache, policy).put_new("a", [b"x"])
        assert bucket.get("folder/a") == b"x"
        with pytest.raises(KeyTakenError):
            bucket.put_new("folder/a", b"another's")


def _files(cache: Path) -> ObjectFiles:
    policy = RetryPolicy(seconds=5.0, sleep=lambda _: None)
    return ObjectFiles(Bucket.at("s3://bucket"), "folder", FileCache(cache), policy)


def _without_retries(endpoint: str) -> ObjectStore:
    return S3Store(
        "bucket",
        endpoint=endpoint,
        access_key_id="tests",
        secret_access_key="tests",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def test_a_large_file_arrives_in_parts_that_count(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name appears with the whole, for one content; what a dead publisher sent is swept."""
    part, copy = 5 * 2**20, obstore.copy

    def unanswered(*args: Any, **options: Any) -> None:
        copy(*args, **options)
        monkeypatch.setattr(obstore, "copy", copy)
        raise FileNotFoundError("no such upload")

    monkeypatch.setattr(bucket_module, "PIECE_BYTES", part)
    monkeypatch.setattr(bucket_module, "_PART_BYTES", part)
    monkeypatch.setattr(obstore, "copy", unanswered)
    moved: list[int] = []
    policy = RetryPolicy(seconds=5.0, sleep=lambda _: None)
    store = ObjectFiles(bucket, "folder", FileCache(tmp_path), policy, moved.append)
    file = store.put_new("a", [bytes(2 * part), b"end"])
    assert moved == [part, part + 3]
    assert bucket.get("folder/a") == bytes(2 * part) + b"end"
    assert bucket.keys("folder") == ["folder/a"]
    with pytest.raises(KeyTakenError):
        store.put_new("a", [bytes(2 * part), b"END"])
    bucket.put("folder/.unnamed/dead", b"x")
    assert store.list() == [file.name]
    store.remove_leftovers()
    assert bucket.keys("folder") == ["folder/a"]


@pytest.mark.parametrize("error", [None, NotSupportedError("no copies")])
def test_a_store_that_copies_to_taken_keys_gets_a_large_file_whole(
    error: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does one that cannot copy: its name stays one writer's, and its bytes count late."""

    def copied(*_: object, **__: object) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(bucket_module, "PIECE_BYTES", 2)
    monkeypatch.setattr(obstore, "copy", copied)
    bucket, moved = Bucket("s3://memory", MemoryStore()), list[int]()
    store = ObjectFiles(bucket, "folder", FileCache(tmp_path), RetryPolicy(seconds=0), moved.append)
    store.put_new("a", [b"333"])
    assert (bucket.get("folder/a"), moved) == (b"333", [3])


def test_a_store_that_honours_conditions_passes(bucket: Bucket) -> None:
    """And nothing is left of the probe."""
    bucket.check_conditions()
    assert bucket.names("") == []


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (ForgetfulS3(), "ignores conditional writes"),
        (ForgetfulS3(403, "AccessDenied"), "permission denied"),
        (ForgetfulS3(404, "NoSuchBucket"), "no such bucket"),
        (ForgetfulS3(403, "InvalidAccessKeyId"), "the store does not know the access key"),
    ],
)
def test_a_store_that_cannot_be_used_is_refused_in_one_line(
    server: ForgetfulS3, reason: str, set_env: SetEnv
) -> None:
    """One that ignores conditions, above all: nothing else would show it."""
    set_env(environment(server.endpoint))
    with server, pytest.raises(SharedDirectoryError, match=reason) as caught:
        Bucket.at("s3://bucket/prefix").check_conditions()
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("shared directory s3://bucket/prefix: ")


def test_a_missing_bucket_is_named(s3: S3Server, set_env: SetEnv) -> None:
    """Over the wire, at every door."""
    set_env(s3.environment)
    bucket = Bucket.at("s3://nowhere/x")
    for door in (bucket.check_conditions, lambda: bucket.get("a"), lambda: bucket.names("a")):
        with pytest.raises(SharedDirectoryError, match="no such bucket"):
            door()


def test_a_server_that_is_away_is_an_outage(set_env: SetEnv) -> None:
    """So that reads and writes are retried as those of a folder are."""
    with ForgetfulS3() as gone:
        set_env(environment(gone.endpoint))
    with pytest.raises(SharedDirectoryError) as caught:
        Bucket.at("s3://bucket").get("a")
    assert "\n" not in str(caught.value)
    assert gone.endpoint in str(caught.value)


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///a", "ftp://a/b", "s3://a b", "s3://a//b", "s3://a?x=1", "s3:/a", ""]
)
def test_a_url_without_a_bucket_is_refused(url: str) -> None:
    """With what is accepted."""
    with pytest.raises(SpecError, match="must look like s3://BUCKET/PREFIX"):
        checked_url("shared", url)


def test_a_prefix_needs_no_slash_at_its_end() -> None:
    """Both ways name one place."""
    assert checked_url("shared", "gs://bucket/a/b/") == "gs://bucket/a/b"


def test_missing_credentials_are_named() -> None:
    """Azure's account, here."""
    with pytest.raises(SpecError, match="Account must be specified"):
        Bucket.at("az://container/x")
