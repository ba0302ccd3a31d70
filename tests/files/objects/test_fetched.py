"""Datasets in an object store: fetched once by a machine, and again where they have changed."""

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import obstore
import pytest
from obstore.store import MemoryStore

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.files.store.bucket import Bucket
from downpour.learning import datasets
from downpour.learning.datasets.source import local_path
from downpour.learning.on_demand import ImageFolder, TokenWindows
from tests.files.objects.cloud import Cloud
from tests.files.objects.lab import S3Server

URL = "s3://bucket/place/set.npz"


def npz(seed: int = 0, examples: int = 40) -> bytes:
    """A file of arrays."""
    random, file = np.random.default_rng(seed), io.BytesIO()
    np.savez(
        file,
        x=random.normal(size=(examples, 4)).astype(np.float32),
        y=np.arange(examples) % 2,
        x_test=random.normal(size=(8, 4)).astype(np.float32),
        y_test=np.arange(8) % 2,
    )
    return file.getvalue()


@pytest.fixture
def put(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], object]:
    """Put an object into the cloud, on a machine that has a folder of its own."""
    cloud.on("here")
    monkeypatch.setattr(Bucket, "at", lambda url: Bucket(url, _below(cloud.objects, url)))
    return lambda key, content: obstore.put(cloud.objects, key, content)


def _below(objects: MemoryStore, url: str) -> MemoryStore:
    """The objects of a place, as a store of their own: the one in memory has no prefix."""
    prefix = url.removeprefix("s3://bucket").strip("/")
    found, part = MemoryStore(), f"{prefix}/" if prefix else ""
    for meta in (meta for page in obstore.list(objects) for meta in page):
        if meta["path"].startswith(part):
            content = bytes(obstore.get(objects, meta["path"]).bytes())
            obstore.put(found, meta["path"].removeprefix(part), content)
    return found


def fetches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that are fetched from now on."""
    keys: list[str] = []
    fetch = Bucket.fetch

    def noted(bucket: Bucket, key: str, path: Path) -> None:
        keys.append(key)
        fetch(bucket, key, path)

    monkeypatch.setattr(Bucket, "fetch", noted)
    return keys


def test_a_file_is_read_as_if_it_lay_here(
    put: Callable[[str, bytes], object], tmp_path: Path
) -> None:
    """The prepared dataset is that of the same bytes on the disk."""
    put("place/set.npz", npz())
    (tmp_path / "set.npz").write_bytes(npz())
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    keys = [
        datasets.prepare(Spec(dataset="npz", data_path=path), folder, None)
        for folder, path in ((tmp_path / "a", URL), (tmp_path / "b", str(tmp_path / "set.npz")))
    ]
    assert keys[0] == keys[1]


def test_a_folder_has_what_the_store_has(
    put: Callable[[str, bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was removed there goes here as well; what is only called alike is not taken."""
    for key in ("place/set/a/1.png", "place/set/b/1.png", "place/set/b/2.png", "place/set-2/x"):
        put(key, key.encode())
    folder = local_path("data_path", "s3://bucket/place/set")
    names = [str(path.relative_to(folder)) for path in folder.rglob("*.png")]
    assert sorted(names) == ["a/1.png", "b/1.png", "b/2.png"]
    assert not (folder.parent / "set-2").exists()
    whole = Bucket.found
    monkeypatch.setattr(
        Bucket, "found", lambda self, place: [x for x in whole(self, place) if "b/1" in x.key]
    )
    assert local_path("data_path", "s3://bucket/place/set/") == folder
    assert [*folder.rglob("*.png")] == [folder / "b" / "1.png"]
    assert [*folder.iterdir()] == [folder / "b"], "an empty folder would be a class"


def test_only_what_changed_or_is_gone_is_fetched_again(
    s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A changed object by its tag, a file that was removed here by its absence, nothing else."""
    monkeypatch.setenv("DOWNPOUR_LOCAL", str(tmp_path / "here"))
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store, url = s3.objects("bucket", tmp_path.name), f"s3://bucket/{tmp_path.name}/set"
    for key in ("set/a", "set/b"):
        obstore.put(store, key, b"first")
    fetched = fetches(monkeypatch)
    folder = local_path("data_path", url)
    local_path("data_path", url)
    assert sorted(fetched) == ["set/a", "set/b"]
    obstore.put(store, "set/b", b"other")
    (folder / "a").unlink()
    local_path("data_path", url)
    assert sorted(fetched) == ["set/a", "set/a", "set/b", "set/b"]
    assert (folder / "b").read_bytes() == b"other"


def test_a_tasks_own_data_may_be_there(put: Callable[[str, bytes], object]) -> None:
    """Tokens are mapped from the file that was fetched; a folder without images says so."""
    put("place/tokens.bin", np.arange(100, dtype=np.uint16).tobytes())
    put("place/empty/notes.txt", b"none")
    windows = TokenWindows("s3://bucket/place/tokens.bin", 8)
    assert windows[1][0].tolist() == list(range(8, 16))
    with pytest.raises(SpecError, match="root = 's3://bucket/place/empty'"):
        ImageFolder("s3://bucket/place/empty")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://bucket/place/none.npz", "no such object or folder"),
        ("s3://bucket", "must name an object or a folder in the bucket"),
        ("s3://bucket//x", "must look like s3://BUCKET/PREFIX"),
        ("s3://bucket/place/text", "is not a .npz file"),
    ],
)
def test_an_unreadable_url_is_one_line(
    put: Callable[[str, bytes], object], tmp_path: Path, url: str, reason: str
) -> None:
    """It names the field, the URL and what is accepted."""
    put("place/text", b"text")
    with pytest.raises(SpecError) as refusal:
        datasets.prepare(Spec(dataset="npz", data_path=url), tmp_path, None)
    assert str(refusal.value).startswith(f"data_path = '{url}': {reason}")


@pytest.mark.slow
def test_a_run_trains_on_a_file_of_a_bucket(s3: S3Server, tmp_path: Path) -> None:
    """Without anything but the URL; the bytes are those of a run on the same file."""
    store = s3.objects("bucket", tmp_path.name)
    obstore.put(store, "set.npz", npz(examples=200))
    (tmp_path / "set.npz").write_bytes(npz(examples=200))
    models = []
    for number, path in enumerate((f"s3://bucket/{tmp_path.name}/set.npz", tmp_path / "set.npz")):
        shared = tmp_path / f"shared-{number}"
        words = ["run", "--dataset", "npz", "--data-path", str(path), "--model", "mlp"]
        words += ["--epochs", "2", "--on", "inline", "--workers", "2", "--shared", str(shared)]
        done = subprocess.run(
            [sys.executable, "-m", "downpour", *words],
            env={**s3.process_environment, "DOWNPOUR_LOCAL": str(tmp_path / "local")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        models += [path.read_bytes() for path in shared.rglob("model.safetensors")]
    assert len(models) == 2
    assert models[0] == models[1]
