"""torchvision's networks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.models import build, check_fit, check_model

from .conftest import facts_of


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


def test_a_broken_torchvision_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that was built for another torch does not import, and its names are unknown."""
    (tmp_path / "torchvision.py").write_text("raise ImportError('no such symbol')\n")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SpecError, match="torchvision does not import"):
        check_model(Spec.make({"model": "squeezenet1_1"}))
