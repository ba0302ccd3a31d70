"""What journals and a shared directory come to, where no manager can be asked."""

import os
import re
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from downpour.base.states import ExperimentState
from downpour.base.values import PublishedFile
from downpour.core.node.journal import Line
from downpour.core.scheduler import Entry, Scheduler, durable
from downpour.core.scheduler import events as on
from downpour.core.scheduler import outputs as out
from downpour.core.spec import Spec
from downpour.files.store.layout import RECORD_NAME
from downpour.files.store.shared_directory import RUN_LOCK_NAME
from downpour.record import stored_experiments
from downpour.record.journal import belongs_elsewhere, next_order, replay
from downpour.record.record import export_record, line_text
from downpour.record.record_lines import CancelledLine, SubmittedLine
from downpour.record.result import Result, rounds_in
from downpour.record.stored_experiments import experiments_in
from tests.specs import plain_spec

MODEL = PublishedFile(name="m0", size_bytes=1, checksum="0")

SPEC = plain_spec(shards=1)

ROUND: dict[str, Any] = {"cause": 1, "experiment": "bad", "round": 7, "reason": "slow"}


def line(number: int, order: int, entry: Entry) -> Line:
    """Make a line whose time is its order."""
    return Line(number=number, order=order, at_seconds=order, entry=entry)


def submitted(name: str) -> on.ExperimentSubmitted:
    """Say that somebody submitted an experiment."""
    return on.ExperimentSubmitted(at_seconds=0.0, experiment=name, spec=SPEC)


def prepared(name: str) -> on.Prepared:
    """Say that an experiment begins."""
    return on.Prepared(
        at_seconds=0.0, experiment=name, dataset="d", shard_samples=(1,), model=MODEL
    )


def states(core: Scheduler) -> dict[str, str]:
    """Return what each experiment has come to, in order."""
    return {name: one.life.state for name, one in core.state.experiments.items()}


def test_experiments_are_taken_up_in_the_order_of_submission() -> None:
    """The one that has begun goes on, whichever name sorts first; the others wait."""
    over = out.Concluded(cause=2, experiment="z", ending=ExperimentState.CANCELLED, reason="enough")
    stories = {
        "a": [line(1, 2, submitted("a")), line(2, 5, prepared("a"))],
        "b": [line(1, 4, submitted("b"))],
        "z": [line(1, 1, submitted("z")), line(2, 3, over)],
    }
    core = Scheduler()
    assert replay(core, stories) == {}
    assert list(states(core).items()) == [("z", "cancelled"), ("a", "running"), ("b", "waiting")]
    assert core.state.active is core.state.experiments["a"]
    assert core.state.now_seconds == 5
    assert next_order(stories) == 6
    assert next_order({}) == 1


def test_the_first_submission_is_next_if_none_has_begun() -> None:
    """By submission, not by name."""
    core = Scheduler()
    replay(core, {"a": [line(1, 2, submitted("a"))], "b": [line(1, 1, submitted("b"))]})
    assert list(states(core).items()) == [("b", "preparing"), ("a", "waiting")]


@pytest.mark.parametrize(
    ("story", "reason"),
    [
        ([line(1, 1, prepared("bad"))], "does not begin with a submission"),
        (
            [line(1, 1, submitted("bad")), line(2, 3, out.Resized(**ROUND, samples=(1,)))],
            "cannot be replayed .*round 7 of bad",
        ),
        ([line(1, 1, submitted("bad")), line(2, 3, submitted("other"))], "cannot be replayed"),
    ],
)
def test_a_story_that_cannot_be_told_touches_no_other(story: list[Line], reason: str) -> None:
    """It is left out, by name, and the core is as if it had never been."""
    good = [line(1, 2, submitted("good")), line(2, 4, prepared("good"))]
    core, alone = Scheduler(), Scheduler()
    left_out = replay(core, {"bad": story, "good": good})
    assert list(left_out) == ["bad"]
    assert re.search(reason, left_out["bad"])
    assert replay(alone, {"good": good}) == {}
    assert durable(core.state) == durable(alone.state)


def test_all_that_have_begun_go_on() -> None:
    """One may have begun beside the other, or was left out for a while and is mended now."""
    stories = {
        "mended": [line(1, 1, submitted("mended")), line(2, 2, prepared("mended"))],
        "later": [line(1, 3, submitted("later")), line(2, 4, prepared("later"))],
    }
    core = Scheduler()
    assert replay(core, stories) == {}
    assert states(core) == {"mended": "running", "later": "running"}
    assert [each.name for each in core.state.open] == ["mended", "later"]


def test_a_story_says_where_it_belongs() -> None:
    """A copy under another name and another cluster's folder are not this manager's."""
    story = [replace(line(1, 1, submitted("one")), cluster="here")]
    assert belongs_elsewhere(story, "one", "here") is None
    assert belongs_elsewhere(story, "one-backup", "here") == "a copy of one"
    told = "another cluster's (here; this one is there)"
    assert belongs_elsewhere(story, "one", "there") == told


RECORDED = Path(__file__).parents[1] / "recorded"


def test_records_are_summed_up_and_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    """Damaged records, folders without one and files beside them hide no experiment."""
    spec = Spec(epochs=7).model_dump()
    for name in ("ended", "damaged"):
        (tmp_path / name).mkdir()
        told = SubmittedLine(experiment=name, name="any", spec=spec, version="0", shards=2)
        ended = CancelledLine(reason="enough")
        export_record(tmp_path / name, [line_text(0.0, told), line_text(1.0, ended)])
    (tmp_path / "damaged" / RECORD_NAME).write_text("no fact\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (found,) = experiments_in(tmp_path)
    assert (found.experiment, found.state, found.reason) == ("ended", "cancelled", "enough")
    assert (found.rounds_done, found.rounds_total, found.metrics) == (0, 7, ())


def test_only_the_last_ones_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are many, it would take minutes to read all records."""
    for age, name in enumerate(("newest", "middle", "oldest")):
        (tmp_path / name).mkdir()
        told = SubmittedLine(
            experiment=name, name="any", spec=Spec().model_dump(), version="0", shards=2
        )
        export_record(tmp_path / name, [line_text(0.0, told)])
        os.utime(tmp_path / name / RECORD_NAME, (1000 - age, 1000 - age))
    read: list[str] = []

    def noted(folder: Path, without: Collection[str]) -> Result:
        read.append(folder.name)
        return rounds_in(folder, without)

    monkeypatch.setattr(stored_experiments, "rounds_in", noted)
    (tmp_path / "newest" / RUN_LOCK_NAME).touch()  # its process has ended
    middle, newest = experiments_in(tmp_path, 2)
    assert (middle.experiment, middle.reason, newest.experiment) == ("middle", None, "newest")
    assert (newest.reason or "").startswith("no manager has it now")
    assert read == ["newest", "middle"]


def test_a_summary_agrees_with_the_result() -> None:
    """Although it needs few kinds of lines."""
    results = [Result.read(record.parent) for record in RECORDED.glob("*/record.jsonl")]
    expected = {(one.experiment, one.state, len(one.rounds), one.test_loss) for one in results}
    found = experiments_in(RECORDED)
    assert {(one.experiment, one.state, one.rounds_done, one.loss) for one in found} == expected


def test_a_directory_without_experiments_holds_none(tmp_path: Path) -> None:
    """Also where there is no directory."""
    assert experiments_in(tmp_path / "nowhere") == ()
