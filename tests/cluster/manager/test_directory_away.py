"""A real manager whose directory fails for a while, or in which something hangs."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.core.spec import Spec
from downpour.learning import datasets

PATIENCE_SECONDS = 30


@pytest.mark.parametrize(
    "number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EACCES, errno.EHOSTDOWN]
)
def test_an_update_that_cannot_be_read_for_a_while_is_nobodys_fault(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It is neither refused nor removed, and its worker is not asked again."""
    opened = os.open
    failures = [8]

    def away(path: Any, *words: Any, **options: Any) -> int:
        if failures[0] and Path(os.fsdecode(path)).name.startswith("update-"):
            failures[0] -= 1
            raise OSError(number, os.strerror(number))
        return opened(path, *words, **options)

    monkeypatch.setattr(os, "open", away)
    cluster.join("one")
    experiment = cluster.submit(evaluate_every=0)
    state = cluster.end_of(experiment).experiment
    assert state.state is ExperimentState.FINISHED, state.reason
    assert failures == [0]
    kinds = [json.loads(line)["kind"] for line in cluster.record(experiment)]
    assert "attempt-failed" not in kinds
    assert kinds.count("updated") == 4


def test_a_preparation_that_hangs_holds_up_neither_its_end_nor_others(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download that never answers: its experiment can be cancelled, and the next one runs."""
    prepare = datasets.prepare
    hangs, go_on, went_on = Event(), Event(), Event()

    def hanging(spec: Spec, *words: Any) -> str:
        if spec.name == "hangs":
            hangs.set()
            assert go_on.wait(PATIENCE_SECONDS)
            went_on.set()
        return prepare(spec, *words)

    monkeypatch.setattr(datasets, "prepare", hanging)
    cluster.join("one")
    first = cluster.submit(name="hangs")
    assert hangs.wait(PATIENCE_SECONDS)
    second = cluster.submit(name="waits", evaluate_every=0)
    cluster.client.cancel(first)
    assert cluster.end_of(first).experiment.state is ExperimentState.CANCELLED
    assert cluster.end_of(second).experiment.state is ExperimentState.FINISHED
    go_on.set()
    assert went_on.wait(PATIENCE_SECONDS)
    third = cluster.submit(name="after", evaluate_every=0)
    assert cluster.end_of(third).experiment.state is ExperimentState.FINISHED
    folder = cluster.shared.experiment_path(first)
    assert not list(folder.glob("update-*"))


def test_a_fifo_under_an_updates_name_costs_its_attempt_and_nothing_else(cluster: Any) -> None:
    """It is not a regular file: the shard is trained again, and nothing waits for a writer."""
    made: list[Path] = []

    def behave(worker: Any, task: Any) -> None:
        file = worker.publish(task, worker.parameters(task))
        if not made:
            path = worker.shared.experiment_path(task.id.experiment) / file.name
            path.unlink()
            os.mkfifo(path)
            made.append(path)
        worker.report(task, file)

    cluster.join("one", behave)
    experiment = cluster.submit(evaluate_every=0)
    assert cluster.end_of(experiment).experiment.state is ExperimentState.FINISHED
    facts = [json.loads(line) for line in cluster.record(experiment)]
    [failed] = [fact for fact in facts if fact["kind"] == "attempt-failed"]
    assert "not a regular file" in failed["reason"]
    assert made
    assert not made[0].exists()
