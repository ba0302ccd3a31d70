"""Well-known datasets: found or downloaded once, in the layouts that they have."""

import gzip
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import open_prepared, prepare
from downpour.learning.datasets.built_in import found_or_downloaded

from .conftest import IDX_STEMS, write_idx

MNIST = Spec.make({"dataset": "mnist"})

CIFAR = Spec.make({"dataset": "cifar10"})


def test_four_files_become_a_prepared_dataset(tmp_path: Path) -> None:
    """Images and labels come through unchanged, with MNIST's usual statistics."""
    arrays = write_idx(tmp_path / "data" / "MNIST")
    dataset = open_prepared(tmp_path, prepare(MNIST, tmp_path, tmp_path / "data"))
    assert np.array_equal(dataset.train.x[..., 0], arrays[IDX_STEMS[0]])
    assert np.array_equal(dataset.test.y, arrays[IDX_STEMS[3]])
    assert dataset.facts.sample_shape == (1, 28, 28)
    assert dataset.mean / 255 == pytest.approx([0.1307])
    assert dataset.std / 255 == pytest.approx([0.3081])


def test_the_cache_is_searched_after_the_data_folder(tmp_path: Path) -> None:
    """Files in `downloads` under the datasets are found when no data folder has them."""
    write_idx(tmp_path / "downloads" / "FashionMNIST")
    key = prepare(Spec.make({"dataset": "fashion-mnist"}), tmp_path, tmp_path / "elsewhere")
    assert open_prepared(tmp_path, key).facts.train_samples == 30


def test_archives_in_the_data_folder_are_unpacked_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder with the four downloaded archives alone is enough, and nothing is written there."""
    data = tmp_path / "data"
    arrays = write_idx(data / "MNIST")
    sums = []
    for file in sorted((data / "MNIST" / "raw").iterdir()):
        archive = file.with_name(f"{file.name}.gz")
        archive.write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
        sums.append((archive.name, md5(archive.read_bytes(), usedforsecurity=False).hexdigest()))
    monkeypatch.setattr("torchvision.datasets.MNIST.resources", sums)
    dataset = open_prepared(tmp_path, prepare(MNIST, tmp_path, data))
    assert np.array_equal(dataset.train.x[..., 0], arrays[IDX_STEMS[0]])
    assert sorted(path.name for path in (data / "MNIST" / "raw").iterdir()) == [n for n, _ in sums]


@pytest.mark.parametrize(("spec", "folder"), [(MNIST, "MNIST"), (CIFAR, "cifar-10-batches-bin")])
def test_a_failed_download_ends_in_one_line_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Spec, folder: str
) -> None:
    """The message names --data-dir, DOWNPOUR_DATA and the folder of the files."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(SpecError) as refusal:
        prepare(spec, tmp_path)
    assert refusal.value.field == "dataset"
    for part in ("--data-dir", "DOWNPOUR_DATA", f"holds {folder}/"):
        assert part in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"\0\0\x08", b"\0\0\x08\x01\0\0\0\x3cx"])
def test_a_damaged_file_is_refused_by_its_folder(tmp_path: Path, content: bytes) -> None:
    """Empty and cut files are not trained on."""
    write_idx(tmp_path / "MNIST")
    (tmp_path / "MNIST" / "raw" / "train-labels-idx1-ubyte").write_bytes(content)
    with pytest.raises(SpecError, match="dataset = 'mnist': MNIST/ cannot be read"):
        prepare(MNIST, tmp_path, tmp_path)


def test_a_pickle_beside_the_files_is_not_opened(tmp_path: Path) -> None:
    """Torchvision itself would prefer one, as older releases left it."""
    write_idx(tmp_path / "MNIST")
    processed = tmp_path / "MNIST" / "processed"
    processed.mkdir()
    for name in ("training.pt", "test.pt"):
        (processed / name).write_bytes(b"no pickle")
    assert open_prepared(tmp_path, prepare(MNIST, tmp_path, tmp_path)).facts.train_samples == 30


def write_batches(folder: Path, records: int = 4) -> None:
    """Write six small batch files whose red, green and blue are 10, 20 and 30."""
    folder.mkdir(parents=True)
    planes = np.repeat(np.array([10, 20, 30], np.uint8), 1024)
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        content = b"".join(bytes([label % 10]) + planes.tobytes() for label in range(records))
        (folder / f"{name}.bin").write_bytes(content)


def test_records_become_color_images(tmp_path: Path) -> None:
    """Five batches make the training set; planes become channels at the end."""
    write_batches(tmp_path / "data" / "cifar-10-batches-bin")
    dataset = open_prepared(tmp_path, prepare(CIFAR, tmp_path, tmp_path / "data"))
    assert dataset.train.x.shape == (20, 32, 32, 3)
    assert dataset.train.x[7, 3, 5].tolist() == [10, 20, 30]
    assert dataset.test.y.tolist() == [0, 1, 2, 3]
    assert dataset.facts.sample_shape == (3, 32, 32)
    assert dataset.mean / 255 == pytest.approx([0.4914, 0.4822, 0.4465])


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    """A batch that ends inside a record is named."""
    write_batches(tmp_path / "cifar-10-batches-bin")
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SpecError, match=r"data_batch_3\.bin"):
        prepare(CIFAR, tmp_path, tmp_path)


def test_the_real_mnist_is_read(tmp_path: Path, real_data: Path) -> None:
    """60,000 and 10,000 images of ten classes; the first label is the well-known five."""
    dataset = open_prepared(tmp_path, prepare(MNIST, tmp_path, real_data))
    facts = dataset.facts
    assert (facts.train_samples, facts.test_samples, facts.classes) == (60_000, 10_000, 10)
    assert dataset.labels is not None
    assert dataset.labels[0] == 5
    dataset.train.verify(None)
    assert float(dataset.train.x.mean()) == pytest.approx(float(dataset.mean[0]), rel=1e-3)


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
