"""Checks that the workers to start will have the labels that a spec needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from downpour.base.errors import SpecError
from downpour.base.labels import merged, missing
from downpour.cluster.launchers import kind_of
from downpour.core.spec import Spec


def refuse_unmet(spec: Spec, on: str, options: Mapping[str, Any], labels: Sequence[str]) -> None:
    """Refuse a spec that no worker of a launcher could train, because it would wait forever.

    Args:
        spec: the training.
        on: the launcher's name.
        options: the options of the launcher that the user gave.
        labels: the labels of all workers.

    Raises:
        SpecError: names the field, and the label that is missing.
    """
    if not (spec.needs or spec.shard_needs):
        return
    kind = kind_of(on)
    sorts = [merged(labels, own) for own in kind.labels(kind.given(options))]
    wanted = {"needs": spec.needs}
    wanted |= {
        f"shard_needs.{shard}": (*spec.needs, *needs) for shard, needs in spec.shard_needs.items()
    }
    for field, needs in wanted.items():
        # Name the labels that the best sort of machine lacks, because ssh's hosts differ.
        lacking = min((missing(own, needs) for own in sorts), key=len)
        if lacking:
            key = lacking[0].partition("=")[0]
            accepted = f"the workers to start lack this label; add --label {key}=VALUE"
            raise SpecError(field, lacking[0], accepted)
