"""What is wrong with which update: the slow look that follows a fold that went wrong.

Each file is read by itself and verified, its numbers looked through and its layout compared, so
that every shard that must be trained again is named at once, and no other. It is never on the way
of a round that goes well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from downpour.aggregators.base import Contribution
from downpour.errors import SharedDirectoryError, StoreError
from downpour.store import Layout, ParameterFile, Store, decode


def examine(
    store: Store,
    contributions: Sequence[Contribution],
    reference: Layout | None,
    *,
    known: Mapping[int, str],
) -> dict[int, str]:
    """Return the reason against each contribution that cannot be aggregated, by shard.

    Args:
        store: Where the files lie.
        contributions: All of the round.
        reference: The layout that all must have; absent: that of most of them.
        known: Shards whose reason is known already; their files are not read.
    """
    reasons = dict(known)
    layouts: dict[int, Layout] = {}
    for contribution in sorted(contributions, key=lambda contribution: contribution.shard):
        shard, name = contribution.shard, contribution.file.name
        if shard in known:
            continue
        try:
            file = decode(store.read(contribution.file), name)
        except SharedDirectoryError:
            raise  # that is nobody's update
        except StoreError as error:
            reasons[shard] = str(error)
            continue
        layouts[shard] = file.layout
        if tensor := _first_not_finite(file):
            reasons[shard] = f"{name}: tensor {tensor!r} holds NaN or infinity"
    return reasons | _misfits(layouts, reference)


def _first_not_finite(file: ParameterFile) -> str | None:
    return next(
        (
            name
            for name, tensor in file.tensors.items()
            if tensor.dtype.kind == "f" and not np.isfinite(tensor).all()
        ),
        None,
    )


def _misfits(layouts: Mapping[int, Layout], reference: Layout | None) -> dict[int, str]:
    if reference is None and layouts:
        reference = Counter(layouts.values()).most_common(1)[0][0]
    return {
        shard: f"its tensors are not the model's: {_difference(layout, reference)}"
        for shard, layout in layouts.items()
        if reference is not None and layout != reference
    }


def _difference(layout: Layout, reference: Layout) -> str:
    found = {entry.name: entry for entry in layout.entries}
    wanted = {entry.name: entry for entry in reference.entries}
    for name in sorted(found.keys() | wanted.keys()):
        if name not in found:
            return f"{name!r} is missing"
        if name not in wanted:
            return f"{name!r} is too many"
        mine, other = found[name], wanted[name]
        if (mine.dtype, mine.shape) != (other.dtype, other.shape):
            return (
                f"{name!r} is {mine.dtype} {list(mine.shape)}, "
                f"not {other.dtype} {list(other.shape)}"
            )
    return "they lie in another order"
