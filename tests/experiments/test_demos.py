"""Demos: they run to their end, what they print can be typed, and they need no download."""

import hashlib
import shlex
from pathlib import Path

import numpy as np
import pytest

from downpour.core.resolve import resolve
from downpour.experiments.demos import DEMOS, Act, clouds, times
from tests.cli.conftest import Downpour, downpour, own_signals

__all__ = ["downpour", "own_signals"]

EPOCHS = 3
ACTS = [
    pytest.param(act, id=f"{name}: {act.title}") for name, one in DEMOS.items() for act in one.acts
]


@pytest.mark.parametrize("act", ACTS)
def test_an_act_can_be_trained_and_disturbed_as_it_says(act: Act) -> None:
    """Its spec fits its workers, and its disturbances fit both."""
    act.check({})
    assert resolve(act.spec({}), act.workers).shards <= 5


def test_a_command_line_has_all_that_an_act_is() -> None:
    """Changed fields are there once, as they are now; the shell takes each word as one."""
    act = Act(
        title="it",
        fields={"epochs": 5, "batch_size": 1, "model": "digits-cnn"},
        workers=3,
        slow={"worker-3": 0.25},
        kill=["manager@round3"],
    )
    line = act.command({"epochs": 2, "data_path": "my data.npz"})
    assert line == (
        "downpour run --epochs=2 --batch-size=1 --model=digits-cnn '--data-path=my data.npz' "
        "--workers=3 --slow=worker-3=0.25 --kill=manager@round3"
    )


def test_how_many_times_is_said_with_one_digit() -> None:
    """Also of runs that took no time."""
    assert [times(3.0, 2.0), times(3.0, 0.0)] == ["1.5 times", "many times"]


def test_clouds_can_be_told_apart_and_are_always_the_same() -> None:
    """The nearest center of the training examples names most test examples."""
    data, again = clouds(), clouds()
    assert all(np.array_equal(data[name], again[name]) for name in data)
    centers = np.stack([data["x"][data["y"] == label].mean(axis=0) for label in range(10)])
    apart = ((data["x_test"][:, None] - centers) ** 2).sum(axis=(2, 3))
    assert np.mean(apart.argmin(axis=1) == data["y_test"]) > 0.9


def test_without_a_name_the_demos_are_listed(downpour: Downpour) -> None:
    """A line each."""
    outcome = downpour("demo")
    assert (outcome.status, outcome.err) == (0, "")
    assert [line.split()[0] for line in outcome.out.splitlines()] == list(DEMOS)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_clusters")
@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_runs_to_its_end(
    downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A row for each act, a sentence, a figure, and the command lines."""
    monkeypatch.chdir(tmp_path)
    outcome = downpour("demo", name, "--epochs", EPOCHS, "--to", "it.svg")
    assert outcome.status == 0, outcome
    assert "Notice: " in outcome.out
    assert "Figure: it.svg" in outcome.out
    assert (tmp_path / "it.svg").read_text().startswith("<?xml")
    commands = [line for line in outcome.out.splitlines() if "  downpour run " in line]
    assert len(commands) == len(DEMOS[name].acts)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_clusters")
def test_a_printed_command_line_makes_the_same_model(
    downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the kill, as in the demo; the demo says that both of its models are equal.

    With three epochs, training could end before somebody saw that its third round had begun.
    """
    monkeypatch.chdir(tmp_path)
    outcome = downpour("demo", "crash")
    assert "the same, byte for byte" in outcome.out
    [command] = [line for line in outcome.out.splitlines() if "--kill=" in line]
    again = downpour(*shlex.split(command)[1:])
    assert again.status == 0, again
    assert "manager is killed and starts again on purpose" in again.out
    model = Path(again.out.split("model ")[-1].strip())
    assert hashlib.sha256(model.read_bytes()).hexdigest()[:12] in outcome.out
