"""A user types `downpour splits` and `trace`: what the commands print, and what they refuse."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from downpour.files.store.layout import RECORD_NAME
from tests.cli.conftest import Downpour
from tests.files.objects.cloud import URL, Cloud
from tests.files.objects.conftest import cloud
from tests.files.objects.test_mirror import begun

SPEC = """
dataset = "npz"
data_path = "set.npz"
model = "mlp"
shards = 3
seed = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec, and a dataset of forty training examples of four classes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spec.toml").write_text(SPEC)
    x, y = np.zeros((40, 2)), np.arange(40) % 4
    np.savez(tmp_path / "set.npz", x=x, y=y, x_test=x[:8], y_test=y[:8])
    return tmp_path


def test_the_split_of_a_spec_is_shown(downpour: Downpour, folder: Path) -> None:
    """Nothing is left behind where there is no shared directory."""
    before = sorted(folder.iterdir())
    outcome = downpour("splits", "spec.toml")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith("split random: 40 examples in 3 shards; examples of each class:")
    assert "sizes max/min 1.08; mean distance" in outcome.out
    assert sorted(folder.iterdir()) == before


def test_splits_are_compared_one_below_the_other(downpour: Downpour, folder: Path) -> None:
    """In the order asked for, with other shards than the spec's."""
    asked = ["class", "equal", "dirichlet(0.1)"]
    words = [word for split in asked for word in ("--split", split)]
    outcome = downpour("splits", folder / "spec.toml", "--shards", 2, *words)
    heads = [line.split(":")[0] for line in outcome.out.splitlines() if line.startswith("split ")]
    assert heads == [f"split {split}" for split in asked]
    told = json.loads(downpour("splits", "spec.toml", "--shards", 2, *words, "--json").out)
    assert (told["seed"], told["shards"]) == (3, 2)
    assert [split["split"] for split in told["splits"]] == asked
    by_class, equal, _ = told["splits"]
    assert [shard["by_class"] for shard in by_class["shards"]] == [[10, 0, 10, 0], [0, 10, 0, 10]]
    assert by_class["mean_distance"] == 0.5
    assert equal["mean_distance"] == 0


def test_shards_that_no_file_names_are_those_of_a_run(downpour: Downpour, folder: Path) -> None:
    """A note says so, beside the result."""
    (folder / "spec.toml").write_text(SPEC.replace("shards = 3", ""))
    outcome = downpour("splits", "spec.toml")
    number = int(outcome.err.removeprefix("shards = ").partition(",")[0])
    assert "as `downpour run` would take here; --shards takes another number" in outcome.err
    assert f"40 examples in {number} shard" in outcome.out


@pytest.mark.parametrize("name", ["figure.svg", "figure.png"])
def test_a_figure_is_drawn_beside_the_table(downpour: Downpour, folder: Path, name: str) -> None:
    """In the form that the name says."""
    outcome = downpour("splits", "spec.toml", "--split", "class", "--to", name)
    assert (outcome.status, outcome.err) == (0, f"drawn: {name}\n")
    content = (folder / name).read_bytes()
    assert b"<svg" in content if name.endswith(".svg") else content.startswith(b"\x89PNG")


