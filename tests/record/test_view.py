"""The record is a projection of the journal: each line follows from entries alone."""

import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.states import ExperimentState
from downpour.base.values import PublishedFile
from downpour.core.node.journal import Line
from downpour.core.scheduler import Journaled, TakenUp
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import ResolvedSpec
from downpour.record import record_lines as told
from downpour.record.view import View, aggregating, observed
from tests.record.lines import joined, prepared
from tests.record.test_journal import CHECKPOINT
from tests.specs import plain_spec, plain_update

FILE = PublishedFile(name="model-1", size_bytes=7, checksum="abc")
SPEC = plain_spec(shards=2)
SUBMITTED = on.ExperimentSubmitted(at_seconds=0.0, experiment="one", spec=SPEC, version="9")
PREPARED = on.Prepared(
    at_seconds=1.0, experiment="one", dataset="d", shard_samples=(3, 4), model=FILE
)
AGGREGATED = on.Aggregated(at_seconds=2.0, experiment="one", round=4, model=FILE)
KNOWN = prepared(3, 4)
JOINED = joined("ann")


def lines_of(*entries: Journaled) -> list[tuple[float, told.RecordLine]]:
    """Project entries, a second apart."""
    view = View()
    lines = [
        Line(number=second + 1, order=second + 1, at_seconds=float(second), entry=entry)
        for second, entry in enumerate(entries)
    ]
    return [made for line in lines for made in view.take(line)]


def begun(*losses: float, **fields: Any) -> out.Aggregate:
    """Make the command of an aggregation of updates with these losses."""
    pushes = tuple(
        out.Push(
            round=shard,
            shard=shard,
            update=plain_update(FILE, samples=1 + shard, loss=loss),
            base=FILE,
            staleness=shard,
        )
        for shard, loss in enumerate(losses)
    )
    return out.Aggregate(
        experiment="one", round=4, model=FILE, pushes=pushes, train_seconds=8.0, **fields
    )


@pytest.mark.parametrize("kind", get_args(out.Fact))
@given(data=st.data())
def test_every_fact_goes_on_record(kind: type[out.Fact], data: st.DataObject) -> None:
    """As one line, at its time; a fact that is new needs an arm in the view."""
    fact: out.Fact = data.draw(st.from_type(kind))
    [(at_seconds, line)] = lines_of(fact)
    assert at_seconds == 0.0
    shared = {"worker", "reason", "round", "shards", "samples", "value", "lost"}
    same = shared & set(line.__struct_fields__) & set(kind.__dataclass_fields__)
    assert [getattr(line, name) for name in same] == [getattr(fact, name) for name in same]


def test_a_submission_has_the_managers_version() -> None:
    """And what the manager alone knows comes as it was observed."""
    [(_, first), (at_seconds, second)] = lines_of(SUBMITTED, observed("one", JOINED))
    assert isinstance(first, told.SubmittedLine)
    assert (first.experiment, first.version, first.shards) == ("one", "9", 2)
    assert ResolvedSpec.make(first.spec) == SPEC
    assert first.spec == json.loads(json.dumps(first.spec)), "as it is read from a file"
    assert (at_seconds, second) == (1.0, JOINED)


def test_a_preparation_is_told_once_it_counts() -> None:
    """Not where a crash has cut off the entry, nor where a later manager prepares again."""
    assert lines_of(observed("one", KNOWN)) == []
    assert lines_of(observed("one", KNOWN), PREPARED, TakenUp(), PREPARED) == [(1.0, KNOWN)]


def test_an_aggregation_is_told_with_what_was_known_when_it_began() -> None:
    """Its seconds run until it counts; under another manager as well."""
    [(at_seconds, line)] = lines_of(aggregating(begun(1.0, 4.0)), TakenUp(), AGGREGATED)
    assert (at_seconds, line) == (
        2.0,
        told.AggregatedLine(
            round=4,
            version=5,
            file="model-1",
            bytes=7,
            seconds=2.0,
            train_seconds=8.0,
            loss=3.0,
            summed="tree",
            checksum="abc",
            whole=True,
        ),
    )
    assert lines_of(AGGREGATED) == [], "nothing is made up"


def test_an_aggregation_out_of_step_names_its_parts() -> None:
    """And how many versions old those were that they began from; a loss may be no number."""
    command = begun(1.0, math.nan, in_step=False)
    [(_, line)] = lines_of(aggregating(command), AGGREGATED)
    assert isinstance(line, told.AggregatedLine)
    assert (line.parts, line.staleness, line.summed) == (((0, 0), (1, 1)), (0, 1), "")
    assert math.isnan(line.loss)


@pytest.mark.parametrize(
    ("ending", "model", "line"),
    [
        (
            "finished",
            FILE,
            told.FinishedLine(file="model-1", total_seconds=1.0, checksum="abc", reason=""),
        ),
        ("cancelled", None, told.CancelledLine(reason="")),
        ("failed", None, told.FailedLine(reason="", asked_wrongly=True)),
    ],
)
def test_an_end_is_told(ending: str, model: PublishedFile | None, line: told.RecordLine) -> None:
    """In one of three ways; the whole time is that since the submission."""
    ended = out.Concluded(
        cause=1,
        experiment="one",
        ending=ExperimentState(ending),  # type: ignore[arg-type]
        reason="",
        asked_wrongly=True,
        model=model,
    )
    assert lines_of(SUBMITTED, ended)[1:] == [(1.0, line)]


def test_a_checkpoint_tells_people_nothing() -> None:
    """It is for replay."""
    assert lines_of(CHECKPOINT) == []
