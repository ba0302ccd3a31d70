"""Windows of tokens, folders of images and augmentation, on demand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from downpour.base.errors import SpecError
from downpour.learning import on_demand
from downpour.learning.datasets.images import pixels_of
from downpour.learning.on_demand import ImageFolder, TokenWindows, transforms


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Two cats and a dog of 4 x 6 pixels, each of one gray."""
    for name, gray in (("dog/a.png", 200), ("cat/b.png", 50), ("cat/a.png", 0)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 6), gray, np.uint8)).save(tmp_path / name)
    return tmp_path


def test_images_come_with_their_class_in_the_order_of_names(pets: Path) -> None:
    """Color or gray, as they are or squeezed, as shares of full brightness."""
    folder = ImageFolder(pets)
    assert (folder.classes, folder.labels, len(folder)) == (["cat", "dog"], [0, 0, 1], 3)
    image, label = folder[1]
    assert (label, image.dtype, tuple(image.shape)) == (0, torch.float32, (3, 4, 6))
    assert torch.all(image == 50 / 255)
    small, _ = ImageFolder(pets, size=2, channels=1)[2]
    assert torch.equal(small, torch.full((1, 2, 2), 200 / 255))


def test_images_are_decoded_once_as_far_as_the_room_goes(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fits is kept, whatever a transform does to it; the rest is decoded each time."""
    decoded: list[str] = []

    def counted(path: Path, channels: int, **named: str) -> NDArray[np.uint8]:
        decoded.append(path.parent.name + path.stem)
        return pixels_of(path, channels, **named)

    def darkened(image: Tensor) -> Tensor:
        return image.zero_()

    monkeypatch.setattr("downpour.learning.datasets.images.pixels_of", counted)
    monkeypatch.setattr(on_demand, "_MEGABYTE", 75)  # an image takes 72 bytes
    folder = ImageFolder(pets, cache_megabytes=2, transform=darkened)
    for _ in range(3):
        assert not any(folder[i][0].any() for i in range(3))
    assert sorted(decoded) == ["cata", "catb", "doga", "doga", "doga"]
    assert folder._pixels(pets / "cat" / "b.png")[0, 0, 0] == 50


def test_a_folder_without_class_images_is_refused(pets: Path) -> None:
    """A folder that is not there, one without classes, and a file that is damaged."""
    for root in (pets / "none", pets / "cat"):
        with pytest.raises(SpecError, match="holds <class>/<image>"):
            ImageFolder(root)
    (pets / ".outer").mkdir()
    (pets / ".outer" / "all").symlink_to(pets)
    with pytest.raises(SpecError, match=r"^root = .*: holds no images itself; .* folder deeper"):
        ImageFolder(pets / ".outer")
    (pets / "eel").mkdir()
    with pytest.raises(SpecError, match=r"^root = .*eel': holds no images, so it is no class"):
        ImageFolder(pets)
    (pets / "eel").rmdir()
    (pets / "cat" / "a.png").write_bytes(b"no image")
    with pytest.raises(SpecError, match=r"^root = 'cat/a\.png': cannot be decoded: ."):
        ImageFolder(pets)[0]


def test_images_of_any_kind_are_found_and_other_files_are_told(
    pets: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In an attribute, and in the log of the process that would have read them."""
    Image.new("L", (6, 4), 9).save(pets / "dog" / "b.tiff")
    (pets / "dog" / "c.heic").touch()
    folder = ImageFolder(pets)
    assert folder.labels == [0, 0, 1, 1]
    assert folder.remarks == ("files that are not read as examples: 1 .heic (such as dog/c.heic)",)
    assert folder.remarks[0] in caplog.text


def test_an_epoch_sees_every_token_once_and_predicts_the_next(tmp_path: Path) -> None:
    """A target is its token one later, and the next window begins where this one ended."""
    tokens = np.arange(100, 134, dtype=np.uint16)
    tokens.tofile(tmp_path / "train.bin")
    windows = TokenWindows(tmp_path / "train.bin", 8)
    assert len(windows) == 4
    pairs = [windows[i] for i in range(len(windows))]
    assert all(x.dtype == y.dtype == torch.int64 for x, y in pairs)
    assert torch.cat([x for x, _ in pairs]).tolist() == list(range(100, 132))
    assert torch.cat([y for _, y in pairs]).tolist() == list(range(101, 133))
    assert torch.equal(windows[-1][0], windows[3][0])


@pytest.mark.parametrize(("count", "length", "stride"), [(10, 3, 1), (10, 9, 4), (11, 2, 5)])
def test_the_last_window_ends_inside(count: int, length: int, stride: int) -> None:
    """As many windows as fit with the token after each."""
    tokens = list(range(count))
    windows = TokenWindows(tokens, length, stride=stride)
    starts = [s for s in range(0, count, stride) if s + length < count]
    assert [int(windows[i][0][0]) for i in range(len(windows))] == starts
    assert all(len(part) == length for part in windows[len(windows) - 1])
    with pytest.raises(IndexError):
        windows[len(windows)]


def test_a_file_is_not_read_whole(tmp_path: Path) -> None:
    """Sixteen gigabytes of tokens that nothing ever wrote are opened at once."""
    with (tmp_path / "huge.bin").open("wb") as file:
        file.truncate(1 << 34)
    windows = TokenWindows(tmp_path / "huge.bin", 1024, "uint16")
    assert len(windows) == ((1 << 33) - 1) // 1024
    assert not windows[len(windows) - 1][1].any()


def test_tokens_without_a_window_are_refused(tmp_path: Path) -> None:
    """No file, half a token, too few tokens, no integers, no row."""
    (tmp_path / "odd.bin").write_bytes(b"123")
    np.zeros(8, np.uint16).tofile(tmp_path / "few.bin")
    bad: list[tuple[object, int, str, str]] = [
        (tmp_path / "none.bin", 8, "uint16", "none.bin'?: cannot be read: No such file"),
        (
            tmp_path / "odd.bin",
            8,
            "uint16",
            "3 bytes do not divide into values of uint16, which takes 2",
        ),
        (tmp_path / "few.bin", 8, "uint16", "has 8 tokens, but a window needs 8 and one more"),
        (tmp_path / "few.bin", 8, "word", "must name a type of integers"),
        (tmp_path / "few.bin", 2, "float32", "must name a type of integers"),
        (tmp_path / "few.bin", 0, "uint16", "length = 0: must be at least 1"),
        ([[1, 2, 3]], 1, "uint16", "must be a row of integers"),
    ]
    for tokens, length, dtype, told in bad:
        with pytest.raises(SpecError, match=told):
            TokenWindows(tokens, length, dtype)  # type: ignore[arg-type]


STEPS = [
    "RandomCrop(8, padding=2)",
    "RandomHorizontalFlip",
    "ToDtype('float32', scale=True)",
    "Normalize([0.5], [0.25])",
]

IMAGE = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8)


