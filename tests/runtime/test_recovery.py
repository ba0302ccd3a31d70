"""Journals of several experiments are one story: replayed in the order in which it happened."""

from __future__ import annotations

from downpour.runtime.journal import Line
from downpour.runtime.recovery import next_order, replay
from downpour.scheduler import Entry, Replay
from downpour.scheduler import commands as do
from downpour.scheduler import events as on
from downpour.spec import Spec
from downpour.values import PublishedFile

MODEL = PublishedFile(name="m0", size_bytes=1, checksum="0")
SPEC = Spec(shards=1)


def line(number: int, order: int, entry: Entry) -> Line:
    """Make a line whose time is its order."""
    return Line(number=number, order=order, at_seconds=order, record_lines=0, entry=entry)


def submitted(name: str) -> on.ExperimentSubmitted:
    """Say that somebody submitted an experiment."""
    return on.ExperimentSubmitted(at_seconds=0.0, experiment=name, spec=SPEC)


def test_experiments_are_replayed_in_the_order_in_which_things_happened() -> None:
    """The second experiment begins when the first one has ended, whichever name sorts first."""
    over = do.Conclude(cause=2, experiment="z", ending="cancelled", reason="enough")
    begun = on.Prepared(
        at_seconds=0.0, experiment="a", dataset="d", shard_samples=(1,), model=MODEL
    )
    stories = {
        "a": [line(1, 2, submitted("a")), line(2, 4, begun)],
        "z": [line(1, 1, submitted("z")), line(2, 3, over)],
    }
    core = Replay()
    replay(core, stories)
    states = {name: one.life.state for name, one in core.experiments.items()}
    assert states == {"z": "cancelled", "a": "running"}
    assert core.now_seconds == 4
    assert next_order(stories) == 5
    assert next_order({}) == 1
