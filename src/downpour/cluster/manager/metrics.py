"""A manager's metrics for Prometheus, read at each scrape from state that exists anyway.

All but the size of the journals comes from the driver's thread, so the numbers of one scrape are
consistent. Only the active experiment's name is a label, so there are few time series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from downpour.base.errors import StoreError
from downpour.base.states import (
    EXPERIMENT,
    TASK,
    WORKER,
    ExperimentState,
    State,
    Step,
    Table,
    WorkerState,
)
from downpour.cluster.manager.archive import Archive
from downpour.cluster.manager.driver import Driver
from downpour.cluster.manager.observations import ENDS, Counters
from downpour.cluster.manager.workspace import Workspaces
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler.experiment import Experiment
from downpour.network.metrics import counter, gauge, summary
from downpour.record.journal import segments

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


def manager_metrics(
    driver: Driver, archive: Archive, counters: Counters, spaces: Workspaces, term: int
) -> Iterator[Metric]:
    """Yield a manager's metrics; raises Refused if it is stopping. Many threads call this."""
    yield from driver.ask(
        lambda core: [*_current(core, archive), *_active(core.state.active), *_past(counters)]
    )
    # Read the sizes in this thread: the driver's must not wait for a directory that hangs.
    going = driver.ask(
        lambda core: [e.name for e in core.state.experiments.values() if not e.life.state.ended]
    )
    known = filter(None, map(spaces.get, going))
    folders = [space.shared.experiment_path(space.experiment) for space in known]
    help_text = "Size of the journals of the experiments that have not ended."
    yield gauge("downpour_journal_bytes", help_text, sum(map(_journal_bytes, folders)))
    yield gauge("downpour_term", "The number of this manager's term.", term)


def _current(core: Scheduler, archive: Archive) -> Iterator[Metric]:
    workers = (worker.life.state for worker in core.state.workers)
    help_text = "Registered workers, by state."
    states = _by_state(WORKER, workers, {WorkerState.GONE})
    yield gauge("downpour_workers", help_text, states, "state")
    slowness = {one.name: median(one.slowness) for one in core.state.workers if one.slowness}
    help_text = "A worker's seconds a sample over the round's median, median of 16 rounds."
    yield gauge("downpour_worker_slowness_ratio", help_text, slowness, "worker")
    help_text = "Workers that policies have requested so far."
    yield gauge("downpour_workers_wanted", help_text, core.state.wanted_workers)
    # Take only the counts from the archive: with 100,000 experiments in it, a scrape would hold up
    # the driver. The archive also has the core's ended experiments.
    experiments = [one for one in core.state.experiments.values() if one.name not in archive]
    states = _by_state(EXPERIMENT, (each.life.state for each in experiments))
    states = {name: n + archive.states[ExperimentState(name)] for name, n in states.items()}
    yield gauge("downpour_experiments", "Experiments of this directory, by state.", states, "state")
    done = archive.rounds_done + sum(one.rounds_done for one in experiments)
    help_text = "Rounds that became a model, of all experiments, earlier managers included."
    yield counter("downpour_rounds_total", help_text, done)
    current = core.state.active.round if core.state.active else None
    tasks = _by_state(TASK, (task.life.state for task in current.tasks) if current else ())
    yield gauge("downpour_tasks", "Tasks of the current round, by state.", tasks, "state")


def _active(active: Experiment | None) -> Iterator[Metric]:
    """Yield the metrics of the active experiment, with its name as a label."""
    done = {active.name: active.rounds_done} if active else {}
    asked = {active.name: active.spec.rounds} if active else {}
    help_text = "Rounds of the active experiment that became a model."
    yield gauge("downpour_experiment_rounds_done", help_text, done, "experiment")
    help_text = "Rounds that were asked for of the active experiment."
    yield gauge("downpour_experiment_rounds_asked", help_text, asked, "experiment")
    last = active.last_evaluation if active else None
    metrics = last.metrics if last else {}
    accuracy = {active.name: metrics["accuracy"]} if active and "accuracy" in metrics else {}
    loss = {active.name: last.loss} if active and last and active.part == "test" else {}
    help_text = "Share of the test examples that the active experiment's model gets right."
    yield gauge("downpour_experiment_accuracy_ratio", help_text, accuracy, "experiment")
    help_text = "The metrics of the active experiment's task, over the test examples."
    labelled = {(active.name, name): value for name, value in metrics.items()} if active else {}
    yield gauge("downpour_experiment_metric", help_text, labelled, "experiment", "metric")
    help_text = "Mean loss of the active experiment's model on the test examples."
    yield gauge("downpour_experiment_test_loss", help_text, loss, "experiment")


def _past(counters: Counters) -> Iterator[Metric]:
    yield counter("downpour_attempts_assigned_total", "Tasks given to workers.", counters.assigned)
    help_text = "Attempts by how they ended: counted, handed_over, withdrawn, lost and so on."
    ends = {end: counters.ended[end] for end in ENDS}
    yield counter("downpour_attempts_ended_total", help_text, ends, "end")
    help_text = "Snapshots of tasks that were published."
    yield counter("downpour_snapshots_total", help_text, counters.snapshots)
    help_text = "Shards that a round was closed without."
    yield counter("downpour_shards_dropped_total", help_text, counters.dropped)
    help_text = "Updates whose bytes differ from those of the update that counts."
    yield counter("downpour_updates_contradicted_total", help_text, counters.contradicted)
    help_text = "From a round's first assignment to its last update."
    yield summary("downpour_round_seconds", help_text, counters.training)
    help_text = "From the last round's first assignment to its last update."
    yield gauge("downpour_last_round_seconds", help_text, counters.training.last_seconds)
    help_text = "From a round's last update to the next model."
    yield summary("downpour_aggregation_seconds", help_text, counters.aggregation)
    help_text = "Evaluation of a model, beside the next round."
    yield summary("downpour_evaluation_seconds", help_text, counters.evaluation)


def _by_state(
    table: Table[State, Step], states: Iterable[State], left_out: Iterable[State] = ()
) -> Mapping[str, int]:
    """Count states, with 0 for unused ones, so that no state is missing from a graph."""
    known = dict.fromkeys(state for pair in table.items() for state in (pair[0][0], pair[1]))
    counts = Counter(states)
    return {state: counts[state] for state in known if state not in left_out}


def _journal_bytes(folder: Path) -> int:
    total = 0
    with suppress(OSError, StoreError):  # a checkpoint may remove a segment between the two calls
        for segment in segments(folder):
            total += segment.stat().st_size
    return total
