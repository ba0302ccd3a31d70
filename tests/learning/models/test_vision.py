"""torchvision's networks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.models import build, check_fit, check_model
from downpour.learning.models.networks import vision_builder

from .conftest import facts_of


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32)])
def test_a_network_of_torchvision_takes_gray_and_color(shape: tuple[int, ...]) -> None:
    """Classes come from the facts; gray images leave the parameters' names and shapes alone."""
    spec, facts = Spec.make({"model": "squeezenet1_1"}), facts_of(shape)
    check_model(spec)
    model = build(spec, facts)
    check_fit(model, spec, facts)
    assert model.get_parameter("features.0.weight").shape[1] == 3


def test_a_detector_is_not_a_network_for_classes() -> None:
    """Only classification networks are known."""
    with pytest.raises(SpecError, match="known are"):
        check_model(Spec.make({"model": "fasterrcnn_resnet50_fpn"}))


@pytest.mark.parametrize(
    ("name", "meant"), [("restnet18", "resnet18"), ("digitscnn", "digits-cnn")]
)
def test_a_mistyped_network_is_guessed(name: str, meant: str) -> None:
    """Among ours and those of torchvision."""
    with pytest.raises(SpecError, match=rf"did you mean {meant}\?"):
        check_model(Spec.make({"model": name}))


def test_without_torchvision_the_refusal_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that may be torchvision's is not called unknown without the reason."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(SpecError, match=r"torchvision.models, which need downpour-sgd\[vision\]$"):
        check_model(Spec.make({"model": "squeezenet1_1"}))


def test_a_broken_torchvision_is_told_from_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installing it once more would not help."""
    (tmp_path / "torchvision.py").write_text("raise ImportError\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SpecError, match="torchvision does not import"):
        check_model(Spec.make({"model": "squeezenet1_1"}))


def test_a_worker_without_torchvision_says_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manager may have it, so the worker's own line names the extra."""
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(SpecError, match=r"needs torchvision; install downpour-sgd\[vision\]"):
        vision_builder("squeezenet1_1")
