"""What commands wait for, and the events that answer them, in threads and in virtual time alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import pytest

from downpour.base.states import Evaluation, ExperimentState
from downpour.base.values import AttemptId, PublishedFile, Update
from downpour.cluster.manager.command_runner import CommandRunner
from downpour.core.node.effects import Answers, Effects
from downpour.core.scheduler import commands as do
from downpour.core.scheduler import events as on
from downpour.core.scheduler import facts
from downpour_lab.simulated.command_runner import SimulatedCommandRunner
from tests.specs import plain_spec

FILE = PublishedFile(name="model-000001-abc.safetensors", size_bytes=1, checksum="0" * 32)
ATTEMPT = AttemptId(experiment="any", round=3, shard=1, attempt=0)
ASSIGNED = facts.Assigned(
    cause=1, worker="anna", attempt=ATTEMPT, model=FILE, optimizer_state=None, reason="idle"
)
UPDATE = Update(
    file=FILE,
    samples=1,
    steps=1,
    loss=0.5,
    load_seconds=0.0,
    train_seconds=0.0,
    publish_seconds=0.0,
    optimizer_state=None,
)
PUSH = do.Push(round=3, shard=1, update=UPDATE, base=FILE)
PREPARE = do.Prepare(experiment="any", spec=plain_spec(shards=2))
AGGREGATE = do.Aggregate(
    experiment="any", round=3, model=FILE, pushes=(PUSH,), in_step=False, train_seconds=1.0
)
GATHER = do.Gather(experiment="any", round=3, shard=1, update=UPDATE, model=FILE, base=FILE)
EVALUATE = do.Evaluate(experiment="any", round=3, model=FILE, part="validation")
PUBLISH = do.Publish(experiment="any", model=FILE)
LANES: list[tuple[do.Command, str]] = [
    (PREPARE, "preparation of any"),
    (do.Assign(ASSIGNED), "calls of anna"),
    (do.Cancel(worker="anna", attempt=ATTEMPT, reason="late"), "calls of anna"),
    (do.HandOver(worker="anna", attempt=ATTEMPT), "calls of anna"),
    (GATHER, "work of any"),
    (AGGREGATE, "work of any"),
    (EVALUATE, "evaluation of any"),
    (PUBLISH, "work of any"),
    (do.Adopt(experiment="any", attempts=()), "work of any"),
    (do.Discard(experiment="any", files=()), "removal of any"),
    (do.Conclude(experiment="any", ending=ExperimentState.FINISHED), "removal of any"),
    (do.Dismiss(worker="anna"), "at once"),
]


class Notes(Effects[[]]):
    """Notes in which lane a command was put, and runs it there."""

    def __init__(self) -> None:
        self.lane = "at once"
        self.done: list[tuple[str, object]] = []

    def _put(self, lane: str, of: str, job: Callable[[], None]) -> None:
        self.lane = f"{lane} of {of}"
        job()

    def _alone(self, experiment: str, job: Callable[[], None]) -> None:
        self._put("preparation", experiment, job)

    def _in_turn(self, worker: str, job: Callable[[], None]) -> None:
        self._put("calls", worker, job)

    def _work(self, experiment: str, job: Callable[[], None]) -> None:
        self._put("work", experiment, job)

    def _beside(self, experiment: str, job: Callable[[], None]) -> None:
        self._put("evaluation", experiment, job)

    def _clean(self, experiment: str, job: Callable[[], None]) -> None:
        self._put("removal", experiment, job)

    def _do(self, asked: object) -> None:
        self.done.append((self.lane, asked))

    _prepare = _assign = _cancel = _hand_over = _gather = _aggregate = _evaluate = _do
    _publish = _adopt = _discard = _conclude = _dismiss = _do


@pytest.mark.parametrize(("command", "lane"), LANES)
def test_each_command_waits_in_its_lane(command: do.Command, lane: str) -> None:
    """It runs once there, and is handed what it is about."""
    notes = Notes()
    notes.start(command)
    asked = "anna" if isinstance(command, do.Dismiss) else command
    assert notes.done == [(lane, asked)]


def test_every_command_is_in_the_table() -> None:
    """So a new one gets a lane by a decision."""
    assert {type(command) for command, _ in LANES} == set(get_args(do.Command))


def test_both_runners_leave_the_lanes_to_the_node() -> None:
    """So what the simulator shows of commands beside each other holds for real managers."""
    assert {"start"} & {*vars(CommandRunner), *vars(SimulatedCommandRunner)} == set()


def answers() -> tuple[Answers, list[on.Event]]:
    """Return answers at 5 s, and the list to which they are posted."""
    events: list[on.Event] = []
    return Answers(events.append, lambda: 5.0), events


def test_an_answer_says_what_was_asked() -> None:
    """Experiment, round, part and the tasks of a version are those of the command."""
    make, events = answers()
    measured = Evaluation(loss=0.5, metrics={}, class_accuracy=(), samples=1, seconds=1.0)
    make.prepared(
        PREPARE,
        dataset="digits-1",
        shard_samples=(4, 5),
        model=FILE,
        outer=None,
        frozen=None,
        handed_on=on.HandedOn(states=((1, FILE),)),
    )
    make.aggregated(AGGREGATE, FILE, None)
    make.evaluated(EVALUATE, measured)
    make.published(PUBLISH, FILE)
    at, name = 5.0, "any"
    assert events == [
        on.Prepared(
            at_seconds=at,
            experiment=name,
            dataset="digits-1",
            shard_samples=(4, 5),
            model=FILE,
            handed_on=on.HandedOn(states=((1, FILE),)),
        ),
        on.Aggregated(at_seconds=at, experiment=name, round=3, model=FILE, parts=((3, 1),)),
        on.Evaluated(
            at_seconds=at, experiment=name, round=3, evaluation=measured, part="validation"
        ),
        on.ModelPublished(at_seconds=at, experiment=name, model=FILE),
    ]


def test_refused_updates_are_named_by_their_shards_in_order() -> None:
    """In which order their files were read makes no difference."""
    make, events = answers()
    make.refused(AGGREGATE, {4: "missing", 1: "not finite"})
    reasons = ((1, "not finite"), (4, "missing"))
    expected = on.AggregationFailed(at_seconds=5.0, experiment="any", round=3, reasons=reasons)
    assert events == [expected]


def test_a_worker_that_cannot_be_called_is_lost_and_one_that_went_has_left() -> None:
    """The reason says which."""
    make, events = answers()
    make.call_failed("anna", OSError("refused"))
    make.not_registered("anna")
    assert events == [
        on.WorkerLost(at_seconds=5.0, worker="anna", reason="the call failed: refused"),
        on.WorkerLeft(at_seconds=5.0, worker="anna", reason="it is not registered"),
    ]
