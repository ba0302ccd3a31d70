"""The contract of every network, and the names by which networks are known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.models import NETWORKS, build, check_fit, check_model
from tests.conftest import Allow

from .conftest import facts_of

SHAPES = [(1, 28, 28), (3, 32, 20), (1, 8, 8)]
LARGER = [(1, 50, 50), (3, 36, 41)]


@pytest.mark.parametrize(
    ("name", "shape"),
    [(n, shape) for n in NETWORKS for shape in (LARGER if n == "xray-cnn" else SHAPES)],
)
@pytest.mark.parametrize("classes", [2, 11])
def test_a_network_adapts_to_the_data(name: str, shape: tuple[int, ...], classes: int) -> None:
    """Channels, size and classes come from the facts; the fit is confirmed."""
    spec, facts = Spec.make({"model": name}), facts_of(shape, classes)
    model = build(spec, facts)
    check_fit(model, spec, facts)
    assert model(torch.zeros(3, *shape)).shape == (3, classes)


@pytest.mark.parametrize("name", NETWORKS)
def test_initial_parameters_follow_from_the_seed_alone(name: str) -> None:
    """Equal seeds give equal parameters, others don't, and torch's generator is left alone."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, same, other = (
        torch.cat([p.flatten() for p in build(spec, facts_of((1, 50, 50))).parameters()])
        for spec in (Spec.make({"model": name, "seed": seed}) for seed in (5, 5, 6))
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_network_is_refused_by_naming_the_known() -> None:
    """The line lists Downpour's own and says what else there is."""
    with pytest.raises(SpecError) as refusal:
        check_model(Spec.make({"model": "mnist-cn"}))
    assert all(name in str(refusal.value) for name in NETWORKS)


def test_a_factory_gets_what_it_asks_for(tmp_path: Path, allowing: Allow) -> None:
    """The number of outputs by name, and the options; other names are left out."""
    (tmp_path / "made_network.py").write_text(
        "from torch import nn\n"
        "def make(num_classes, width=3):\n"
        "    layers = nn.Linear(784, width), nn.Linear(width, num_classes)\n"
        "    return nn.Sequential(nn.Flatten(), *layers)\n"
    )
    spec = Spec.make({"model": "made_network:make", "model_options": {"width": 5}})
    with pytest.raises(SpecError, match="DOWNPOUR_ALLOW"):
        check_model(spec)
    allowing(tmp_path, "made_network")
    model = build(spec, facts_of())
    check_fit(model, spec, facts_of())
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)
