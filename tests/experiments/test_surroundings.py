"""How many workers a run gets, with a line that says why, and how a split cuts its data."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour.base.names import Devices
from downpour.core.spec import Spec
from downpour.experiments import surroundings
from downpour.experiments.surroundings import (
    cuts_of,
    explained,
    idle_cores,
    shards_for,
    workers_for,
)
from downpour.learning import accelerators, auto
from tests.cluster.manager.conftest import Cluster, cluster, options
from tests.specs import plain_spec


@pytest.fixture(autouse=True)
def _four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "usable_cores", lambda: 4)


@pytest.mark.parametrize(
    ("fields", "workers", "why"),
    [
        ({}, "4 workers", "for 4 cores"),
        ({"shards": 3}, "3 workers", "one a shard"),
        ({"shards": 4}, "4 workers", "one a shard"),
        ({"shards": 10}, "4 workers", "for 4 cores"),
        ({"shards": 1}, "1 worker", "one a shard"),
        ({"threads": 2}, "2 workers", "for 4 cores"),
        ({"threads": 9}, "1 worker", "for 4 cores"),
        ({"inside": {"processes": 4}}, "1 worker", "for 4 cores"),
        ({"shards": 2, "standbys": 1}, "3 workers", "one a shard, 1 of them on standby"),
    ],
)
def test_this_machines_cores_bound_the_workers(
    fields: dict[str, Any], workers: str, why: str
) -> None:
    """One a shard, while each has the cores that it trains with."""
    spec = Spec.make(fields)
    assert workers_for(spec) == int(workers.split(maxsplit=1)[0])
    assert explained(spec, is_here=True) == f"{workers}, {why}; --workers takes another number"


@pytest.mark.parametrize(
    ("fields", "workers", "why"),
    [
        ({}, "2 workers", "for 2 accelerators"),
        ({"device": "cuda"}, "2 workers", "for 2 accelerators"),
        ({"device": "cuda:1"}, "1 worker", "for one accelerator"),
        ({"shards": 1}, "1 worker", "one a shard"),
        ({"device": "cpu"}, "4 workers", "for 4 cores"),
        ({"inside": {"processes": 2}}, "2 workers", "for 4 cores"),
    ],
)
def test_this_machines_accelerators_have_a_worker_each(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], workers: str, why: str
) -> None:
    """As many as serve the spec; processes that share a batch need cores."""
    monkeypatch.setattr(auto, "_may_have_any", lambda *_: True)
    monkeypatch.setattr(accelerators, "devices_here", lambda: Devices({"cuda": 2}))
    spec = Spec.make(fields)
    assert workers_for(spec) == int(workers.split(maxsplit=1)[0])
    assert explained(spec, is_here=True) == f"{workers}, {why}; --workers takes another number"


@pytest.mark.parametrize(
    ("fields", "workers", "said"),
    [
        ({}, 1, "only 1 of 4 cores will compute; --threads 4 takes 4"),
        ({"shards": 2}, None, "only 2 of 4 cores will compute; --threads 2 takes 4"),
        ({"shards": 3}, None, ""),
        ({"shards": 1, "standbys": 3}, None, "only 1 of 4 cores will compute; --threads 4 takes 4"),
        ({"shards": 1}, 4, "only 1 of 4 cores will compute; --threads 4 takes 4"),
        ({"threads": 4}, 1, ""),
        ({"inside": {"processes": 2}}, 1, "only 2 of 4 cores will compute; --threads 2 takes 4"),
        ({"inside": {"how": "auto"}, "shards": 2}, 1, ""),
    ],
)
def test_idle_cores_are_told(fields: dict[str, Any], workers: int | None, said: str) -> None:
    """A plain script computes with all cores; here each worker takes as many as it has threads."""
    spec = Spec.make(fields)
    line = idle_cores(spec, workers, is_here=True)
    assert line == (f"{said}, and changes the model's bytes" if said else "")
    assert not idle_cores(spec, workers, is_here=False)


@pytest.mark.parametrize(
    ("shards", "workers", "why"),
    [(None, 4, "the default"), (3, 3, "one a shard"), (10, 4, "the default")],
)
def test_elsewhere_there_are_a_few(
    monkeypatch: pytest.MonkeyPatch, shards: int | None, workers: int, why: str
) -> None:
    """This machine's cores say nothing about others, and nobody wants ten jobs unasked."""
    monkeypatch.setattr(surroundings, "usable_cores", lambda: 1)
    spec = Spec(shards=shards)
    assert workers_for(spec, is_here=False) == workers
    assert explained(spec, is_here=False).startswith(f"{workers} workers, {why};")


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "2"])
def test_what_is_no_number_of_workers_is_refused(workers: Any) -> None:
    """The line names the field and what it accepts."""
    with pytest.raises(SpecError, match=r"workers = .*: must be a whole number, at least 1"):
        workers_for(Spec(), workers)
    assert workers_for(Spec(), 9) == 9


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
