"""What a real manager tells Prometheus, over real HTTP."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from downpour.base.errors import SpecError
from downpour.base.states import Evaluation, FailureKind
from downpour.base.values import AttemptId, PublishedFile, Snapshot
from downpour.cluster.manager.observations import Counters
from downpour.cluster.manager.process import start_manager
from downpour.cluster.manager.service import _active as active_metrics
from downpour.cluster.options import ManagerOptions
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.experiment import Experiment
from tests.cluster.manager.conftest import options_of
from tests.specs import plain_spec

Told = dict[tuple[str, ...], float]


@pytest.fixture
def options(tmp_path: Path) -> ManagerOptions:
    """A manager that tells its metrics."""
    return replace(options_of(tmp_path), metrics_port=0)


def scraped(url: str) -> Told:
    """Fetch and parse; returns each sample by its name and the values of its labels."""
    with urlopen(url, timeout=10) as answer:  # noqa: S310
        families = list(text_string_to_metric_families(answer.read().decode()))
    assert all(family.documentation for family in families)
    samples = (sample for family in families for sample in family.samples)
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


def test_a_manager_at_rest_tells_zeros(cluster: Any) -> None:
    """Every state is named from the beginning, so that no graph has gaps; and the page names it."""
    told = scraped(cluster.manager.metrics_url)
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "monitoring.md").read_text("utf-8")
    names = "workers", "experiments", "tasks", "attempts_ended_total"
    for name in (f"downpour_{each}" for each in names):
        [row] = [line for line in page.splitlines() if f"`{name}` (" in line]
        counts = {state[0]: count for (key, *state), count in told.items() if key == name}
        assert set(counts.values()) == {0}
        assert counts.keys() <= set(re.findall(r"\w+", row.split("|")[2]))
    for kind in FailureKind:
        assert told["downpour_attempts_ended_total", kind] == 0
    assert told["downpour_rounds_total",] == told["downpour_journal_bytes",] == 0
    assert told["downpour_term",] == 1
    assert not any(name == "downpour_experiment_rounds_done" for name, *_ in told)


def test_an_experiment_under_way_is_told_of(cluster: Any) -> None:
    """Its workers, its tasks and its journal; its name only as long as it is active."""
    cluster.join("ann", lambda *_: None)
    experiment = cluster.submit()
    cluster.status_when(lambda s: any(w.state == "busy" for w in s.workers))
    told = scraped(cluster.manager.metrics_url)
    assert told["downpour_workers", "busy"] == 1
    assert told["downpour_experiments", "running"] == 1
    assert (told["downpour_tasks", "running"], told["downpour_tasks", "pending"]) == (1, 1)
    assert told["downpour_experiment_rounds_done", experiment] == 0
    assert told["downpour_experiment_rounds_asked", experiment] == 2
    assert told["downpour_attempts_assigned_total",] == 1
    assert told["downpour_journal_bytes",] > 0
    cluster.client.cancel(experiment)
    told = scraped(cluster.manager.metrics_url)
    assert told["downpour_experiments", "cancelled"] == 1
    assert told["downpour_journal_bytes",] == 0
    assert ("downpour_experiment_rounds_done", experiment) not in told


def test_rounds_and_attempts_are_counted(cluster: Any, options: ManagerOptions) -> None:
    """And how long they took; the next manager counts experiments of this one, once."""
    cluster.join("ann")
    cluster.join("bob")
    cluster.end_of(cluster.submit())
    told = scraped(cluster.manager.metrics_url)
    assert told["downpour_experiments", "finished"] == 1
    assert told["downpour_workers", "idle"] == 2
    assert told["downpour_rounds_total",] == told["downpour_round_seconds_count",] == 2
    assert told["downpour_attempts_ended_total", "counted"] == 4
    assert told["downpour_attempts_assigned_total",] >= 4
    assert told["downpour_round_seconds_sum",] >= told["downpour_last_round_seconds",] > 0
    assert told["downpour_aggregation_seconds_count",] == 2
    assert told["downpour_evaluation_seconds_count",] == 2
    cluster.manager.close()
    following = start_manager(options)
    told = scraped(following.metrics_url)
    following.close()
    assert told["downpour_experiments", "finished"] == 1
    assert told["downpour_rounds_total",] == 2


def test_the_endpoint_ends_with_its_manager(cluster: Any, options: ManagerOptions) -> None:
    """Its port is free again; and one that is taken keeps the manager from beginning at all."""
    port = int(cluster.manager.metrics_url.removesuffix("/metrics").rpartition(":")[2])
    shared = Path(options.shared) / "other"
    other = replace(options, shared=str(shared), metrics_port=port)
    with pytest.raises(SpecError, match=f"metrics_port = {port}: is in use on 127.0.0.1"):
        start_manager(other)
    cluster.manager.close()
    with_port = start_manager(other)
    assert isinstance(scraped(with_port.metrics_url), dict)
    with_port.close()


def test_a_manager_tells_nothing_unless_asked_to(tmp_path: Path) -> None:
    """There is no endpoint then."""
    manager = start_manager(ManagerOptions(shared=str(tmp_path), port=0))
    assert manager.metrics_url == ""
    manager.close()


def test_attempts_are_counted_by_their_end() -> None:
    """Those that were moved away as well as those that were lost."""
    attempt = AttemptId(experiment="one", round=0, shard=0, attempt=0)
    of: dict[str, Any] = {"cause": 1, "worker": "ann", "attempt": attempt}
    file = PublishedFile(name="snapshot", size_bytes=1, checksum="0")
    counters = Counters()
    for kind in (FailureKind.HANDED_OVER, FailureKind.WITHDRAWN, FailureKind.WITHDRAWN):
        counters.take(out.GivenUp(**of, failure=kind, reason=""))
    counters.take(out.Saved(**of, snapshot=Snapshot(file=file, steps_done=1, steps_total=2)))
    counters.take(out.Dropped(cause=1, experiment="one", round=0, shards=(1, 2), reason=""))
    counters.take(out.Dismissed(cause=1, worker="ann", reason=""))
    assert counters.ended == {"handed_over": 1, "withdrawn": 2}
    assert (counters.snapshots, counters.dropped, counters.assigned) == (1, 2, 0)


def test_each_metric_of_a_task_is_told_by_its_name() -> None:
    """Beside the loss; an accuracy under its old name, too, where there is one."""
    experiment = Experiment("one", plain_spec(shards=1))
    for metrics in ({"psnr": 31.5, "accuracy": 0.5}, {}):
        experiment.last_evaluation = Evaluation(
            loss=0.25, metrics=metrics, class_accuracy=(), samples=1, seconds=0.0
        )
        told = {
            (sample.name, *sample.labels.values()): sample.value
            for family in active_metrics(experiment)
            for sample in family.samples
        }
        of_metrics = {key[2]: value for key, value in told.items() if key[0].endswith("_metric")}
        assert of_metrics == metrics
        assert told["downpour_experiment_test_loss", "one"] == 0.25
        accuracy = told.get(("downpour_experiment_accuracy_ratio", "one"))
        assert accuracy == metrics.get("accuracy")
