"""How splits cut the training data: a table for the terminal, and values for programs.

A table shows the first shards and the first classes that fit; the values have all of them.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from downpour.core.splitters.cut import ShardCounts
from downpour.experiments.tables.cells import Column, tenths, text_table

SHARDS_MAX = 40
CLASSES_MAX = 20
_OTHERS = "others"
_EDGE = 1
"""The width of the character at the left of a table."""


def split_table(cut: ShardCounts, width: int) -> RenderableType:
    """Show one shard per row, below a line about the data and above the summary.

    Args:
        cut: the result of a split.
        width: how many characters a line may have.
    """
    columns: list[Column] = [
        ("shard", [str(shard) for shard in range(len(cut.sizes))][:SHARDS_MAX]),
        ("examples", _texts(cut.sizes)),
    ]
    if cut.classes:
        columns += [
            ("classes", _texts(cut.classes_held)),
            ("top\n%", tenths([float(share) for share in cut.largest_shares[:SHARDS_MAX]])),
        ]
        taken = _EDGE + sum(map(_width, columns))
        columns += _class_columns(cut, width - taken)
    parts: list[RenderableType] = [Text(_heading(cut)), text_table(columns, is_tight=True)]
    left_out = len(cut.sizes) - SHARDS_MAX
    if left_out > 0:
        parts.append(Text(f"… and {left_out:,} more shards; --json has all of them"))
    return Group(*parts, Text(summary(cut)))


def summary(cut: ShardCounts) -> str:
    """Say in one line how uneven the shards are."""
    sizes = f"sizes max/min {cut.unevenness:,.2f}"
    if not cut.classes:
        return f"{sizes}; examples have no classes, so only sizes are shown"
    return f"{sizes}; mean distance from the class shares of all data {cut.mean_distance:.3f}"


def split_values(cut: ShardCounts) -> dict[str, Any]:
    """Return everything that we know about a cut, as JSON holds it."""
    has_classes = bool(cut.classes)
    shards = [
        {
            "shard": shard,
            "examples": int(size),
            **({"by_class": row.tolist()} if has_classes else {}),
        }
        for shard, (size, row) in enumerate(zip(cut.sizes, cut.by_class, strict=True))
    ]
    if has_classes:
        measured = zip(cut.classes_held, cut.largest_shares, cut.distances, strict=True)
        for values, (held, largest, distance) in zip(shards, measured, strict=True):
            values["classes"] = int(held)
            values["largest_share"] = float(largest)
            values["distance"] = float(distance)
    return {
        "split": cut.split,
        "examples": int(cut.sizes.sum()),
        "held_out": cut.held_out,
        "classes": cut.classes,
        "unevenness": cut.unevenness,
        "mean_distance": cut.mean_distance if has_classes else None,
        "shards": shards,
    }


def _heading(cut: ShardCounts) -> str:
    shards = "1 shard" if len(cut.sizes) == 1 else f"{len(cut.sizes):,} shards"
    words = f"split {cut.split}: {cut.sizes.sum():,} examples in {shards}"
    if cut.held_out:
        words += f", {cut.held_out:,} more set apart for validation"
    return f"{words}; examples of each class:" if cut.classes else words


def _class_columns(cut: ShardCounts, room: int) -> list[Column]:
    """Return a column for each class that fits, and one for the sum of the others."""
    every = [(str(number), _texts(cut.by_class[:, number])) for number in range(cut.classes)]
    if len(every) <= CLASSES_MAX and sum(map(_width, every)) <= room:
        return [*every]
    shown = min(CLASSES_MAX, len(every) - 1)
    while True:
        others = _OTHERS, _texts(cut.by_class[:, shown:].sum(axis=1))
        if not shown or sum(map(_width, [*every[:shown], others])) <= room:
            return [*every[:shown], others]
        shown -= 1


def _texts(counts: Any) -> list[str]:
    return [str(count) for count in counts[:SHARDS_MAX].tolist()]


def _width(column: Column) -> int:
    """Return how many characters a column takes, with the space next to it."""
    header, cells = column
    return 1 + max(map(len, [*header.split("\n"), *(cell or "" for cell in cells)]))
