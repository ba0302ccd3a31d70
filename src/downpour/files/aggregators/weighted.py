"""The mean weighted by training loss: Σ l_i w_i / Σ l_i, which favors shards that fare worse.

The idea is the ECE751 report's. If all losses are zero, all weights are equal. A negative loss has
no meaning as a weight, so we refuse it, as well as one that is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from downpour.base.errors import UpdatesRefused
from downpour.files.aggregators.base import Contribution, shares


def weights(contributions: Sequence[Contribution]) -> tuple[float, ...]:
    """Weigh each contribution by its loss.

    Raises:
        UpdatesRefused: losses that are negative, NaN or infinite; names all their shards.
    """
    refused = {
        contribution.shard: f"loss {contribution.loss} cannot be a weight"
        for contribution in contributions
        if not (math.isfinite(contribution.loss) and contribution.loss >= 0)
    }
    if refused:
        raise UpdatesRefused(refused)
    return shares([contribution.loss for contribution in contributions])
