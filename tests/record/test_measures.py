"""What a task measures, in every display, with means and their intervals."""

import csv
import dataclasses
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downpour.base.states import ExperimentState
from downpour.network.rpc.messages import ExperimentSummary, Metric, Status
from downpour.record import Result
from downpour.record.result_parts import BestModel, Estimate, Measure, in_words, t_quantile
from downpour.show.report import plots_of
from downpour.show.tables.live import experiments_table, status_view
from downpour.show.tables.report_tables import tables_of
from downpour.show.tables.terminal_tables import result_table, study_table
from tests.show.conftest import Make
from tests.show.tables.test_terminal_tables import LINES
from tests.show.terminal import rendered


def with_metrics(**metrics: float) -> Result:
    """Return the recorded result as if its task had measured these at each epoch instead."""
    result = Result.from_lines(LINES)
    rounds = tuple(
        dataclasses.replace(r, metrics=dict(metrics), class_accuracy=()) for r in result.rounds
    )
    return dataclasses.replace(result, rounds=rounds, epochs=rounds)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("accuracy", "31.25%"),
        ("top5_accuracy", "31.25%"),
        ("val/acc", "31.25%"),
        ("loss", "0.3125"),
        ("accurate", "0.3125"),
        ("pace", "0.3125"),
    ],
)
def test_only_accuracies_are_told_in_percent(name: str, text: str) -> None:
    """By the words of their names."""
    assert Measure(name).text(0.3125) == text


def test_the_first_metric_stands_for_a_model_and_the_loss_where_there_is_none() -> None:
    """A metric that was no number is passed over."""
    assert in_words({"psnr": 31.5, "accuracy": 0.5}, 0.1) == "psnr 31.5000"
    assert in_words({"psnr": None, "accuracy": 0.5}, 0.1) == "accuracy 50.00%"
    assert in_words({}, 0.1) == "loss 0.1000"
    assert in_words({}, None) == ""


def test_a_result_tells_whatever_was_measured() -> None:
    """In its line, its table, as JSON and as CSV; it has no accuracy then."""
    result = with_metrics(perplexity=12.5, bytes=3.0)
    assert "perplexity 12.5000" in repr(result)
    assert (result.accuracy, result.metrics["perplexity"]) == (None, 12.5)
    first = json.loads(result.to_json())["rounds"][0]
    assert (first["perplexity"], first["metric_bytes"]) == (12.5, 3.0)
    assert first["bytes"] == result.rounds[0].bytes
    (row, *_) = csv.DictReader(io.StringIO(result.to_csv()))
    assert list(row)[:4] == ["epoch", "round", "perplexity", "metric_bytes"]
    said = rendered(result_table(result))
    assert "12.5000" in said
    assert "accuracy" not in said


def test_a_table_shows_as_many_metrics_as_there_is_room_for() -> None:
    """The first ones; 80 columns hold one of any length."""
    many = with_metrics(**{f"metric_number_{n}": float(n) for n in range(9)})
    said = rendered(result_table(many)).splitlines()
    assert max(map(len, said)) <= 80
    assert "number" in "".join(said)


def test_without_metrics_the_loss_is_shown(make: Make) -> None:
    """In tables, figures and lists of experiments."""
    plain = make.workers()
    runs = [dataclasses.replace(run, result=without(run.result)) for run in plain.runs]
    subgrid = dataclasses.replace(plain, runs=tuple(runs))
    assert "test loss" in " ".join(rendered(study_table(subgrid)).split())
    outcomes = json.loads(tables_of(make.study(subgrid))[0].to_json())
    assert outcomes[0]["test_loss"]["mean"] == 0.6
    (learning, *_) = plots_of(make.study(subgrid))
    assert learning.figure.axes[0].get_ylabel() == "test loss"


def test_the_best_model_is_told_below_the_table() -> None:
    """What it was judged by, after which epoch it was there, and the name of its file."""
    best = BestModel(
        epoch=2, metric="psnr", value=31.5, file=Path("experiments/e/best.safetensors")
    )
    result = dataclasses.replace(with_metrics(psnr=31.5), best=best, reason="no better psnr since")
    said = rendered(result_table(result))
    assert "best psnr 31.5000 after epoch 2, kept as best.safetensors" in said
    assert "no better psnr since" in said
    assert "best accuracy 31.25% after epoch 2\n" in rendered(
        result_table(
            dataclasses.replace(
                result, best=BestModel(epoch=2, metric="accuracy", value=0.3125, file=None)
            )
        )
    )


def without(result: Result) -> Result:
    """Return a result whose task had no metrics."""
    rounds = tuple(dataclasses.replace(r, metrics={}) for r in result.rounds)
    return dataclasses.replace(result, rounds=rounds, epochs=rounds)


def test_a_list_of_experiments_says_what_each_was_measured_by() -> None:
    """Once above the column if all are alike, else in each line."""
    one = ExperimentSummary(
        experiment="a",
        name="a",
        state=ExperimentState.RUNNING,
        rounds_done=1,
        rounds_total=2,
        metrics=(Metric(name="psnr", value=31.5),),
        loss=0.5,
    )
    other = dataclasses.replace(one, experiment="b", metrics=())
    assert "psnr\n" in rendered(experiments_table([one, one]))
    said = rendered(experiments_table([one, other]))
    assert "psnr 31.5000" in said
    assert "loss 0.5000" in said
    assert ", psnr 31.5000" in rendered(status_view(Status(change=1, experiment=one)))


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (2, 4.3027), (9, 2.2622), (29, 2.0452)]
)
def test_the_quantiles_are_those_of_the_tables(degrees: int, expected: float) -> None:
    """Two-sided, 95 %, as printed in any book of statistics."""
    assert t_quantile(degrees) == pytest.approx(expected, abs=5e-5)


def test_an_interval_is_what_the_textbook_says() -> None:
    """Mean 3, deviation sqrt(2.5), five values: 2.7764 standard errors to either side."""
    estimate = Estimate.of([1, 2, 3, 4, 5])
    assert estimate is not None
    assert (estimate.mean, estimate.count) == (3, 5)
    assert estimate.half_width == pytest.approx(2.7764 * math.sqrt(2.5 / 5), abs=1e-4)


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    """What was not measured does not count."""
    assert Estimate.of([None, 7.0, math.nan]) == Estimate(7.0, None, 1)
    assert Estimate.of([None, math.inf]) is None


@given(value=st.floats(-1e6, 1e6), count=st.integers(2, 20))
def test_the_same_value_over_and_over_is_certain(value: float, count: int) -> None:
    """The interval has no width."""
    estimate = Estimate.of([value] * count)
    assert estimate is not None
    assert estimate.half_width == 0
