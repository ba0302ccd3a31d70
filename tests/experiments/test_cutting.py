"""What is shown of a split is what a real manager sends to be trained."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from downpour.core.spec import Spec
from downpour.experiments.surroundings import cuts_of, shards_for
from tests.cluster.manager.conftest import Cluster, cluster, options
from tests.specs import plain_spec

__all__ = ["cluster", "options"]

SPLITS = ["random", "equal", "class", "dirichlet(0.4)"]


@pytest.mark.parametrize("split", SPLITS)
def test_a_manager_makes_the_same_shards(cluster: Cluster, tmp_path: Path, split: str) -> None:
    """Each task has the indices that were shown, with seed, limit and validation."""
    spec = plain_spec(
        shards=3, epochs=1, split=split, seed=5, train_limit=400, validation=0.1, batch_size=32
    )
    # Shown first, elsewhere, so that neither has anything of the other.
    (shown,) = cuts_of(spec, [], 3, tmp_path / "elsewhere")
    worker = cluster.join("one")
    summary = cluster.end_of(cluster.submit(spec)).experiment
    assert summary is not None
    assert summary.state == "finished", summary.reason
    trained = {task.id.shard: task.indices for task in worker.tasks}
    assert sorted(trained) == [0, 1, 2]
    for shard, indices in trained.items():
        assert np.array_equal(np.asarray(indices), shown.shards[shard])


def test_prepared_data_stay_where_a_run_finds_them(tmp_path: Path) -> None:
    """In a shared directory that a manager has made; otherwise nothing is left behind."""
    spec = Spec(shards=2, train_limit=100, test_limit=20)
    shared = tmp_path / "shared"
    (once,) = cuts_of(spec, [], 2, shared)
    assert not list(tmp_path.iterdir())
    datasets = shared / "datasets"
    datasets.mkdir(parents=True)
    (again,) = cuts_of(spec, [], 2, shared)
    assert [path.name for path in datasets.iterdir() if path.name.startswith("digits-")]
    assert again.by_class.tolist() == once.by_class.tolist()


def test_several_splits_are_of_the_same_examples(tmp_path: Path) -> None:
    """One of each name, in the order asked for."""
    spec = Spec(train_limit=100, test_limit=20)
    cuts = cuts_of(spec, ["class", "random", "class"], 4, tmp_path / "none")
    assert [cut.split for cut in cuts] == ["class", "random"]
    sums = [cut.by_class.sum(axis=0).tolist() for cut in cuts]
    assert sums[0] == sums[1]
    assert sum(sums[0]) == 100


def test_shards_are_counted_as_a_run_counts_them() -> None:
    """The spec's own, else one a worker; a standby has none."""
    assert shards_for(Spec(shards=7)) == 7
    alone = shards_for(Spec())
    assert alone >= 1
    assert shards_for(Spec(standbys=2, policy="replace")) == alone
