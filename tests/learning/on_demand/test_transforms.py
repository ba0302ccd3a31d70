"""Augmentation from plain values."""

from __future__ import annotations

import pytest
import torch
from torchvision.transforms import v2

from downpour.base.errors import SpecError
from downpour.learning.on_demand import transforms

STEPS = [
    "RandomCrop(8, padding=2)",
    "RandomHorizontalFlip",
    "ToDtype('float32', scale=True)",
    "Normalize([0.5], [0.25])",
]
IMAGE = torch.arange(64, dtype=torch.uint8).reshape(1, 8, 8)


def test_text_makes_what_python_would() -> None:
    """The same draws from torch's generator, the same numbers."""
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
