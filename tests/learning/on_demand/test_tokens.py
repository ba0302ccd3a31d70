"""Windows of tokens, from a mapped file or an array."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from downpour.base.errors import SpecError
from downpour.learning.on_demand import TokenWindows


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
