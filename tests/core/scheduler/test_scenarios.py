"""Stories in `scenarios/*.txt`: each line an event, indented below it what came out.

`UPDATE_SCENARIOS=1 pytest tests/core/scheduler/test_scenarios.py` writes the commands anew; what
has changed is then reviewed as a diff. An attempt is written
`experiment/r<round>/s<shard>/a<attempt>`; model version `m<n>` is what round n starts from,
`result` the one that users look for.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import assert_never

import pytest

from downpour.base.states import FailureKind
from downpour.base.values import AttemptId, Progress
from downpour.core.scheduler import Scheduler
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.scheduler.invariants import check_invariants
from tests.core.scheduler import make

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))


def number(value: str) -> int | float | str:
    """Return a field of a spec as its type: `2` and `0.1` are numbers."""
    if value.isdigit():
        return int(value)
    return float(value) if value.replace(".", "").isdigit() else value


class Reader:
    """Turns the lines of a story into events; remembers what was submitted."""

    def __init__(self) -> None:
        self._specs: dict[str, on.ExperimentSubmitted] = {}
        self._verbs: dict[str, Callable[..., on.Event]] = {
            r"submit (\w+)(.*)": self._submit,
            r"(pause|continue) (\w+)": lambda at, what, experiment: on.PauseAsked(
                at_seconds=at, experiment=experiment, paused=what == "pause"
            ),
            r"cancel (\w+): (.*)": lambda at, experiment, reason: on.ExperimentCancelled(
                at_seconds=at, experiment=experiment, reason=reason
            ),
            r"prepared (\w+)": self._prepared,
            r"effect of (\w+) fails: (.*)": lambda at, experiment, reason: on.EffectFailed(
                at_seconds=at, experiment=experiment, reason=reason
            ),
            r"(\w+) joins(?: with (\S+))?": lambda at, worker, attempt: on.WorkerJoined(
                at_seconds=at, worker=worker, running=self._attempt(attempt) if attempt else None
            ),
            r"(\w+) leaves: (.*)": lambda at, worker, reason: on.WorkerLeft(
                at_seconds=at, worker=worker, reason=reason
            ),
            r"(\w+) is lost: (.*)": lambda at, worker, reason: on.WorkerLost(
                at_seconds=at, worker=worker, reason=reason
            ),
            r"(\w+) beats ?(\S*)(?: at step (\d+)(?: of (\d+))?)?(?: moved (\d+))?"
            r"(?: saved as (\S+))?": self._beats,
            r"(\w+) publishes (\S+)( otherwise)?": self._publishes,
            r"(\w+) fails (\S+) (\w+): (.*)": lambda at, worker, attempt, failure, reason: (
                on.AttemptFailed(
                    at_seconds=at,
                    worker=worker,
                    attempt=self._attempt(attempt),
                    failure=FailureKind(failure),
                    reason=reason,
                )
            ),
            r"aggregated (\w+) r(\d+)": lambda at, experiment, number: on.Aggregated(
                at_seconds=at,
                experiment=experiment,
                round=int(number),
                model=make.file(f"m{int(number) + 1}"),
            ),
            r"refused (\w+) r(\d+) s(\d+): (.*)": lambda at, experiment, number, shard, reason: (
                on.AggregationFailed(
                    at_seconds=at,
                    experiment=experiment,
                    round=int(number),
                    reasons=((int(shard), reason),),
                )
            ),
            r"(evaluated|validated) (\w+) r(\d+)(?: (\S+))?": self._evaluated,
            r"published (\w+)": lambda at, experiment: on.ModelPublished(
                at_seconds=at, experiment=experiment, model=make.file("result")
            ),
            r"tick": lambda at: on.Tick(at_seconds=at),
        }

    def read(self, line: str) -> on.Event:
        """Return the event that a line tells of; each line begins with the time in seconds."""
        at_seconds, _, text = line.partition(" ")
        for pattern, build in self._verbs.items():
            match = re.fullmatch(pattern, text.strip())
            if match is not None:
                return build(float(at_seconds), *match.groups())
        raise AssertionError(f"no event is written like '{line}'")

    def _submit(self, at: float, experiment: str, fields: str) -> on.Event:
        given = dict(pair.split("=") for pair in fields.split())
        spec = make.spec(**{key: number(value) for key, value in given.items()})
        event = on.ExperimentSubmitted(at_seconds=at, experiment=experiment, spec=spec)
        self._specs.setdefault(experiment, event)
        return event

    def _prepared(self, at: float, experiment: str) -> on.Event:
        shards = self._specs[experiment].spec.shards
        return on.Prepared(
            at_seconds=at,
            experiment=experiment,
            dataset="d",
            shard_samples=(10,) * shards,
            model=make.file("m0"),
        )

    def _evaluated(
        self, at: float, how: str, experiment: str, number: str, loss: str | None
    ) -> on.Event:
        return on.Evaluated(
            at_seconds=at,
            experiment=experiment,
            round=int(number),
            evaluation=make.evaluation(loss=float(loss or 0.5)),
            part="validation" if how == "validated" else "test",
        )

    def _beats(
        self,
        at: float,
        worker: str,
        attempt: str,
        step: str | None,
        total: str | None,
        moved: str | None,
        saved: str | None,
    ) -> on.Event:
        running: tuple[Progress, ...] = ()
        if attempt:
            progress = make.progress(self._attempt(attempt), int(step or 1), saved)
            steps = int(total or progress.steps_total)
            running = (replace(progress, steps_total=steps, moved_bytes=int(moved or 0)),)
        return on.HeartbeatReceived(
            at_seconds=at, worker=worker, running=running, system=make.SYSTEM
        )

    def _publishes(self, at: float, worker: str, text: str, otherwise: str | None) -> on.Event:
        attempt = self._attempt(text)
        known = self._specs.get(attempt.experiment)
        keeps = known is not None and known.spec.optimizer_state == "keep"
        name = text.partition("/")[2].replace("/", "")
        update = make.update(name, keeps_state=keeps)
        if otherwise:
            update = replace(update, file=replace(update.file, checksum="1" * 32))
        return on.UpdatePublished(at_seconds=at, worker=worker, attempt=attempt, update=update)

    def _attempt(self, text: str) -> AttemptId:
        match = re.fullmatch(r"(\w+)/r(-?\d+)/s(-?\d+)/a(-?\d+)", text)
        assert match is not None, f"'{text}' is no attempt"
        return make.attempt(match[1], int(match[2]), int(match[3]), int(match[4]))


def in_words(fact: out.Fact) -> str:  # noqa: C901, PLR0911, PLR0912 - one arm a fact
    """Write what has happened as one line of a story."""
    match fact:
        case out.Assigned():
            state = fact.optimizer_state
            start = fact.model.name + (f" and {state.name}" if state else "")
            start += f" moved by {fact.step.name}" if fact.step else ""
            start += f", on from {fact.snapshot.file.name}" if fact.snapshot else ""
            return f"assigned {fact.worker} {_attempt_of(fact)} from {start} ({fact.reason})"
        case out.ForecastRecorded():
            return f"forecast {_attempt_of(fact)} at {fact.done:.0%}"
        case out.Accepted():
            seconds = f"{fact.completion_seconds:g} s"
            return f"accepted {fact.worker} {_attempt_of(fact)} after {seconds}"
        case out.HandOverAsked():
            return f"to hand over {_attempt_of(fact)} to {fact.meant_for} ({fact.reason})"
        case out.Dropped():
            shards = " ".join(map(str, fact.shards))
            return f"dropped {fact.experiment} r{fact.round} shards {shards} ({fact.reason})"
        case out.Resized():
            sizes = " ".join(map(str, fact.samples))
            return f"cut {fact.experiment} r{fact.round} into {sizes} ({fact.reason})"
        case out.Improved():
            assert fact.model is not None
            which = f"{fact.experiment} r{fact.round}"
            return f"improved {which} to {fact.value:g} in {fact.model.name}"
        case out.Rescheduled():
            return f"{fact.change} {fact.experiment}"
        case out.WorkerRequested():
            return f"requested a worker for {fact.experiment} ({fact.reason})"
        case out.Explained():
            return f"explained {fact.worker} ({fact.reason})"
        case out.Saved():
            return f"saved {_attempt_of(fact)} in {fact.snapshot.file.name}"
        case out.Withheld():
            return f"withheld {fact.worker} {_attempt_of(fact)}"
        case out.Quarantined():
            return f"quarantined {fact.worker} ({fact.reason})"
        case out.Contradicted():
            made = f"what {fact.accepted_from} made"
            return f"contradicted {fact.worker} {_attempt_of(fact)}, not {made}"
        case out.GivenUp():
            why = f"{fact.failure}: {fact.reason}"
            return f"given up {fact.worker} {_attempt_of(fact)} ({why})"
        case out.Dismissed():
            return f"dismissed {fact.worker} ({fact.reason})"
        case out.Concluded():
            model = f" with {fact.model.name}" if fact.model else ""
            fault = ", asked wrongly" if fact.asked_wrongly else ""
            return f"concluded {fact.experiment} {fact.ending}{model}{fault} ({fact.reason})"
        case _:
            assert_never(fact)


def asked(command: out.Command) -> str:  # noqa: C901, PLR0911, PLR0912 - one arm a command
    """Write what is to be done as one line of a story."""
    match command:
        case out.Prepare():
            return f"prepare {command.experiment}"
        case out.Assign(assigned):
            return f"assign {assigned.worker} {_attempt_of(assigned)}"
        case out.Cancel():
            return f"cancel {command.worker} {_attempt_of(command)} ({command.reason})"
        case out.HandOver():
            return f"hand over {command.worker} {_attempt_of(command)}"
        case out.Adopt():
            return f"adopt {command.experiment} {len(command.attempts)} attempts"
        case out.Gather():
            which = f"{command.experiment} r{command.round}/s{command.shard}"
            return f"gather {which} of {command.update.file.name}"
        case out.Aggregate():
            names = " ".join(update.file.name for update in command.updates)
            which = f"{command.experiment} r{command.round}"
            return f"aggregate {which} of {names}, trained in {command.train_seconds:g} s"
        case out.Evaluate():
            on_what = " on validation" if command.part == "validation" else ""
            which = f"{command.experiment} r{command.round} {command.model.name}"
            return f"evaluate {which}{on_what}"
        case out.Publish():
            best = f" and {command.best.name} as the best" if command.best else ""
            return f"publish {command.experiment} {command.model.name}{best}"
        case out.Dismiss():
            return f"dismiss {command.worker}"
        case out.Discard():
            return f"discard {command.experiment} {' '.join(f.name for f in command.files)}"
        case out.Conclude():
            kept = f", keep {' '.join(f.name for f in command.kept)}" if command.kept else ""
            return f"conclude {command.experiment}{kept}"
        case _:
            assert_never(command)


def _attempt_of(one: out.AttemptFact | out.Cancel | out.HandOver) -> str:
    attempt = one.attempt
    return f"{attempt.experiment}/r{attempt.round}/s{attempt.shard}/a{attempt.attempt}"


def replay(story: str) -> Iterator[str]:
    """Return the lines of a story with the facts and the commands that come out now."""
    scheduler, reader = Scheduler(), Reader()
    for line in story.splitlines():
        if line.startswith(" "):
            continue
        yield line
        if line and not line.startswith("#"):
            output = scheduler.handle(reader.read(line))
            yield from (f"    {in_words(fact)}" for fact in output.facts)
            yield from (f"    {asked(command)}" for command in output.commands)
            check_invariants(scheduler.state)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_story_is_told_as_it_was_reviewed(path: Path) -> None:
    """Each scenario's events give exactly the facts and commands that stand below them."""
    story = path.read_text(encoding="utf-8")
    now = "\n".join(replay(story)) + "\n"
    if os.environ.get("UPDATE_SCENARIOS") == "1":
        path.write_text(now, encoding="utf-8")
    else:
        assert now == story


def test_there_are_stories() -> None:
    """The scenarios are found; an empty folder would pass in silence."""
    assert len(SCENARIOS) >= 20
