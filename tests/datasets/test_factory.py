"""Examples that a function on the allow-list makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from downpour.allowlist import VARIABLE
from downpour.datasets import check_source, open_prepared, prepare
from downpour.errors import SpecError
from downpour.spec import Spec

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
"""


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_examples.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(VARIABLE, "made_examples")


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
    [(spec_of("named", size=3), "dataset_options"), (spec_of("wrong"), "dataset")],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, spec: Spec, field: str) -> None:
    """Options that the factory does not take, and results that are no arrays."""
    with pytest.raises(SpecError) as refusal:
        prepare(spec, tmp_path)
    assert refusal.value.field == field


def test_a_factory_that_is_not_allowed_is_seen_before_anything_starts() -> None:
    """check_source refuses it without importing it."""
    with pytest.raises(SpecError, match="DOWNPOUR_ALLOW allows"):
        check_source(Spec.make({"dataset": "os:listdir"}))
