"""Traces are checked when they are read."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from downpour.base.errors import SpecError
from downpour_lab.fitting.training_data import Traces, read_traces
from tests.predictor.conftest import columns, write

COMMITTED = Path(__file__).parents[3] / "traces" / "traces.npz"


def refusal(path: Path) -> str:
    """Return the line with which a trace is refused."""
    with pytest.raises(SpecError) as caught:
        read_traces(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_rows_may_come_in_any_order(traces: Traces, tmp_path: Path) -> None:
    """Jobs and rounds are put together again."""
    order = np.random.default_rng(0).permutation(len(columns()["job"]))
    mixed = read_traces(write(tmp_path / "a.npz", {n: c[order] for n, c in columns().items()}))
    assert [job.number for job in mixed.jobs] == [0, 1, 2]
    for one, other in zip(mixed.jobs, traces.jobs, strict=True):
        for rows, expected in zip(one.rounds, other.rounds, strict=True):
            assert sorted(mixed.seconds(rows)) == sorted(traces.seconds(expected))
    assert mixed.percents == (10, 25)


def test_features_tell_no_more_than_was_known(traces: Traces) -> None:
    """Neither later reports nor the outcome."""
    names = set(traces.features(traces.jobs[0].rounds[0], (10,))[0])
    assert "p10_elapsed_s" in names
    assert not {name for name in names if name.startswith("p25") or name == "completion_s"}


@pytest.mark.parametrize("name", ["job", "worker", "n_samples", "completion_s"])
def test_a_missing_column_is_named(name: str, tmp_path: Path) -> None:
    """The line says which."""
    told = columns()
    del told[name]
    assert refusal(write(tmp_path / "t.npz", told)).endswith(f"has no column {name}")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("completion_s", -1.0, "column completion_s holds -1; must be above 0"),
        ("completion_s", math.nan, "column completion_s holds a value that is not finite"),
        ("p10_elapsed_s", -2.0, "column p10_elapsed_s holds -2; must be 0 or above"),
        ("n_samples", 0.0, "column n_samples holds 0; must be above 0"),
        ("cpu_util", math.inf, "column cpu_util holds a value that is not finite"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_its_column(
    name: str, value: float, said: str, tmp_path: Path
) -> None:
    """Negative seconds above all."""
    told = columns()
    told[name] = told[name].astype(float)
    told[name][5] = value
    assert refusal(write(tmp_path / "t.npz", told)).endswith(said)


def test_state_may_be_missing(tmp_path: Path) -> None:
    """Not every machine tells everything."""
    told = columns()
    told["iowait"][:] = math.nan
    assert read_traces(write(tmp_path / "t.npz", told)).jobs


def test_a_file_without_a_trace_is_refused_in_one_line(tmp_path: Path) -> None:
    """Nothing there, not a zip file, a cut one, columns of other shapes, no rows."""
    assert "no such file" in refusal(tmp_path / "none.npz")
    text = tmp_path / "text.npz"
    text.write_text("job,round\n")
    assert "is not an .npz file" in refusal(text)
    whole = write(tmp_path / "whole.npz", columns()).read_bytes()
    cut = tmp_path / "cut.npz"
    cut.write_bytes(whole[: len(whole) // 2])
    assert "is not an .npz file" in refusal(cut)
    short = columns() | {"iowait": np.zeros(3)}
    assert "column iowait has 3 rows" in refusal(write(tmp_path / "short.npz", short))
    square = columns() | {"iowait": np.zeros((3, 3))}
    assert "must be one list of numbers" in refusal(write(tmp_path / "square.npz", square))
    empty = {name: column[:0] for name, column in columns().items()}
    assert "has no rows" in refusal(write(tmp_path / "empty.npz", empty))


def test_jobs_of_one_seed_are_one_family(tmp_path: Path) -> None:
    """They ran on the same machines; jobs without a label are families of their own."""
    path = write(tmp_path / "t.npz", columns(jobs=4))
    told = [{"job": job, "scenario": "calm", "seed": job // 2} for job in range(3)]
    (tmp_path / "jobs.json").write_text(json.dumps(told))
    assert read_traces(path).families == {0: 0, 1: 0, 2: 1, 3: 2}
    (tmp_path / "jobs.json").write_text('[{"job": 0}]')
    assert "jobs.json" in refusal(path)


def test_the_committed_traces_are_whole() -> None:
    """36 jobs in 12 families, with reports at 10, 25 and 50 %."""
    traces = read_traces(COMMITTED)
    assert (len(traces.jobs), len(set(traces.families.values()))) == (36, 12)
    assert traces.percents == (10, 25, 50)
