"""The example of a worker that computes wrong, as its page runs it: an audit finds it."""

import re
from pathlib import Path

import pytest

from downpour import Spec, resumed, run
from downpour.base.errors import ExperimentFailed
from downpour.files.spec_file import read_spec
from downpour.files.store.layout import RECORD_NAME as NAME
from downpour.record.record import read_record
from downpour.record.record_lines import AttemptLine, QuarantinedLine, UpdatedLine, WithheldLine
from tests.specs import model_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "wrong-machine"


@pytest.fixture
def spec(monkeypatch: pytest.MonkeyPatch) -> Spec:
    """The example's spec, whose code may run."""
    monkeypatch.setenv("DOWNPOUR_ALLOW", "wrong_machine")
    monkeypatch.setenv("DOWNPOUR_CODE", str(EXAMPLE))
    return read_spec(EXAMPLE / "wrong.toml")


@pytest.mark.slow
def test_the_wrong_worker_is_found_and_only_that_one(spec: Spec, tmp_path: Path) -> None:
    """Users read so in the table; the update that shows it never counts."""
    result = run(spec.replace(epochs=60), workers=4, shared=tmp_path)
    (line,) = [line for line in result.worker_changes if "failed an audit" in line]
    assert line.startswith("worker-2 failed an audit after")
    record = [line for _, line in read_record(tmp_path / "experiments" / result.experiment / NAME)]
    (found,) = [line for line in record if isinstance(line, QuarantinedLine)]
    (shown,) = [line for line in record if isinstance(line, WithheldLine) and same(line, found)]
    assert not any(isinstance(line, UpdatedLine) and same(line, found) for line in record)
    assert shown.worker == "worker-2"


@pytest.mark.slow
def test_a_training_goes_on_from_before_the_wrong_updates(spec: Spec, tmp_path: Path) -> None:
    """With `stop_if_wrong` it ends; continued without the wrong worker, its bytes are right."""
    plain = {"optimizer_state": "reset", "outer": {"optimizer": "none"}, "meet": 1}
    spec = spec.replace(**plain, epochs=40, audit=0.05)
    # A secret decides which rounds are audited. One run in ten finds the worker at once, when
    # there is nothing to undo, or never.
    ended: ExperimentFailed | None = None
    seed = 0
    while ended is None:
        try:
            seed += 1
            stops = spec.replace(seed=seed, stop_if_wrong=True)
            run(stops, workers=4, shared=tmp_path / "shared")
        except ExperimentFailed as error:
            ended = error
    assert re.search("worker-2: it .* continues from model-.*, without them", str(ended))
    rest = resumed(ended.experiment, shared=tmp_path / "shared", audit=0.0, stop_if_wrong=False)
    again = run(rest, workers=1, shared=tmp_path / "shared")
    undisturbed = run(spec.replace(seed=seed, audit=0.0), workers=1, shared=tmp_path / "other")
    assert model_of(again) == model_of(undisturbed)


def same(line: AttemptLine, other: AttemptLine) -> bool:
    """Whether two lines are about one attempt."""
    return all(
        getattr(line, name) == getattr(other, name) for name in ("round", "shard", "attempt")
    )
