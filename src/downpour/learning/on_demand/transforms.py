"""Augmentation from plain values: torchvision's transforms, written as in Python.

A spec holds no code, so a transform is text, `"RandomCrop(32, padding=4)"`. We parse it as a name
and literals and never evaluate it. Only the classes in `ALLOWED` are made. They draw from torch's
global generator, which is seeded before each step of training, so augmentation follows from the
position alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

import torch

from downpour.base.errors import SpecError
from downpour.host.extras import require

ALLOWED = frozenset(
    {
        "AugMix",
        "AutoAugment",
        "CenterCrop",
        "ColorJitter",
        "ElasticTransform",
        "GaussianBlur",
        "GaussianNoise",
        "Grayscale",
        "JPEG",
        "Normalize",
        "Pad",
        "RandAugment",
        "RandomAdjustSharpness",
        "RandomAffine",
        "RandomAutocontrast",
        "RandomChannelPermutation",
        "RandomCrop",
        "RandomEqualize",
        "RandomErasing",
        "RandomGrayscale",
        "RandomHorizontalFlip",
        "RandomInvert",
        "RandomPerspective",
        "RandomPhotometricDistort",
        "RandomPosterize",
        "RandomResizedCrop",
        "RandomRotation",
        "RandomSolarize",
        "RandomVerticalFlip",
        "Resize",
        "ToDtype",
        "TrivialAugmentWide",
    }
)
"""Classes of torchvision.transforms.v2 that take plain values and one image."""

_SOME = "RandomCrop, RandomHorizontalFlip, RandomResizedCrop, ColorJitter and others of torchvision"
_DTYPES = {"float16": torch.float16, "float32": torch.float32, "uint8": torch.uint8}


def transforms(steps: Sequence[str]) -> Callable[[Any], Any]:
    """Return a function that applies transforms to an image [c, h, w], one after the other.

    >>> augment = transforms(["RandomCrop(32, padding=4)", "RandomHorizontalFlip()"])

    Types of tensors are given by their names: `"ToDtype('float32', scale=True)"`.

    Raises:
        SpecError: a step is not of this form, or not allowed, or torchvision refuses its options.
        MissingPackage: torchvision is not installed.
    """
    require("a transform", "vision")
    from torchvision.transforms import v2

    return v2.Compose([_made(step, v2) for step in steps])  # type: ignore[no-any-return]


def _made(step: str, v2: Any) -> Any:
    name, positional, named = _parsed(step)
    if name not in ALLOWED:
        near = get_close_matches(name, ALLOWED, n=3)
        known = f"the nearest are {', '.join(near)}" if near else f"known are {_SOME}"
        raise SpecError("transforms", step, f"this transform is not allowed; {known}")
    try:
        return getattr(v2, name)(*positional, **named)
    except Exception as error:
        reason = " ".join(str(error).split())
        raise SpecError("transforms", step, f"torchvision refuses it: {reason}") from error


def _parsed(step: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Read "Name(1, option=2)" as a name, its values and its named values."""
    with suppress(SyntaxError, ValueError, TypeError):
        match ast.parse(step.strip(), mode="eval").body:
            case ast.Name(id=name):
                return name, [], {}
            case ast.Call(func=ast.Name(id=name), args=args, keywords=words):
                named = {word.arg: _value(word.value) for word in words}
                if None not in named:  # as from **options
                    return name, [_value(value) for value in args], named  # type: ignore[return-value]
            case _:
                pass
    accepted = "must be a name and plain values, such as RandomCrop(32, padding=4)"
    raise SpecError("transforms", step, accepted)


def _value(node: ast.expr) -> Any:
    value = ast.literal_eval(node)
    return _DTYPES.get(value, value) if isinstance(value, str) else value