def test_a_task_without_classes_has_sizes_alone(
    downpour: Downpour, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said in a line; a split by classes is refused as a run refuses it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    downpour("init", "--template", "regression")
    words = ["splits", "regression/spec.toml", "--allow", "regression", "--shards", 3]
    outcome = downpour(*words, "--to", "figure.svg")
    assert outcome.status == 0, outcome.err
    assert "split random: 2,000 examples in 3 shards" in outcome.out
    assert "examples have no classes, so only sizes are shown" in outcome.out
    assert "sizes max/min 1.00" in (tmp_path / "figure.svg").read_text()
    assert downpour(*words, "--split", "class").err == (
        "downpour: split = 'class': must be random because the dataset has no classes; "
        "a Task may give them with labels()\n"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["spec.toml", "--shards", "41"], "shards = 41: must be from 1 to 40"),
        (["spec.toml", "--split", "dirichlet"], "did you mean dirichlet(0.5)?"),
        (["spec.toml", "--split", "random", "--split", "dirichlet(0)"], "ALPHA above 0"),
        (["spec.toml", "--to", "no/figure.svg"], "to = 'no/figure.svg': must end with .png or"),
        (["gone.toml"], "data_path = 'gone.npz': no such file"),
        (["wrong.toml"], "shards = 'x': "),
        (["grid.toml"], "trials = 2: makes this a grid"),
    ],
)
def test_a_mistake_is_told_in_one_line(
    refused: Callable[..., str], folder: Path, words: list[str], line: str
) -> None:
    """Nothing is drawn then."""
    (folder / "gone.toml").write_text(SPEC.replace("set.npz", "gone.npz"))
    (folder / "wrong.toml").write_text(SPEC.replace("shards = 3", 'shards = "x"'))
    (folder / "grid.toml").write_text(f"{SPEC}trials = 2\n")
    before = sorted(folder.iterdir())
    assert line in refused("splits", *words)
    assert sorted(folder.iterdir()) == before


__all__ = ["cloud"]

Refused = Callable[..., str]
RECORDED = Path(__file__).parents[1] / "recorded"
NOBODY = "127.0.0.1:1"


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A shared directory with two recorded experiments, seen from a folder beside it."""
    there = tmp_path / "shared"
    for name, called in (("handoff", "uneven-51c0"), ("gestures", "uneven-7f3a")):
        shutil.copytree(RECORDED / name, there / "experiments" / called)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return there


def events(text: str) -> list[dict[str, Any]]:
    """Read a trace."""
    found: list[dict[str, Any]] = json.loads(text)["traceEvents"]
    assert found
    return found


def test_a_trace_lies_where_the_report_would(downpour: Downpour, shared: Path) -> None:
    """Under the whole ID, though its beginning was typed; what is printed is its path."""
    outcome = downpour("trace", "uneven-5", "--shared", shared)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out == "results/uneven-51c0/trace.json\n"
    assert events(Path(outcome.out.strip()).read_text())
    assert [path.name for path in Path("results/uneven-51c0").iterdir()] == ["trace.json"]


def test_a_trace_goes_to_standard_output(downpour: Downpour, shared: Path) -> None:
    """Nothing else is there, and no file is made."""
    outcome = downpour("trace", "uneven-51c0", "--to", "-", "--shared", shared)
    assert (outcome.status, outcome.err) == (0, "")
    file = Path("one.json")
    downpour("trace", "uneven-51c0", "--to", file, "--shared", shared)
    assert file.read_text() == outcome.out
    assert events(outcome.out)
    assert list(Path().iterdir()) == [file]


def test_a_beginning_that_two_share_is_refused(refused: Refused, shared: Path) -> None:
    """The line names one of them; `results` says the same."""
    for command in ("trace", "results"):
        line = refused(command, "uneven", "--shared", shared)
        assert line.startswith(
            "ID = 'uneven': 2 experiments begin like this, such as uneven-51c0; "
        )
        assert line.endswith("give more characters")


def test_an_earlier_trace_is_replaced_and_nothing_else(
    downpour: Downpour, refused: Refused, shared: Path
) -> None:
    """A file that somebody needs is not lost to a name that was mistyped."""
    file = Path("file.json")
    file.write_text('{"displayTimeUnit": "ms"}')
    words = "trace", "uneven-51c0", "--shared", shared, "--to", file
    for _ in range(2):
        line = refused(*words)
        assert line.startswith("to = 'file.json': exists and is not a trace from downpour; ")
        assert line.endswith("choose another file")
    assert file.read_text() == '{"displayTimeUnit": "ms"}'
    file.unlink()
    assert downpour("trace", "uneven-7f3a", "--shared", shared, "--to", file).status == 0
    first = file.read_text()
    assert downpour(*words).status == 0
    assert file.read_text() != first
    assert list(Path().iterdir()) == [file]


def test_a_folder_or_fifo_is_refused_as_the_file(refused: Refused, shared: Path) -> None:
    """A folder, a FIFO, and a file in what is none; nothing is left behind."""
    Path("folder").mkdir()
    Path("file").touch()
    os.mkfifo("fifo")
    for to, why in (
        ("folder", "not a trace from downpour"),
        ("fifo", "not a trace from downpour"),
        ("file/trace.json", "cannot be written: not a folder"),
        ("/proc/1/nothing/trace.json", "cannot be written: "),
    ):
        line = refused("trace", "uneven-51c0", "--shared", shared, "--to", to)
        assert line.startswith(f"to = '{to}': ")
        assert why in line
    assert sorted(path.name for path in Path().iterdir()) == ["fifo", "file", "folder"]


def test_a_trace_that_cannot_be_finished_leaves_the_earlier_one(
    downpour: Downpour, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no part of a file."""
    from downpour.show import trace as writing

    words = "trace", "uneven-51c0", "--shared", shared, "--to", "one.json"
    assert downpour(*words).status == 0
    whole, lines = Path("one.json").read_text(), writing.trace_lines

    def torn(record: Any) -> Any:
        yield from list(lines(record))[:5]
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "trace_lines", torn)
    outcome = downpour(*words)
    assert outcome.status == 2
    assert "to = 'one.json': cannot be written: full" in outcome.err
    assert outcome.err.count("\n") == 1
    assert [(path.name, path.read_text()) for path in Path().iterdir()] == [("one.json", whole)]


