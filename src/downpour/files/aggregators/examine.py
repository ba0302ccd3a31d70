"""Finds the invalid updates of a round, after its fold has failed.

We read each file separately: verify its checksum, compare its layout and check its numbers. So we
find exactly the shards that workers must retrain, all at once. A round whose fold succeeds never
gets here, so this may be slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from downpour.base.errors import SharedDirectoryError, StoreError
from downpour.files.aggregators.base import Contribution
from downpour.files.aggregators.passes import Base
from downpour.files.aggregators.summing import is_sound
from downpour.files.store import Array, ParameterFile, Store, decode, decompressed


def examine(
    store: Store, base: Base, contributions: Sequence[Contribution], *, known: Mapping[int, str]
) -> dict[int, str]:
    """Return why we cannot aggregate some contributions: the reason for each such shard.

    Args:
        store: Where the files are.
        base: The model that training began from; all files must have its tensors.
        contributions: All contributions of the round.
        known: Shards whose reason is known already; we don't read their files.

    Raises:
        StoreError: the base cannot be read.
    """
    reasons = dict(known)
    if not base.is_verified:
        store.read(base.file)
    form = base.form
    model = form.model.views(base.source.data)
    for contribution in sorted(contributions, key=lambda contribution: contribution.shard):
        shard, name = contribution.shard, contribution.file.name
        if shard in known:
            continue
        try:
            file = decode(store.read(contribution.file), name)
        except SharedDirectoryError:
            raise  # the directory failed, not this update
        except StoreError as error:
            reasons[shard] = str(error)
            continue
        if misfit := form.misfit(file):
            reasons[shard] = misfit
        elif tensor := first_unsound(file, model, dict(decompressed(file))):
            reasons[shard] = f"{name}: tensor {tensor!r} holds NaN or infinity"
    return reasons


def first_unsound(
    file: ParameterFile, model: Mapping[str, Array], differences: Mapping[str, Array]
) -> str | None:
    """Return the name of an unusable tensor; `differences` are a file's tensors."""
    for name, difference in differences.items():
        if not np.isfinite(difference).all():
            return name
    return next(
        (
            name
            for name, tensor in file.tensors.items()
            if tensor.dtype.kind == "f" and not is_sound(tensor, model[name])
        ),
        None,
    )
