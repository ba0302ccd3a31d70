"""Images in folders, one folder a class."""

import os
import re
import shutil
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import SOURCES, check_source, decoded, open_prepared, prepare
from downpour.learning.datasets.images import resized


def draw(path: Path, level: int, mode: str = "L", size: tuple[int, int] = (8, 8)) -> None:
    """Save an image of one gray level."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, level if mode == "L" else (level, level, level)).save(path)


def spec_of(root: Path, **fields: object) -> Spec:
    """Return a spec that trains on a folder."""
    return Spec.make({"dataset": "folder", "data_path": str(root), **fields})


def test_train_and_test_folders_are_read_by_class(tmp_path: Path) -> None:
    """Class numbers follow the sorted names; the pixels are the files'."""
    root = tmp_path / "images"
    for part, count in (("train", 6), ("test", 2)):
        for number in range(count):
            draw(root / part / "cat" / f"{number}.png", 10)
            draw(root / part / "dog" / f"{number}.png", 200)
    dataset = open_prepared(tmp_path, prepare(spec_of(root), tmp_path))
    assert dataset.facts.sample_shape == (1, 8, 8)
    assert (len(dataset.train), len(dataset.test)) == (12, 4)
    assert np.array_equal(dataset.train.x[:, 0, 0, 0], np.where(dataset.train.y == 1, 200, 10))


def test_without_a_test_folder_a_fifth_is_held_out(tmp_path: Path) -> None:
    """Each class gives a fifth; a limit leaves both classes in."""
    root = tmp_path / "images"
    for number in range(10):
        draw(root / "a" / f"{number}.png", 1)
        draw(root / "b" / f"{number}.png", 2)
    whole = open_prepared(tmp_path, prepare(spec_of(root), tmp_path))
    assert np.bincount(whole.test.y).tolist() == [2, 2]
    few = open_prepared(tmp_path, prepare(spec_of(root, train_limit=8), tmp_path))
    assert len(few.train) == 8
    assert set(few.train.y.tolist()) == {0, 1}


def test_one_color_image_makes_all_of_them_color(tmp_path: Path) -> None:
    """Gray images are shown in three channels beside colored ones."""
    root = tmp_path / "images"
    for number in range(5):
        draw(root / "a" / f"{number}.png", 7)
        draw(root / "b" / f"{number}.png", 9, mode="RGB")
    dataset = open_prepared(tmp_path, prepare(spec_of(root), tmp_path))
    assert dataset.facts.sample_shape == (3, 8, 8)


def test_images_of_different_sizes_need_image_size(tmp_path: Path) -> None:
    """Without it the refusal names the field; with it all become squares."""
    root = tmp_path / "images"
    for number in range(5):
        draw(root / "ab"[number % 2] / f"{number}.png", 7, size=(8 + number, 9))
    with pytest.raises(SpecError, match="image_size"):
        prepare(spec_of(root), tmp_path)
    key = prepare(spec_of(root, image_size=6), tmp_path)
    assert open_prepared(tmp_path, key).facts.sample_shape == (1, 6, 6)


def test_a_folder_without_classes_is_seen_before_anything_starts(tmp_path: Path) -> None:
    """check_source says which layout is needed."""
    with pytest.raises(SpecError, match="no such file or folder"):
        check_source(spec_of(tmp_path / "nowhere"))
    with pytest.raises(SpecError, match=r"train/<class>/"):
        check_source(spec_of(tmp_path))


def test_an_unknown_test_class_is_named(tmp_path: Path) -> None:
    """The folder stands in the message."""
    root = tmp_path / "images"
    for number in range(5):
        draw(root / "train" / "a" / f"{number}.png", 7)
    draw(root / "test" / "a" / "0.png", 7)
    (root / "test" / "b").mkdir()
    with pytest.raises(SpecError, match="no such class"):
        prepare(spec_of(root), tmp_path)


def test_chest_x_rays_as_they_are_published(tmp_path: Path) -> None:
    """Gray JPEGs of many sizes become squares; val/ and hidden files are left alone."""
    root = tmp_path / "chest_xray"
    for part, count in (("train", 4), ("test", 2), ("val", 1)):
        for number in range(count):
            size = 90 + 7 * number, 60 + 5 * number
            draw(root / part / "NORMAL" / f"IM-{number:04}-0001.jpeg", 40, size=size)
            draw(root / part / "PNEUMONIA" / f"person{number}_virus_1.jpeg", 220, size=size)
        (root / part / "NORMAL" / ".DS_Store").write_bytes(b"no image")
        (root / part / "PNEUMONIA" / "._person1_virus_1.jpeg").write_bytes(b"no image")
        (root / part / ".thumbnails").mkdir()
    dataset = open_prepared(tmp_path, prepare(spec_of(root, image_size=50), tmp_path))
    assert dataset.facts.sample_shape == (1, 50, 50)
    assert (len(dataset.train), len(dataset.test), dataset.facts.classes) == (8, 4, 2)
    assert np.array_equal(dataset.train.x[:, 25, 25, 0] > 128, dataset.train.y == 1)