def test_text_makes_what_python_would() -> None:
    """The same draws from torch's generator, the same numbers."""
    from torchvision.transforms import v2  # imports for a second and a half

    written = v2.Compose(
        [
            v2.RandomCrop(8, padding=2),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.5], [0.25]),
        ]
    )
    augment = transforms(STEPS)
    for seed in range(5):
        torch.manual_seed(seed)
        expected = written(IMAGE)
        torch.manual_seed(seed)
        assert torch.equal(augment(IMAGE), expected)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("RandomCorp(32)", "this transform is not allowed; the nearest are RandomCrop"),
        ("Lambda(1)", "this transform is not allowed"),
        ("MixUp(num_classes=2)", "this transform is not allowed"),
        ("RandomCrop()", "torchvision refuses it: .*size"),
        ("RandomHorizontalFlip(p=2 ** 3)", "must be a name and plain values"),
        ("os.system('rm')", "must be a name and plain values"),
        ("RandomCrop(**{'size': 3})", "must be a name and plain values"),
        ("RandomCrop(open('x'))", "must be a name and plain values"),
        ("RandomCrop(32", "must be a name and plain values"),
        ("", "must be a name and plain values"),
    ],
)
def test_only_transforms_and_literals_are_read(step: str, told: str) -> None:
    """One line that names the step; nothing is evaluated."""
    with pytest.raises(SpecError, match=told):
        transforms([step])


def test_transforms_are_a_list() -> None:
    """The letters of a text are none."""
    with pytest.raises(SpecError, match=r"transforms = 'ToTensor\(\)': must be a list of texts"):
        transforms("ToTensor()")
