"""`load_model`, `evaluate`, `export` and `predict`: the network that was trained, and its rows."""

import csv
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.utils.data import TensorDataset

import downpour
from downpour.base.errors import SpecError
from downpour.experiments.locating import TrainedModel, find
from downpour.experiments.trained_model import (
    _columns,
    export,
    load_model,
    measure,
    predict,
    task_of,
)
from tests.cli.conftest import Downpour, own_signals
from tests.cli.conftest import downpour as command
from tests.experiments.trained_model.conftest import run_here

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
    few = tmp_path / "few"  # of which a training would hold out none
    for name in "01":
        (few / name).mkdir(parents=True)
        shutil.copy(next((tmp_path / name).glob("*.png")), few / name)
    assert measure(trained, data=few).samples == 2
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
def test_a_task_is_measured_on_its_test_examples(
    own: downpour.Result, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after its last round; options may say where others are, in files or not."""
    trained = find(own.experiment[:-1], shared)  # the beginning of its ID is enough
    monkeypatch.setattr(TensorDataset, "fingerprint", "as downpour.data.Blocks", raising=False)
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


def test_an_exported_folder_loads_without_the_shared_directory(
    command: Downpour, result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """Plain torch reads the parameters; `load_model` builds the network from what lies there."""
    to = tmp_path / "out"
    outcome = command("export", result.experiment, "--to", to, "--shared", shared)
    assert (outcome.status, outcome.err) == (0, "")
    names = ["facts.json", "model.safetensors", "spec.toml"]
    assert outcome.out.splitlines() == [str(to / name) for name in names]
    model = downpour.load_model(to, shared=tmp_path / "nowhere")
    state = load_file(to / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], state[name]) for name in state)
    assert result.model_file is not None
    assert state.keys() == load_file(result.model_file).keys()


def test_without_a_folder_it_makes_one_that_bears_the_experiments_name(
    command: Downpour,
    result: downpour.Result,
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the current folder; a second time it is not empty."""
    monkeypatch.chdir(tmp_path)
    outcome = command("export", result.experiment, "--shared", shared)
    assert (outcome.status, outcome.err) == (0, "")
    assert (tmp_path / f"{result.experiment}-export" / "model.safetensors").is_file()
    assert "is not empty" in command("export", result.experiment, "--shared", shared).err
    of_torch = command("export", result.experiment, "--to", "model.pt", "--shared", shared)
    assert "must be a folder; the file in it will be model.safetensors" in of_torch.err


def test_nothing_is_overwritten(
    command: Downpour, result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """A folder that holds something is refused."""
    (tmp_path / "mine.txt").touch()
    outcome = command("export", result.experiment, "--to", tmp_path, "--shared", shared)
    assert outcome.status == 2
    assert outcome.err.endswith("is not empty, and Downpour never overwrites files\n")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_made_is_refused(
    result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """A file is in its place."""
    (tmp_path / "file").touch()
    with pytest.raises(SpecError, match="cannot be written: Not a directory"):
        export(find(result, shared), tmp_path / "file" / "in")


def _of(changes: dict[str, Any]) -> Callable[[dict[str, Any]], bytes]:
    return lambda stated: json.dumps({**stated, **changes}).encode()


HOSTILE: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "no JSON": lambda _: b"not json",
    "no object": lambda _: b"[]",
    "nothing": lambda _: b"{}",
    "depth without end": lambda _: b'{"a":' * 100_000,
    "digits without end": lambda _: b'{"mean": ' + b"9" * 100_000 + b"}",
    "no sample_shape": _of({"sample_shape": []}),
    "another sample_shape": _of({"sample_shape": [1, 4, 16]}),
    "sizes beyond numpy": _of({"sample_shape": [2**70]}),
    "a negative count": _of({"train_samples": -1}),
    "a count of others": _of({"test_samples": 7}),
    "a count in words": _of({"train_samples": "400"}),
    "a mean that is no number": _of({"mean": [float("nan")]}),
    "a mean of another length": _of({"mean": [0.0, 0.0]}),
    "a std of zero": _of({"std": [0.0]}),
    "no targets": _of({"targets_per_sample": 0}),
    "other arrays": _of({"arrays": {}}),
    "a remark of numbers": _of({"remarks": [1]}),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_facts_that_cannot_be_are_refused(
    command: Downpour, result: downpour.Result, shared: Path, tmp_path: Path, fault: str
) -> None:
    """An exported folder may come from anybody; a refused one is neither loaded nor passed on."""
    model = tmp_path / "out"
    export(find(result, shared), model)
    facts = model / "facts.json"
    facts.write_bytes(HOSTILE[fault](json.loads(facts.read_bytes())))
    outcome = command("export", model, "--to", tmp_path / "again", "--shared", tmp_path)
    assert outcome.status == 2, outcome
    assert outcome.err.count("\n") == 1
    assert "facts.json" in outcome.err
    assert not (tmp_path / "again").exists()


def test_every_name_of_a_model_gives_the_network_with_its_parameters(
    result: downpour.Result, shared: Path
) -> None:
    """A result, its ID, its file and its folder are the same one, ready to be used."""
    assert result.model_file is not None
    known = load_file(result.model_file)
    for source in (result, result.experiment, result.model_file, result.model_file.parent):
        model = load_model(source, shared=shared)
        assert isinstance(model, nn.Module)
        assert not model.training
        state = model.state_dict()
        assert state.keys() == known.keys()
        assert all(torch.equal(state[name], known[name]) for name in known)
        assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)


def test_an_earlier_version_is_named_within_its_experiment(
    result: downpour.Result, shared: Path
) -> None:
    """Version 1 is what the second round began with."""
    folder = shared / "experiments" / result.experiment
    [file] = folder.glob("model-000001-*")
    first = downpour.load_model(f"{result.experiment}/{file.name}", shared=shared)
    last = downpour.load_model(result, shared=shared)
    assert not torch.equal(next(first.parameters()), next(last.parameters()))


def test_a_file_somewhere_else_needs_its_spec(
    result: downpour.Result, shared: Path, tmp_path: Path
) -> None:
    """The spec says what to build, and its data are prepared if they are not there."""
    assert result.model_file is not None
    alone = shutil.copy(result.model_file, tmp_path / "alone.safetensors")
    with pytest.raises(SpecError, match=r"has no spec\.toml next to it"):
        downpour.load_model(alone, shared=shared)
    spec = downpour.Spec.make(result.spec)
    model = downpour.load_model(alone, shared=shared, spec=spec)
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)


@pytest.mark.parametrize(
    ("source", "changes", "reason"),
    [
        ("nobody", {}, "model = 'nobody': no such file, and no experiment in the shared"),
        ("FOLDER/record.jsonl", {}, "must be a safetensors file"),
        ("FOLDER", {"model": "mlp"}, "belongs to another network: it has "),
        ("FOLDER", {"model": "lab:Net"}, "DOWNPOUR_ALLOW allows none on "),
        (3, {}, "model = 3: must be a path"),
    ],
)
@pytest.mark.usefixtures("allowing")
def test_what_cannot_be_loaded_is_told_in_one_line(
    result: downpour.Result, shared: Path, source: Any, changes: dict[str, str], reason: str
) -> None:
    """By name, file, network or allow-list, where nothing is allowed."""
    if isinstance(source, str):
        source = source.replace("FOLDER", str(shared / "experiments" / result.experiment))
    spec = downpour.Spec.make({**result.spec, **changes}) if changes else None
    with pytest.raises(SpecError) as refused:
        downpour.load_model(source, shared=shared, spec=spec)
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


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
        ("x.npy", b"noise", "cannot be read: it is not a .npy or .npz file"),
        ("x.npy", np.array([{}]), "cannot be read: it holds Python objects, not numbers"),
        ("x.npz", [("x", "text")], "must hold numbers, one example per row"),
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
        case [member]:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(*member)
        case np.ndarray():
            np.save(path, content)
    with pytest.raises(SpecError, match=r"^INPUT = ") as refused:
        predict(trained, str(path))
    assert reason in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_model_of_numbers_takes_no_pictures(tmp_path: Path) -> None:
    """The line says what it takes."""
    x, y = np.eye(8, 3, dtype="f4"), np.arange(8) % 2
    np.savez(tmp_path / "set.npz", x=x, y=y, x_test=x, y_test=y)
    fields = {"dataset": "npz", "data_path": str(tmp_path / "set.npz"), "model": "mlp"}
    trained = find(run_here(downpour.Spec.make(fields), tmp_path), tmp_path)
    Image.new("L", (8, 8)).save(tmp_path / "x.png")
    with pytest.raises(SpecError, match=r"x.png'.* a \.npz or \.npy file, because .* no images"):
        predict(trained, str(tmp_path / "x.png"))


@pytest.mark.usefixtures("allowed")
def test_numbers_of_one_prediction_are_columns(
    command: Downpour, own: downpour.Result, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In CSV, with the digits that single precision has; a table has them in brackets."""
    from regression import Regression  # type: ignore[import-not-found]

    both = lambda _, __, batch: torch.ones(len(batch[0]), 2) / 3  # noqa: E731
    monkeypatch.setattr(Regression, "predict", both, raising=False)
    words = ("predict", own.experiment, "test", "--shared", shared)
    head, first, *_ = command(*words, "--csv").out.splitlines()
    assert (head, first) == ("example,output_0,output_1", "0,0.3333333,0.3333333")
    assert "[0.3333, 0.3333]" in command(*words).out


@pytest.mark.usefixtures("allowed")
def test_a_task_predicts_a_part_of_its_examples(
    own: downpour.Result, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default with the network's output for the first of a pair; any other part is refused."""
    trained = find(own, shared)
    rows = predict(trained, "test")
    assert len(rows) == 200
    model = downpour.load_model(own, shared=shared)
    from regression import Regression

    x, _ = Regression(rows=200, width=4).examples("test").tensors
    with torch.no_grad():
        expected = model(x)[:, 0].tolist()
    assert [row["output"] for row in rows] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    with pytest.raises(SpecError, match=r'examples\("test"\) has none to evaluate on'):
        measure(trained, options={"rows": 0})
    with pytest.raises(SpecError, match=r'examples\("no"\) fails: .*regression.py:\d+ in examples'):
        predict(trained, "no")
    made = Regression.examples
    either = lambda own, part: made(own, "train" if part == "train" else "test")  # noqa: E731
    monkeypatch.setattr(Regression, "examples", either)
    with pytest.raises(SpecError, match=r"INPUT = 'photos': must be .* returns those of \"test\"$"):
        predict(trained, "photos")


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
