"""Computes how a spec's split, and other splits, cut the training data; trains nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from downpour.core.spec import Spec
from downpour.core.splitters import SplitCut, cut
from downpour.experiments.running.surroundings import workers_for
from downpour.files.store import SharedDirectory
from downpour.files.store.directory import names_in
from downpour.learning.tasks import check_named, check_same_data, open_data, prepare_data


def shards_for(spec: Spec) -> int:
    """Return how many shards `downpour run` would train here: the spec's, or one for each worker.

    A standby has no shard.
    """
    return spec.shards or workers_for(spec) - spec.standbys


def cuts_of(
    spec: Spec, splits: Sequence[str], shards: int, shared: Path, data_dir: Path | None = None
) -> list[SplitCut]:
    """Cut the training data of a spec as each of several splits would.

    `splits` replace the spec's own; if there are none, that one remains. The shared directory may
    have the prepared data.
    """
    specs = [spec.replace(split=split) for split in dict.fromkeys(splits or [spec.split])]
    check_named(spec, data_dir)
    with _datasets(shared) as folder:
        key = prepare_data(spec, folder, data_dir)
        check_same_data(spec, folder, key)
        data = open_data(spec, folder, key)
        facts, labels = data.facts, data.labels
        return [
            cut(one, labels, facts.train_samples, facts.classes, shards, data.block_ends)
            for one in specs
        ]


@contextmanager
def _datasets(shared: Path) -> Iterator[Path]:
    """Yield the folder for prepared data: the shared directory's, where a run finds them.

    If no manager has made it yet, use a temporary folder, because looking should leave no files.
    """
    datasets = SharedDirectory(shared.absolute()).datasets
    # False where a folder above cannot be read.
    if os.path.exists(shared) and datasets.name in names_in(shared):  # noqa: PTH110
        yield datasets
        return
    with TemporaryDirectory(prefix="downpour-") as folder:
        yield Path(folder)
