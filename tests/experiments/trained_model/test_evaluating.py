"""`downpour evaluate`: the numbers that training reported, and those of other examples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import downpour
from downpour.base.errors import SpecError
from downpour.experiments.trained_model.locating import TrainedModel, find
from downpour.experiments.trained_model.predicting import measure
from tests.cli.conftest import Downpour, own_signals
from tests.cli.conftest import downpour as command

__all__ = ["command", "own_signals"]

pytestmark = pytest.mark.slow


def test_an_evaluation_is_the_one_after_the_last_round(
    command: Downpour, result: downpour.Result, shared: Path
) -> None:
    """The same code on the same examples; JSON for programs, lines for people."""
    outcome = command("evaluate", result.experiment, "--shared", shared, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    measured = json.loads(outcome.out)
    assert measured["loss"] == result.rounds[-1].test_loss
    assert measured["metrics"] == {"accuracy": result.rounds[-1].metrics["accuracy"]}
    assert (measured["samples"], len(measured["class_accuracy"])) == (100, 10)
    outcome = command("evaluate", result.experiment, "--shared", shared)
    loss, accuracy, count = outcome.out.splitlines()
    assert loss == f"loss {measured['loss']:.6g}"
    assert accuracy == f"accuracy {measured['metrics']['accuracy']:.6g}"
    assert count.startswith("100 examples in ")


def test_other_examples_are_normalized_as_in_training(
    trained: TrainedModel, digits: tuple[Any, Any], tmp_path: Path
) -> None:
    """Half of its own test set is brighter than all; its own mean would give other numbers."""
    x, y = digits
    bright = np.argsort(x.mean(axis=(1, 2, 3)))[50:]
    np.savez(tmp_path / "bright.npz", x=x[bright], y=y[bright])
    np.savez(tmp_path / "both.npz", x=x[:50] * 0, y=y[:50], x_test=x[bright], y_test=y[bright])
    whole = measure(trained)
    half = measure(trained, data=tmp_path / "bright.npz")
    assert (whole.samples, half.samples) == (100, 50)
    assert measure(trained, data=tmp_path / "both.npz").loss == pytest.approx(half.loss)
    np.savez(tmp_path / "test.npz", test_images=x[bright], test_labels=y[bright])
    assert measure(trained, data=tmp_path / "test.npz").loss == pytest.approx(half.loss)
    np.savez(tmp_path / "dark.npz", x=np.delete(x, bright, 0), y=np.delete(y, bright, 0))
    rest = measure(trained, data=tmp_path / "dark.npz")
    assert (half.loss + rest.loss) / 2 == pytest.approx(whole.loss)


def test_a_folder_of_images_is_measured(
    trained: TrainedModel, digits: tuple[Any, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A folder a class, in the order of their names; a line tells what is left out."""
    for number, (image, label) in enumerate(zip(*digits, strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        Image.fromarray(image[..., 0]).save(tmp_path / str(label) / f"{number}.png")
    (tmp_path / "0" / "notes.txt").touch()
    assert measure(trained, data=tmp_path).loss == pytest.approx(measure(trained).loss)
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith("files that are not read as examples: 1 .txt (such as 0/notes.txt)")


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"x": np.zeros((4, 9, 9), "u1"), "y": [0, 1, 2, 3]}, "examples are uint8 9 x 9 x 1; the"),
        ({"x": np.zeros((4, 8, 8)), "y": [0, 1, 2, 3]}, "examples are float32 8 x 8; the"),
        ({"x": np.zeros((4, 8, 8), "u1"), "y": [0, 1, 2, 10]}, "must be classes below 10"),
        ({"x": np.zeros((4, 8, 8), "u1")}, "it holds x"),
        (None, "no such file or folder"),
        (b"noise", "is not a .npz file"),
    ],
)
def test_other_examples_must_be_of_the_same_kind(
    trained: TrainedModel, tmp_path: Path, arrays: Any, reason: str
) -> None:
    """By shape, type and classes; the line names the option."""
    path = tmp_path / "x.npz"
    if isinstance(arrays, bytes):
        path.write_bytes(arrays)
    elif arrays is not None:
        np.savez(path, **arrays)
    with pytest.raises(SpecError, match=r"^data = ") as refused:
        measure(trained, data=path)
    assert reason in str(refused.value)


@pytest.mark.usefixtures("allowed")
def test_a_task_is_measured_on_its_test_examples(own: downpour.Result, shared: Path) -> None:
    """As after its last round; options may say where others are."""
    trained = find(own, shared)
    measured = measure(trained)
    assert measured.loss == own.rounds[-1].test_loss
    assert measured.metrics == own.rounds[-1].metrics
    assert measure(trained, options={"rows": 50}).samples == 50
    with pytest.raises(SpecError, match=r"data = .*is for built-in models"):
        measure(trained, data=shared)
    with pytest.raises(SpecError, match=r"task_options = .*unexpected keyword argument 'height'"):
        measure(trained, options={"height": 3})


def test_options_are_of_tasks(trained: TrainedModel) -> None:
    """A built-in model has none that could be changed afterwards."""
    with pytest.raises(SpecError, match=r"task_options = .*only a task has them"):
        measure(trained, options={"a": 1})
