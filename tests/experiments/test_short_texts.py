"""What a notebook or a prompt shows of a value: one short line, whatever the value holds."""

import dataclasses
from pathlib import Path

import pytest

from downpour.base.states import ExperimentEvent, ExperimentState, WorkerState
from downpour.experiments.replay_history import Replay
from downpour.network.rpc.messages import ExperimentSummary, Status, WorkerStatus
from downpour.show.notebook import Result

RESULT = Result.read(Path(__file__).parents[1] / "recorded" / "gestures")
SUMMARY = ExperimentSummary(
    experiment="e-1", name="e", state=ExperimentState.RUNNING, rounds_done=1, rounds_total=4
)
WORKER = WorkerStatus(worker="w", address="127.0.0.1:1", state=WorkerState.IDLE, tasks_done=0)
REPLAY = Replay(
    experiment="e-1", version=3, checksum="ab", compared=9, difference=None, model_file=None
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (RESULT, "<Result gestures-7f3a: finished, 3 epochs, accuracy 91.25%, 7.8 s>"),
        (RESULT.epochs[0], "<RoundResult epoch 1, round 1, accuracy 45.00%, 2.0 s>"),
        (REPLAY, "<Replay e-1: version 3 has checksum ab; 9 checksums agree>"),
        (SUMMARY, "<ExperimentSummary e-1: running, epoch 2 of 4>"),
        (WORKER, "<WorkerStatus w: idle>"),
        (Status(change=1), "<Status 0 workers, no experiment>"),
        (
            Status(change=1, workers=(WORKER,), experiment=SUMMARY),
            "<Status 1 worker, <ExperimentSummary e-1: running, epoch 2 of 4>>",
        ),
        (
            ExperimentEvent(kind="failed", experiment="e-1", reason="a\nb\x1b"),
            r"<ExperimentEvent failed e-1 'a\nb\x1b'>",
        ),
        (
            ExperimentEvent(kind="worker-joined", experiment="e-1", worker="w"),
            "<ExperimentEvent worker-joined e-1 w>",
        ),
    ],
)
def test_a_value_is_one_short_line(value: object, text: str) -> None:
    """It says which it is, and what is most worth knowing."""
    assert repr(value) == text


def test_html_holds_text_alone() -> None:
    """Names and reasons of others are no markup."""
    hostile = "<script>alert(1)</script>"
    named = dataclasses.replace(
        RESULT, name=hostile, state=ExperimentState.FAILED, reason=hostile, dataset=(hostile,)
    )
    assert "<script>" not in named._repr_html_()
    assert "&lt;script&gt;" in named._repr_html_()