def test_a_damaged_record_is_told_in_one_line(downpour: Downpour, shared: Path) -> None:
    """Which line of which file; no trace is written."""
    record = shared / "experiments" / "uneven-51c0" / RECORD_NAME
    lines = record.read_text().splitlines()
    record.write_text("\n".join([*lines[:3], "{", *lines[4:]]) + "\n")
    outcome = downpour("trace", "uneven-51c0", "--shared", shared)
    assert (outcome.status, outcome.out) == (1, "")
    assert "line 4 is not a fact of an experiment" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not list(Path().iterdir())


def test_an_experiment_that_waits_has_a_trace_from_its_folder_and_from_its_manager(
    downpour: Downpour, served: Any, refused: Refused
) -> None:
    """Its journal is what there is; a manager understands beginnings of IDs, too."""
    at = "--manager", served.address
    experiment = downpour("submit", "--name", "waits", "--shards", "2", *at).out.strip()
    asked = downpour("trace", experiment[:-1], "--to", "-", *at)
    read = downpour("trace", experiment, "--to", "-", "--shared", served.shared, *at)
    assert (asked.status, asked.err) == (read.status, read.err) == (0, "")
    assert asked.out == read.out
    assert json.loads(read.out)["otherData"]["experiment"] == experiment
    line = refused("trace", "nope", *at)
    assert line == "experiment: no experiment 'nope'; `downpour list` names them"
    downpour("cancel", experiment, *at)


def test_a_bucket_has_the_record_when_no_manager_answers(downpour: Downpour, cloud: Cloud) -> None:
    """The beginning of an ID is enough there, too; nobody else has this machine's folder."""
    begun(cloud.on("first", create=True))
    cloud.on("reader")
    at = "--shared", URL, "--manager", NOBODY
    outcome = downpour("trace", "on", "--to", "-", *at)
    assert (outcome.status, outcome.err) == (0, "")
    assert json.loads(outcome.out)["otherData"]["experiment"] == "one"
    missing = downpour("trace", "two", "--to", "-", *at)
    assert (missing.status, missing.out) == (2, "")
    assert missing.err.startswith(f"downpour: ID = 'two': not in {URL}, and ")