def test_a_folder_among_images_is_named(tmp_path: Path) -> None:
    """A link to nothing, a FIFO and a folder of that name; nothing waits for the FIFO's writer."""
    root = tmp_path / "images"
    for number in range(5):
        draw(root / "a" / f"{number}.png", 7)
    strange = root / "a" / "strange.png"
    strange.symlink_to(root / "nowhere.png")
    with pytest.raises(SpecError, match=r"strange\.png': is a link to nothing"):
        prepare(spec_of(root), tmp_path)
    strange.unlink()
    for make in (os.mkfifo, os.mkdir):
        make(strange)
        with pytest.raises(SpecError, match=r"strange\.png': is not a file"):
            prepare(spec_of(root), tmp_path)
        shutil.rmtree(strange) if strange.is_dir() else strange.unlink()


def read(root: Path, **fields: object) -> SimpleNamespace:
    """Return the examples and remarks that training would get."""
    spec = spec_of(root, **fields)
    check_source(spec)
    facts, arrays = decoded(SOURCES["folder"].find(spec, None, root).read(), spec)
    return SimpleNamespace(**facts, **arrays)


def draw_classes(root: Path, folders: str, suffix: str = ".png", count: int = 6) -> None:
    """Save images into each of some folders."""
    for folder in folders.split():
        for number in range(count):
            draw(root / folder / f"{number}{suffix}", 7, mode="RGB")


@pytest.mark.parametrize(
    ("folders", "counts", "remark"),
    [
        ("train/a train/b val/a val/b", (12, 12), "val/ is the test part"),
        ("train/a train/b valid/a test/a test/b", (12, 12), "valid/ is left out"),
        ("Train/a Train/b Test/a Test/b", (12, 12), ""),
        ("training/a training/b testing/a testing/b", (12, 12), ""),
        ("train/a train/b", (10, 2), "no test/ is beside train/"),
        ("train/a train/b test/a extra/a", (12, 6), "left out beside train/: extra/"),
        ("bus car train", (15, 3), ""),
        ("a b @eaDir __MACOSX/a", (10, 2), ""),
        ("a b b/inner", (10, 2), "images in folders inside a class are left out: those of b/inner"),
    ],
)
def test_layouts_of_images_are_read(
    tmp_path: Path, folders: str, counts: tuple[int, int], remark: str
) -> None:
    """As PyTorch's tutorial, ImageNet and Kaggle have them; whatever is not read is told."""
    draw_classes(tmp_path, folders)
    found = read(tmp_path)
    assert (len(found.train_x), len(found.test_x)) == counts
    assert remark in "".join(found.remarks)
    assert bool(found.remarks) == bool(remark)


@pytest.mark.parametrize(
    ("folders", "said"),
    [
        ("a/x b/x", r"/a': holds no images itself; they are one folder deeper, as in a/x/"),
        ("images/a images/b", r"/images': .* one folder deeper, as in images/a/"),
        ("test/a val/a", "holds test/ and val/, but no train/ beside it"),
        ("train test", r"/train': holds no <class>/ folders, but test/ is beside it"),
        (".", "must be a folder .*; it holds 6 images and no folders"),
        ("a", "all 5 training examples have class a; training needs two classes"),
        ("train/a train/b test", "has 12 training and 0 test examples.* beside the class folders"),
    ],
)
def test_other_layouts_are_refused_with_what_is_there(
    tmp_path: Path, folders: str, said: str
) -> None:
    """The line names the folder that differs from what we read."""
    draw_classes(tmp_path, folders)
    with pytest.raises(SpecError, match=said):
        read(tmp_path)


def test_too_few_images_to_hold_some_out_are_counted(tmp_path: Path) -> None:
    """One of each class, for instance."""
    draw_classes(tmp_path, "a b", count=1)
    with pytest.raises(SpecError, match=r"2 training and 0 test examples.*2 images are too few"):
        read(tmp_path)


