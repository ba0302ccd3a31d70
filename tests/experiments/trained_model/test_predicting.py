"""`downpour predict`: a row for each example, from arrays, images and a task's own examples."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import downpour
from downpour.base.errors import SpecError
from downpour.experiments.locating import TrainedModel, find
from downpour.experiments.trained_model import _columns, predict, task_of
from tests.cli.conftest import Downpour, own_signals
from tests.cli.conftest import downpour as command

__all__ = ["command", "own_signals"]

pytestmark = pytest.mark.slow


def test_arrays_and_images_give_the_same_classes(
    trained: TrainedModel, digits: tuple[Any, Any], result: downpour.Result, tmp_path: Path
) -> None:
    """As many are right as the evaluation says; images are called by their files."""
    x, y = digits
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x[..., 0], y=y)
    np.savez(tmp_path / "one.npz", anything=x)
    (tmp_path / "images").mkdir()
    for number, image in enumerate(x):
        Image.fromarray(image[..., 0]).save(tmp_path / "images" / f"{number:03}.png")
    rows = predict(trained, str(tmp_path / "x.npy"))
    for other in ("x.npz", "one.npz"):
        assert predict(trained, str(tmp_path / other)) == rows
    named = predict(trained, str(tmp_path / "images"))
    assert [row["class"] for row in named] == [row["class"] for row in rows]
    assert (rows[7]["example"], named[7]["example"]) == ("7", "007.png")
    right = np.mean([row["class"] for row in rows] == y)
    assert right == pytest.approx(result.rounds[-1].metrics["accuracy"])
    [lone] = predict(trained, str(tmp_path / "images" / "007.png"))
    assert lone["class"] == rows[7]["class"]
    assert lone["probability"] == pytest.approx(rows[7]["probability"])


def test_rows_are_a_table_csv_or_json(
    command: Downpour, trained: TrainedModel, digits: tuple[Any, Any], shared: Path, tmp_path: Path
) -> None:
    """The same ones."""
    np.save(tmp_path / "x.npy", digits[0][:3])
    words = ("predict", trained.name, tmp_path / "x.npy", "--shared", shared)
    rows = json.loads(command(*words, "--json").out)
    assert [*rows[0]] == ["example", "class", "probability"]
    typed = csv.DictReader(io.StringIO(command(*words, "--csv").out))
    assert [int(row["class"]) for row in typed] == [row["class"] for row in rows]
    head, *lines = command(*words).out.splitlines()
    assert head.split() == ["example", "class", "probability"]
    assert [int(line.split()[1]) for line in lines] == [row["class"] for row in rows]


def test_what_a_folder_holds_beside_images_is_named_in_a_line(
    trained: TrainedModel, digits: tuple[Any, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Folders, too; what a system hides there is nobody's."""
    image = Image.fromarray(digits[0][0, ..., 0])
    folder = tmp_path / "images"
    (folder / "more").mkdir(parents=True)
    for name in ("a.png", "b.PNG", ".hidden.png", "more/c.png"):
        image.save(folder / name, format="png")
    for name in ("a.txt", "notes", "Thumbs.db"):
        (folder / name).touch()
    rows = predict(trained, str(folder))
    assert [row["example"] for row in rows] == ["a.png", "b.PNG"]
    for number in range(9):
        (folder / f"{number}.csv").touch()
    predict(trained, str(folder))
    assert [record.getMessage() for record in caplog.records] == [
        "images: left out, because no images: a.txt, more/, notes",
        "images: left out, because no images: 0.csv, 1.csv, 2.csv, 3.csv, 4.csv, 7 more",
    ]


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("x.npy", np.zeros((2, 9, 9), "u1"), "its examples are uint8 9 x 9 x 1; the network"),
        ("x.npy", np.zeros((0, 8, 8), "u1"), "must hold numbers, one example per row"),
        ("x.npy", np.array(["a"]), "must hold numbers, one example per row"),
        ("x.npy", b"noise", "cannot be read"),
        ("x.npy", np.array([{}]), "cannot be read: Object arrays cannot be loaded"),
        ("x.npz", {"a": [1], "b": [2]}, "must hold one array, or one called x; it holds a, b"),
        ("x.txt", b"text", "must be a .npz or .npy file, an image (.apng, "),
        ("x.png", b"text", "cannot be decoded"),
        ("x", None, "no such file or folder"),
    ],
)
def test_what_is_no_input_is_told_in_one_line(
    trained: TrainedModel, tmp_path: Path, file: str, content: Any, reason: str
) -> None:
    """The line names the argument."""
    path = tmp_path / file
    match content:
        case bytes():
            path.write_bytes(content)
        case dict():
            np.savez(path, **content)
        case np.ndarray():
            np.save(path, content)
    with pytest.raises(SpecError, match=r"^INPUT = ") as refused:
        predict(trained, str(path))
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("allowed")
def test_a_task_predicts_a_part_of_its_examples(own: downpour.Result, shared: Path) -> None:
    """By default with the network's output for the first of a pair."""
    trained = find(own, shared)
    rows = predict(trained, "test")
    assert len(rows) == 200
    model = downpour.load_model(own, shared=shared)
    from regression import Regression  # type: ignore[import-not-found]

    x, _ = Regression(rows=200, width=4).examples("test").tensors
    with torch.no_grad():
        expected = model(x)[:, 0].tolist()
    assert [row["output"] for row in rows] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    with pytest.raises(SpecError, match=r'examples\("no"\) fails: .*regression.py:\d+ in examples'):
        predict(trained, "no")


@pytest.mark.usefixtures("allowed")
@pytest.mark.parametrize(
    "said",
    [None, float("nan"), "text", [], [1], torch.tensor(1.0), {"a": torch.zeros(2)}],
    ids=repr,
)
def test_a_prediction_without_a_row_for_each_example_is_refused(
    own: downpour.Result, shared: Path, said: object
) -> None:
    """The line names the task and the method."""
    task = task_of(find(own, shared))
    with pytest.raises(SpecError, match=r"^task = .*: predict\(\) must return a row for each of 3"):
        _columns(said, 3, task)
