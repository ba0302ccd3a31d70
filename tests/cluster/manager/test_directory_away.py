"""A real manager whose directory fails for a while, or in which something hangs."""

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


def test_an_update_that_cannot_be_read_for_a_while_is_nobodys_fault(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is neither refused nor removed, and its worker is not asked again."""
    opened = os.open
    failures = [8]

    def away(path: Any, *words: Any, **options: Any) -> int:
        if failures[0] and Path(os.fsdecode(path)).name.startswith("update-"):
            failures[0] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *words, **options)

    monkeypatch.setattr(os, "open", away)
    cluster.join("one")
    experiment = cluster.submit(evaluate_every=0)
    cluster.result_of(experiment)
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
