"""Files of named arrays; limits, layouts and statistics, the same for every source."""

import io
import math
import os
import shutil
import statistics
import zipfile
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from downpour.base.errors import SpecError, StoreError
from downpour.core.spec import Spec
from downpour.learning.datasets import (
    PreparedDataset,
    check_source,
    decoded,
    open_prepared,
    prepare,
    source,
)
from downpour.learning.datasets.source import Arrays
from tests.learning.datasets.conftest import npz_spec


def prepared(folder: Path, **arrays: Any) -> PreparedDataset:
    """Save arrays and prepare them as a dataset."""
    spec = npz_spec(folder, **arrays)
    check_source(spec)
    (folder / "datasets").mkdir(exist_ok=True)
    return open_prepared(folder / "datasets", prepare(spec, folder / "datasets"))


def test_the_medmnist_layout_is_read_and_validation_left_alone(tmp_path: Path) -> None:
    """Labels [n, 1] become classes [n]; uint8 arrays become images."""
    images = np.arange(6 * 28 * 28, dtype=np.uint8).reshape(6, 28, 28)
    dataset = prepared(
        tmp_path,
        train_images=images,
        train_labels=np.array([[0], [1], [0], [1], [0], [1]], np.uint8),
        val_images=images[:1],
        val_labels=np.zeros((1, 1), np.uint8),
        test_images=images[:2],
        test_labels=np.array([[1], [0]], np.uint8),
    )
    assert dataset.images
    assert dataset.facts.classes == 2
    assert np.array_equal(dataset.train.x[..., 0], images)
    assert dataset.test.y.tolist() == [1, 0]


def test_x_and_y_without_a_test_part_are_cut(tmp_path: Path) -> None:
    """A fifth is held out, by class; every example is in exactly one part."""
    x = np.arange(100, dtype=np.float64).reshape(50, 2)
    dataset = prepared(tmp_path, x=x, y=np.repeat([0, 1], 25))
    assert np.bincount(dataset.test.y).tolist() == [5, 5]
    both = np.concatenate([dataset.train.x, dataset.test.x])
    assert np.array_equal(np.sort(both[:, 0]), x[:, 0].astype(np.float32))


def test_x_and_y_with_a_test_part_are_left_as_they_are(tmp_path: Path) -> None:
    """The order and the parts are the user's."""
    x, y = np.arange(8.0).reshape(4, 2), np.array([0, 1, 2, 0])
    dataset = prepared(tmp_path, x=x, y=y, x_test=x[:1], y_test=y[:1])
    assert np.array_equal(dataset.train.x, x)
    assert dataset.train.x.dtype == np.float32
    assert len(dataset.test) == 1


def test_targets_of_zeros_and_ones_are_no_classes(tmp_path: Path) -> None:
    """Labels [n, k] stay as k targets for binary cross-entropy."""
    y = np.eye(3, dtype=np.int64)[np.arange(10) % 3]
    dataset = prepared(tmp_path, x=np.ones((10, 4)), y=y, x_test=np.ones((1, 4)), y_test=y[:1])
    assert (dataset.facts.classes, dataset.facts.targets_per_sample) == (0, 3)
    assert dataset.labels is None


