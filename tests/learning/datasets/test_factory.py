"""Examples that a function on the allow-list makes."""

from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.datasets import arrays as factory
from downpour.learning.datasets import check_source, open_prepared, prepare
from tests.conftest import Allow

MODULE = """
import numpy as np
def named(count=10):
    return {"x": np.ones((count, 3)), "y": np.arange(count) % 2}
def pair():
    return np.ones((10, 3)), np.arange(10) % 2
def parts():
    return np.ones((10, 3)), np.arange(10) % 2, np.ones((2, 3)), np.arange(2)
def wrong():
    return 7
def table(path, names=True):
    rows = np.loadtxt(path, delimiter=",")
    made = {"x": rows[:, :-1], "y": rows[:, -1]}
    return {**made, "files": [path]} if names else made
def masked():
    return {"x": np.ones((10, 3)), "y": np.arange(10) % 2, "attention_mask": np.ones((10, 3))}
def files_of(what):
    return {"x": np.ones((10, 3)), "y": np.arange(10) % 2, "files": what}
def fails():
    raise RuntimeError("no such column")
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, allowing: Allow) -> None:
    (tmp_path / "made_examples.py").write_text(MODULE)
    allowing(tmp_path, "made_examples")


def spec_of(name: str, **options: object) -> Spec:
    """Return a spec whose dataset is a factory of the module."""
    return Spec.make({"dataset": f"made_examples:{name}", "dataset_options": options})


@pytest.mark.parametrize(("name", "train"), [("named", 8), ("pair", 8), ("parts", 10)])
def test_a_factory_returns_names_or_a_tuple(tmp_path: Path, name: str, train: int) -> None:
    """Both forms are prepared like a file of the same arrays."""
    check_source(spec_of(name))
    assert open_prepared(tmp_path, prepare(spec_of(name), tmp_path)).facts.train_samples == train


def test_options_reach_the_factory_and_the_name(tmp_path: Path) -> None:
    """Other options are another dataset."""
    few, more = prepare(spec_of("named"), tmp_path), prepare(spec_of("named", count=20), tmp_path)
    assert few != more
    assert open_prepared(tmp_path, more).facts.train_samples == 16


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        (spec_of("named", size=3), "dataset_options"),
        (spec_of("wrong"), "dataset"),
        (spec_of("files_of", what=7), "dataset"),
        (spec_of("files_of", what=["nowhere.csv"]), "dataset"),
    ],
)
def test_wrong_options_and_results_are_refused(tmp_path: Path, spec: Spec, field: str) -> None:
    """Options that the factory does not take, and results that are no arrays."""
    with pytest.raises(SpecError) as refusal:
        prepare(spec, tmp_path)
    assert refusal.value.field == field


def rows(folder: Path, count: int) -> str:
    """Write a table with this number of rows; returns its path."""
    path = folder / "table.csv"
    lines = (f"{number},{number % 7},{number % 2}" for number in range(count))
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize("names", [True, False])
def test_a_table_that_grew_is_another_dataset(tmp_path: Path, *, names: bool) -> None:
    """Whether the factory names the file that it reads, or what it returns is compared."""
    spec = spec_of("table", path=rows(tmp_path, 50), names=names)
    before = prepare(spec, tmp_path)
    assert prepare(spec, tmp_path) == before
    rows(tmp_path, 80)
    after = prepare(spec, tmp_path)
    assert open_prepared(tmp_path, before).facts.train_samples == 40
    assert open_prepared(tmp_path, after).facts.train_samples == 64


def test_a_factory_that_names_its_files_is_not_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While they are as they were."""
    spec = spec_of("table", path=rows(tmp_path, 50))
    before = prepare(spec, tmp_path)
    monkeypatch.setattr(factory, "load_factory", lambda *_: 1 / 0)
    assert prepare(spec, tmp_path) == before


def test_unknown_arrays_of_a_factory_are_named(tmp_path: Path) -> None:
    """It would be dropped otherwise, and the user would believe that it was used."""
    with pytest.raises(SpecError, match="cannot use attention_mask; accepted are numeric"):
        prepare(spec_of("masked"), tmp_path)


def test_an_error_in_a_factory_names_its_line(tmp_path: Path) -> None:
    """What it says and where, and not the options, which are not to blame."""
    told = r"cannot be made: RuntimeError: no such column \(made_examples\.py:\d+ in fails\)"
    with pytest.raises(SpecError, match=told):
        prepare(spec_of("fails"), tmp_path)


def test_a_factory_that_is_not_allowed_is_seen_before_anything_starts() -> None:
    """check_source refuses it without importing it."""
    with pytest.raises(SpecError, match="DOWNPOUR_ALLOW allows"):
        check_source(Spec.make({"dataset": "os:listdir"}))