@pytest.mark.parametrize(
    "suffix", [".tif", ".TIFF", ".gif", ".ppm", ".pgm", ".jfif", ".bmp", ".webp", ".jp2", ".tga"]
)
def test_a_class_of_any_kind_of_image_is_read(tmp_path: Path, suffix: str) -> None:
    """Its suffix decides nothing."""
    for number in range(6):
        draw(tmp_path / "a" / f"{number}.png", 7)
        draw(tmp_path / "b" / f"{number}{suffix}", 200)
    found = read(tmp_path)
    assert np.bincount(found.train_y).tolist() == [5, 5]
    assert (found.train_x[found.train_y == 1] > 190).all()


@pytest.mark.parametrize("name", ["aa", "b", "z"])
def test_a_class_without_images_is_refused_wherever_its_name_stands(
    tmp_path: Path, name: str
) -> None:
    """The last one was no class, and others were; it may hold files of another kind."""
    draw_classes(tmp_path, "a c")
    (tmp_path / name).mkdir()
    with pytest.raises(SpecError, match=f"/{name}': holds no images, so it is no class: it is emp"):
        read(tmp_path)
    (tmp_path / name / "0.heic").touch()
    with pytest.raises(SpecError, match=rf"1 \.heic \(such as {name}/0\.heic\)"):
        read(tmp_path)


def test_files_that_are_no_images_are_counted_in_a_remark(tmp_path: Path) -> None:
    """A file of the system is not; it is in every folder that someone has looked into."""
    draw_classes(tmp_path, "a b")
    for name in ("a/1.heic", "b/2.heic", "b/notes", "a/Thumbs.db", "b/desktop.ini"):
        (tmp_path / name).touch()
    (remark,) = read(tmp_path).remarks
    assert remark == (
        "files that are not read as examples: 2 .heic, 1 no suffix (such as a/1.heic)"
    )


def test_a_limit_leaves_the_number_of_classes(tmp_path: Path) -> None:
    """Also if no image of the last one is within it; the remark names the missing classes."""
    draw_classes(tmp_path, "a b c d e", count=5)
    few = read(tmp_path, train_limit=3)
    assert few.classes == 5
    assert re.search("^[23] of 5 classes have no training examples: [a-e]", few.remarks[0])


def test_a_deep_image_behind_a_colored_one_is_refused(tmp_path: Path) -> None:
    """It would be cut off at 255."""
    draw_classes(tmp_path, "a b")
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(tmp_path / "b" / "9.png")
    with pytest.raises(SpecError, match=r"b/9\.png': has more than 8 bits"):
        read(tmp_path)


def png(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a gray PNG whose head says this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = zlib.crc32(kind + content).to_bytes(4, "big")
        return len(content).to_bytes(4, "big") + kind + content + checksum

    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    head = chunk(b"IHDR", size + bytes([8, 0, 0, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "content",
    [
        png(60_000, 60_000),
        png(8, 8),
        png(8, 8, zlib.compress(bytes(9 * 8))[:-6]),
        b"",
        b"GIF89a",
        b"BM" + bytes(60),
        b"RIFF\x10\0\0\0WEBPVP8 ",
        b"\xff\xd8\xff\xe0" + bytes(40),
    ],
)
def test_bombs_and_damaged_images_are_named(tmp_path: Path, content: bytes) -> None:
    """For every exception of the decoder, the line names the field and the file."""
    root = tmp_path / "images"
    draw_classes(root, "train/a test/a")
    (root / "train" / "a" / "bad.png").write_bytes(content)
    with pytest.raises(SpecError, match=r"^data_path = 'train/a/bad\.png': cannot be decoded: ."):
        prepare(spec_of(root), tmp_path)


def test_a_kind_that_this_pillow_does_not_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines with different Pillows find the same files, and one of them says what it lacks."""
    draw_classes(tmp_path, "a b")
    (tmp_path / "a" / "new.avif").write_bytes(b"\0\0\0 ftypavif")
    Image.init()
    monkeypatch.delitem(Image.EXTENSION, ".avif", raising=False)
    with pytest.raises(SpecError, match=r"'a/new\.avif': .* Pillow [\d.]+ reads no \.avif files$"):
        read(tmp_path)


def test_a_plain_image_stays_plain() -> None:
    """Every size of an image of one color is of that color."""
    images = np.full((3, 10, 14, 3), 77, np.uint8)
    for size in (4, 20):
        assert np.array_equal(resized(images, size), np.full((3, size, size, 3), 77))
    square = images[:, :, :10]
    assert resized(square, 10) is square, "of the right size already"


def test_shrinking_averages_rather_than_skips() -> None:
    """A fine checkerboard becomes gray: the antialiasing is on."""
    board = (np.indices((32, 32)).sum(axis=0) % 2 * 255).astype(np.uint8)[None, :, :, None]
    small = resized(board, 8)
    assert small.min() > 100
    assert small.max() < 155
