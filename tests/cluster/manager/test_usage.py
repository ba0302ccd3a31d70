"""What is kept of the samples and phases that heartbeats bring."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

import pytest

from downpour.base.values import AttemptId, ProcessState, Progress, SystemState
from downpour.cluster.manager.observations import SAMPLES_MAX, Phases, Usage
from downpour.core.scheduler import Observed
from downpour.core.scheduler import events as on
from downpour.record.record_lines import ResourcesUsedLine, Sample, from_fields, to_fields


class Notebook:
    """Whatever was put on record."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, ResourcesUsedLine]] = []
        self.usage = Usage()

    def take(self, seen: Iterable[Observed]) -> None:
        """Keep facts."""
        for one in seen:
            fact = from_fields(json.loads(json.dumps(one.line)))
            assert isinstance(fact, ResourcesUsedLine)
            self.facts.append((one.experiment, fact))

    def beat(self, at_seconds: float, attempt: AttemptId | None, worker: str = "ann") -> None:
        """Hear of a worker, who uses as much of a core as the time says."""
        progress = (
            Progress(attempt=one, steps_done=1, steps_total=2, elapsed_seconds=1.0)
            for one in (attempt,)
            if one is not None
        )
        beat = on.HeartbeatReceived(
            at_seconds=at_seconds,
            worker=worker,
            running=tuple(progress),
            system=SystemState(cpu_others=0, load_average=0, memory_used=0, io_wait=0.25),
            process=ProcessState(cpu_share=at_seconds, memory_bytes=812_345_344, threads=9),
        )
        self.take(self.usage.hear(beat))


def attempt(number: int = 0, experiment: str = "one") -> AttemptId:
    """Name an attempt."""
    return AttemptId(experiment=experiment, round=0, shard=0, attempt=number)


@pytest.fixture
def notebook() -> Notebook:
    """Nothing yet."""
    return Notebook()


def test_an_attempt_that_ends_leaves_one_fact(notebook: Notebook) -> None:
    """With all that was heard of it; a second end says nothing."""
    for second in (1.0, 2.0, 3.0):
        notebook.beat(second, attempt())
    notebook.take(notebook.usage.end("ann", attempt()))
    notebook.take(notebook.usage.end("ann", attempt()))
    [(experiment, fact)] = notebook.facts
    assert experiment == "one"
    assert fact.samples == tuple(Sample(at, at, 812_345_344, 9, 0.25) for at in (1.0, 2.0, 3.0))


def test_another_attempt_ends_the_one_before(notebook: Notebook) -> None:
    """A copy that was called off is told of when its worker is next heard."""
    notebook.beat(1.0, attempt(0))
    notebook.beat(2.0, attempt(1))
    assert [fact.attempt for _, fact in notebook.facts] == [0]
    notebook.beat(3.0, None)
    assert [fact.attempt for _, fact in notebook.facts] == [0, 1]


def test_the_end_of_an_experiment_ends_its_attempts(notebook: Notebook) -> None:
    """Of that experiment alone."""
    notebook.beat(1.0, attempt(), "ann")
    notebook.beat(1.0, attempt(experiment="two"), "bob")
    notebook.take(notebook.usage.end_all("one"))
    assert [experiment for experiment, _ in notebook.facts] == ["one"]


def test_an_idle_worker_leaves_nothing(notebook: Notebook) -> None:
    """Only what trains is of interest."""
    notebook.beat(1.0, None)
    notebook.take(notebook.usage.end("ann", attempt()))
    assert notebook.facts == []


@pytest.mark.parametrize("seconds", [SAMPLES_MAX - 1, SAMPLES_MAX, 10_000])
def test_a_long_attempt_is_told_from_beginning_to_end(notebook: Notebook, seconds: int) -> None:
    """At even distances, in fewer samples than the limit, and some dozen bytes each at most."""
    for second in range(seconds):
        notebook.beat(float(second), attempt())
    notebook.take(notebook.usage.end("ann", attempt()))
    [(_, fact)] = notebook.facts
    times = [sample.at_seconds for sample in fact.samples]
    every = times[1] - times[0]
    assert SAMPLES_MAX // 2 <= len(times) < SAMPLES_MAX
    assert times == [every * place for place in range(len(times))]
    assert seconds - every <= times[-1] < seconds
    assert len(json.dumps(to_fields(fact))) < 48 * SAMPLES_MAX


def test_work_besides_training_is_told_once_it_takes_long() -> None:
    """After five seconds, for each quarter of an update, and when the training goes on."""
    phases, told = Phases(), list[str]()
    for at, done, total, moved in (
        (0.0, 0, 0, 0), (4.0, 0, 0, 0), (5.0, 0, 0, 0), (6.0, 0, 0, 0), (7.0, 0, 9, 0),
        (8.0, 1, 9, 7), (9.0, 2, 9, 0), (10.0, 3, 9, 7), (16.0, 3, 9, 12), (17.0, 3, 9, 23),
        (18.0, 3, 9, 24), (20.0, 9, 9, 0), (25.0, 9, 9, 30), (26.0, 9, 9, 54), (30.0, 9, 9, 55),
    ):  # fmt: skip
        progress = Progress(
            attempt=attempt(),
            steps_done=done,
            steps_total=total,
            elapsed_seconds=0,
            moved_bytes=moved,
        )
        told += [str(from_fields(one.line)) for one in phases.hear("ann", progress, at, 100)]
    assert told == [
        "loading",
        "training",
        "saving 12 bytes",
        "saving 24 bytes",
        "publishing",
        "publishing 30 of 100 bytes",
        "publishing 55 of 100 bytes",
    ]
    trains = replace(progress, attempt=attempt(1), steps_done=1, moved_bytes=0)
    for at in (40.0, 50.0):
        assert [*phases.hear("ann", trains, at, 100)] == []
