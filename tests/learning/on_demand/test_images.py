"""Folders of images that are decoded one by one."""

from __future__ import annotations

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
from downpour.learning.on_demand import ImageFolder


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

    monkeypatch.setattr(on_demand, "pixels_of", counted)
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