@pytest.mark.parametrize(
    ("arrays", "accepted"),
    [
        ({"a": np.ones(3)}, "train_images"),
        (
            {"x": np.ones((5, 2)), "y": np.ones(4)},
            "the numbers of labels and examples must be equal",
        ),
        ({"x": np.ones((5, 2)), "y": np.full(5, -1)}, "class numbers"),
        ({"x": np.ones((5, 2)), "y": np.full(5, 0.5)}, "class numbers"),
        ({"x": np.ones((5, 2)), "y": np.full(5, np.nan)}, "class numbers"),
        ({"x": np.ones((5, 2)), "y": np.arange(5) * 10**12}, "class numbers"),
        ({"x": np.ones((5, 2)), "y": np.array(["cat"] * 5)}, "not numeric"),
        ({"x": np.ones((5, 2)), "y": np.int64(3)}, "labels"),
        ({"x": np.ones((5, 2)), "y": np.full((5, 2, 2), 5)}, "labels"),
        ({"x": np.ones((5, 2))}, "train_images"),
        ({"y": np.zeros(5)}, "train_images"),
        ({"x": np.float32(3), "y": np.zeros(5)}, "x is no array"),
        ({"x": np.ones((5, 2), complex), "y": np.zeros(5)}, "not numeric"),
        ({"x": np.ones((5, 2), "datetime64[s]"), "y": np.zeros(5)}, "not numeric"),
        ({"x": np.full((5, 2), np.nan), "y": np.zeros(5)}, "finite"),
        ({"x": np.full((5, 2), 1e300), "y": np.zeros(5)}, "finite"),
        ({"x": np.ones((5, 2)), "y": np.full((5, 2), 2)}, "zeros and ones"),
        ({"x": np.array(["a"] * 5), "y": np.zeros(5)}, "not numeric"),
        ({"x": np.ones((0, 2)), "y": np.zeros(0)}, "no training"),
        ({"x": np.ones((5, 0)), "y": np.zeros(5)}, "or empty ones"),
        ({"x": np.ones((5, 2)), "y": np.zeros((5, 0))}, "or empty ones"),
        ({"x": np.zeros((5, 7, 7, 7), np.uint8), "y": np.zeros(5)}, "1, 3 or 4 channels"),
        ({"x": np.ones((5, 2)), "y": np.zeros(5), "x_test": np.ones((2, 2))}, "has only x_test"),
        ({"x": np.ones((5, 2)), "y": np.zeros(5), "y_test": np.ones(2)}, "has only y_test"),
        ({"x": np.ones((5, 2)), "y": np.zeros(5), "mask": np.ones(5)}, "cannot use mask"),
        ({"x": np.ones((5, 2)), "y": np.zeros(5), "normalize": np.ones(5)}, "true or false"),
        ({"x": np.ones((5, 2), np.int64), "y": np.zeros(5)}, "normalize = true"),
        ({"x": np.ones((5, 2), np.uint8), "y": np.zeros(5)}, "normalize = true"),
        ({"x": np.full((5, 2), 2**25), "y": np.zeros(5), "normalize": False}, "exact in float32"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(
    tmp_path: Path, arrays: dict[str, Any], accepted: str
) -> None:
    """Each misfit costs one line that says what would be accepted."""
    with pytest.raises(SpecError, match=accepted) as refusal:
        prepared(tmp_path, **arrays)
    assert str(refusal.value).startswith(("dataset = 'npz'", "data_path = "))
    assert "\n" not in str(refusal.value)


def test_token_ids_are_handed_over_as_they_are(tmp_path: Path) -> None:
    """Where `normalize` is false; every id up to 2^24 is exact in float32."""
    tokens = np.array([[0, 50_256], [2**24, 7]] * 5)
    dataset = prepared(tmp_path, x=tokens, y=np.arange(10) % 2, normalize=False)
    assert not dataset.normalized
    assert (dataset.mean.tolist(), dataset.std.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert set(dataset.train.x.ravel().tolist()) == set(tokens.ravel().tolist())
    assert "not normalized" in dataset.understood


def test_integers_that_are_amounts_are_normalized_when_said_so(tmp_path: Path) -> None:
    """As floats are."""
    ages = np.arange(40).reshape(20, 2)
    whole = prepared(tmp_path, x=ages, y=np.arange(20) % 2, normalize=True)
    floats = prepared(tmp_path, x=ages.astype(float), y=np.arange(20) % 2)
    assert np.array_equal(whole.mean, floats.mean)
    assert np.array_equal(whole.train.x, floats.train.x)


def with_member(folder: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Spec:
    """Write a file whose member x has this content; returns a spec that names it."""
    path = folder / "set.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("x.npy", content)
    return Spec.make({"dataset": "npz", "data_path": str(path)})


def head(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    """Return the head of an array of this shape, without its bytes."""
    written = io.BytesIO()
    described = {"descr": dtype, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(written, described)
    return written.getvalue()


@pytest.mark.parametrize(
    ("content", "accepted"),
    [
        (head((10**9, 10**9)), "claims 8000000000000000000 bytes, but holds 0"),
        (head((10**30,)), "but holds 0"),
        (head((-1, 4)), "cannot be read"),
        (head((1,) * 40), "cannot be read"),
        (head((2,), "<q9"), "cannot be read"),
        (head((3,)), "claims 24 bytes, but holds 0"),
        (head((1,), "|O8") + bytes(8), "npy holds Python objects, not numbers"),
        (b"\x93NUMPY\x01\x00\x06\x00{'descr", "cannot be read"),
        (b"\x93NUMPY\x09\x00", "cannot be read"),
        (b"no array", "cannot be read"),
        (b"", "cannot be read"),
    ],
)
def test_a_head_that_cannot_be_true_is_refused_before_anything_is_read(
    tmp_path: Path, content: bytes, accepted: str
) -> None:
    """One line names the field and the file; no memory is taken for what is promised."""
    with pytest.raises(SpecError, match=accepted) as refusal:
        check_source(with_member(tmp_path, content))
    assert str(refusal.value).startswith("data_path = 'set.npz': ")
    assert "\n" not in str(refusal.value)


def test_arrays_larger_than_the_disk_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file may hold more than any machine has, for zeros pack well; others fill it, too."""
    monkeypatch.setattr(source, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=10**6))
    x = np.zeros((100_000, 2))
    with pytest.raises(SpecError, match=r"needs 1\.6 MB, but only 1 MB are free"):
        prepared(tmp_path, x=x, y=np.zeros(100_000))
    full = os.fdopen(os.open("/dev/full", os.O_RDWR), "w+b")
    monkeypatch.setattr(source, "TemporaryFile", lambda **_: full)
    with pytest.raises(StoreError, match=r"\(DOWNPOUR_LOCAL\): full \(No space left on device\)"):
        source.stored([b"x"], 1)


@pytest.mark.parametrize(
    "x",
    [
        np.random.default_rng(0).random((60, 3, 7)),
        np.asfortranarray(np.random.default_rng(0).random((60, 5), np.float32)),
        np.random.default_rng(0).random((6000, 1)),
        np.random.default_rng(0).integers(0, 256, (60, 3, 9, 9), np.uint8),
    ],
    ids=["numbers", "columns", "one feature", "images"],
)
def test_what_is_larger_than_memory_is_prepared_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, x: NDArray[Any]
) -> None:
    """To the same key; the mean and the deviation are those of numpy, to the bit."""
    np.savez_compressed(tmp_path / "set.npz", x=x, y=np.arange(len(x)) % 2)
    fields = {"dataset": "npz", "data_path": str(tmp_path / "set.npz")}
    spec = Spec.make(fields | ({"image_size": 4} if x.ndim == 4 else {}))
    key = prepare(spec, tmp_path)
    known = open_prepared(tmp_path, key)
    shutil.rmtree(tmp_path / "sources")
    monkeypatch.setattr(source, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(source, "_ROWS_BYTES", 100)
    assert prepare(spec, tmp_path) == key
    if not known.images:
        assert np.isin(known.train.x[:, 0], x[:, 0].astype(np.float32)).all()
        spread = known.train.x.std(axis=0, dtype=float)
        assert known.mean.tobytes() == known.train.x.mean(axis=0, dtype=float).tobytes()
        assert known.std.tobytes() == np.where(spread > 0, spread, 1.0).tobytes()


def test_an_encrypted_file_is_refused(tmp_path: Path) -> None:
    """As encrypted, not for a missing password, which there is no way to give."""
    spec = npz_spec(tmp_path, x=np.ones((10, 2)), y=np.arange(10) % 2)
    path = tmp_path / "set.npz"
    content = path.read_bytes().replace(
        b"PK\x01\x02\x2d\x03\x2d\x00\x00", b"PK\x01\x02\x2d\x03\x2d\x00\x01"
    )
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"x\.npy is encrypted"):
        check_source(spec)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_damaged_file_is_refused_wherever_the_damage_is(
    tmp_path: Path, *, compressed: bool
) -> None:
    """Each byte in turn is spoilt: the file is refused by name, or its examples are unharmed."""
    path = tmp_path / "set.npz"
    save = np.savez_compressed if compressed else np.savez
    save(path, x=np.arange(20.0).reshape(10, 2), y=np.arange(10) % 2)
    spec = Spec.make({"dataset": "npz", "data_path": str(path)})
    whole = path.read_bytes()
    folder = tmp_path / "datasets"
    folder.mkdir()
    key, refused = prepare(spec, folder), set()
    for place in range(0, len(whole), 7):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        os.utime(path, (place + 1, place + 1))
        try:
            check_source(spec)
            assert prepare(spec, folder) == key
        except SpecError as refusal:
            refused.add(refusal.field)
    assert refused == {"data_path"}


def test_another_kind_of_file_is_refused_before_the_start(tmp_path: Path) -> None:
    """check_source refuses a missing path and a file of another kind."""
    path = tmp_path / "set.npz"
    spec = Spec.make({"dataset": "npz", "data_path": str(path)})
    with pytest.raises(SpecError, match="no such file"):
        check_source(spec)
    npz_spec(tmp_path, x=np.ones((10, 2)), y=np.arange(10) % 2)
    whole = path.read_bytes()
    for content in (b"text", b"", bytes(1000), whole[: len(whole) // 2], whole[:-30]):
        path.write_bytes(content)
        with pytest.raises(SpecError, match=r"is not a \.npz file"):
            prepare(spec, tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", b"hello")
    with pytest.raises(SpecError, match="train_images"):
        prepare(spec, tmp_path)


def test_a_relative_path_is_looked_up_in_the_data_folder(tmp_path: Path) -> None:
    """`data_path` may be relative to the folder that --data-dir names."""
    npz_spec(tmp_path, x=np.ones((10, 2)), y=np.arange(10) % 2)
    check_source(Spec.make({"dataset": "npz", "data_path": "set.npz"}), tmp_path)


def test_the_real_pneumonia_set_is_read(tmp_path: Path, real_data: Path) -> None:
    """MedMNIST's chest X-rays: gray images of two classes."""
    path = real_data / "pneumoniamnist" / "pneumoniamnist.npz"
    if not path.is_file():
        pytest.skip("PneumoniaMNIST is not in the data folder")
    spec = Spec.make({"dataset": "npz", "data_path": str(path)})
    facts = open_prepared(tmp_path, prepare(spec, tmp_path)).facts
    assert (facts.train_samples, facts.sample_shape, facts.classes) == (2428, (1, 28, 28), 2)


def decode(x: NDArray[Any], y: NDArray[Any], **fields: Any) -> SimpleNamespace:
    """Decode a set whose test part is its training part."""
    arrays = Arrays(train_x=x, train_y=y, test_x=x, test_y=y)
    facts, named = decoded(arrays, Spec.make(fields))
    return SimpleNamespace(**facts, **named)


def test_images_with_channels_first_are_turned(rng_images: NDArray[np.uint8]) -> None:
    """[n, c, h, w] and [n, h, w, c] of the same images decode to the same."""
    last = decode(rng_images, np.arange(6))
    first = decode(np.ascontiguousarray(rng_images.transpose(0, 3, 1, 2)), np.arange(6))
    assert np.array_equal(last.train_x, first.train_x)


@pytest.fixture
def rng_images() -> NDArray[np.uint8]:
    """Six color images of 9 x 11."""
    return np.random.default_rng(1).integers(0, 256, (6, 9, 11, 3), dtype=np.uint8)


@pytest.mark.parametrize("block", [1, 250, 1000])
def test_image_statistics_are_exact(
    rng_images: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """Whole numbers, some images at a time: no processor's rounding decides the key of the data."""
    monkeypatch.setattr(source, "_ROWS_BYTES", block)
    found = decode(rng_images, np.arange(6))
    for channel, (mean, std) in enumerate(zip(found.mean, found.std, strict=True)):
        values = rng_images[..., channel].ravel().tolist()
        assert mean == float(statistics.mean(map(Fraction, values)))
        assert std == math.sqrt(statistics.pvariance(map(Fraction, values)))


def test_numbers_are_standardized_by_feature() -> None:
    """One mean and deviation a feature; a constant feature keeps a deviation of one."""
    x = np.array([[1.0, 5.0], [3.0, 5.0]])
    found = decode(x, np.array([0, 1]))
    assert found.mean == (2.0, 5.0)
    assert found.std == (1.0, 1.0)


def test_limits_take_the_first_and_keep_the_classes() -> None:
    """The number of classes is the whole set's, so that a limit does not change the network."""
    found = decode(np.zeros((10, 2)), np.arange(10), train_limit=3, test_limit=2)
    assert (len(found.train_x), len(found.test_x), found.classes) == (3, 2, 10)


def test_resizing_what_is_no_image_is_refused() -> None:
    """The refusal names image_size."""
    with pytest.raises(SpecError, match="image_size"):
        decode(np.zeros((10, 2)), np.arange(10), image_size=8)


def test_parts_that_differ_are_refused() -> None:
    """Training and test examples must have one shape."""
    arrays = Arrays(
        train_x=np.zeros((4, 2)), train_y=np.arange(4), test_x=np.zeros((4, 3)), test_y=np.arange(4)
    )
    with pytest.raises(SpecError, match="differ in shape"):
        decoded(arrays, Spec.make({}))


def test_one_class_is_nothing_to_learn() -> None:
    """Every network would be right at once; where a limit is the cause, the limit is named."""
    with pytest.raises(SpecError, match=r"dataset = .* all 6 training examples have class 3"):
        decode(np.zeros((6, 2)), np.full(6, 3))
    with pytest.raises(SpecError, match=r"train_limit = 2: all 2 training examples have class 0"):
        decode(np.zeros((6, 2)), np.array([0, 0, 1, 1, 2, 2]), train_limit=2)


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_amounts_are_not_taken_for_classes(dtype: type) -> None:
    """The diabetes set's targets are whole numbers from 25 to 346, nearly as many as examples."""
    amounts: NDArray[Any] = (np.arange(442) * 37 % 322 + 25).astype(dtype)
    with pytest.raises(SpecError, match=r"up to 346 in 884 examples, which would make 347 classes"):
        decode(np.zeros((442, 10)), amounts)


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.arange(100.0, dtype=np.float16) % 3, 3),
        (np.arange(100) % 10 * 2, 19),
        (np.arange(6), 6),
        (np.array([True, False] * 4), 2),
    ],
)
def test_class_numbers_are_taken_as_they_are(labels: NDArray[Any], classes: int) -> None:
    """Floats without gaps, integers with gaps that come up often, a few of each, booleans."""
    assert decode(np.zeros((len(labels), 2)), labels).classes == classes


def test_classes_without_examples_are_remarked() -> None:
    """Classes without training examples; else nothing."""
    x = np.zeros((40, 2))
    assert decode(x, np.arange(40) % 4).remarks == ()
    [missing] = decode(x, np.arange(40) % 10, train_limit=7).remarks
    assert missing == "3 of 10 classes have no training examples: 7, 8, 9"
