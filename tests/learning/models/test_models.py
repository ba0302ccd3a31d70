"""The contract of every network, and what each of them is."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.models import NETWORKS, build, check_fit, check_model
from downpour.learning.models.networks import (
    ConvLstm,
    Dropout,
    digits_cnn,
    mlp,
    mnist_cnn,
    xray_cnn,
)
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


def parameter_count(model: nn.Module) -> int:
    """Return the number of trainable numbers."""
    return sum(value.numel() for value in model.parameters())


def test_mnist_cnn_is_the_network_of_table_one() -> None:
    """1,199,882 parameters, and 9,216 inputs to the dense layer."""
    model = mnist_cnn((1, 28, 28), 10)
    assert parameter_count(model) == 1_199_882
    assert model.get_parameter("dense1.weight").shape == (128, 9216)


def test_pooling_before_relu_is_relu_before_pooling() -> None:
    """Values and gradients are those of the network as it is usually drawn."""
    model = digits_cnn((1, 8, 8), 10)
    layers = dict(model.named_children())
    order = ["conv1", "relu1", "conv2", "relu2", "pool", "flatten", "dense"]
    usual = nn.Sequential(*(layers[name] for name in order))
    x, weight = torch.randn(5, 1, 8, 8), model.get_parameter("conv1.weight")
    ours, theirs = (torch.autograd.grad(net(x).square().sum(), weight) for net in (model, usual))
    assert torch.equal(model(x), usual(x))
    assert torch.allclose(ours[0], theirs[0])


def test_mlp_takes_any_widths_and_none() -> None:
    """No hidden layer is a linear model; a single number is one layer."""
    assert parameter_count(mlp((4,), 3, hidden=[])) == 15
    assert mlp((2, 2), 3, hidden=[7])(torch.zeros(5, 2, 2)).shape == (5, 3)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("p", [0.1, 0.25, 0.5, 0.9])
def test_the_share_and_the_scale_are_those_of_dropout(p: float, dtype: torch.dtype) -> None:
    """A share p is zero, the rest is scaled by 1 / (1 - p)."""
    torch.manual_seed(3)
    output = Dropout(p)(torch.ones(300, 1001, dtype=dtype))
    assert float((output == 0).float().mean()) == pytest.approx(p, abs=0.005)
    kept = output[output != 0].float()
    assert float(kept.mean()) == pytest.approx(1 / (1 - p), rel=0.01)
    assert kept.min() == kept.max()


def test_the_generator_decides_the_mask() -> None:
    """The same generator state gives the same mask, and the next call another one."""
    x, layer = torch.ones(64, 64), Dropout(0.5)
    state = torch.get_rng_state()
    first, second = layer(x), layer(x)
    torch.set_rng_state(state)
    assert torch.equal(layer(x), first)
    assert not torch.equal(first, second)


def test_neighbors_are_independent() -> None:
    """The four decisions that share a random word have nothing to do with each other."""
    torch.manual_seed(4)
    kept = (Dropout(0.5)(torch.ones(40_000, 4)) != 0).float()
    correlation = torch.corrcoef(kept.T) - torch.eye(4)
    assert float(correlation.abs().max()) < 0.03


def test_nothing_is_dropped_in_evaluation_or_at_zero() -> None:
    """The input itself comes back."""
    x = torch.ones(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0)(x) is x


def test_gradients_flow_through_what_was_kept() -> None:
    """The gradient is the mask, scaled; empty inputs are no trouble."""
    x = torch.ones(50, requires_grad=True)
    output = Dropout(0.25)(x)
    output.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, output.detach())
    assert Dropout(0.25)(torch.ones(0)).numel() == 0


def test_three_poolings_leave_512_numbers_of_50_pixels() -> None:
    """What the paper says of its CNN holds for images of 50 x 50."""
    model = xray_cnn((1, 50, 50), 2)
    assert parameter_count(model) == 520_706
    assert model.get_parameter("dense1.weight").shape == (512, 512)
    poolings = [layer for layer in model.modules() if isinstance(layer, nn.MaxPool2d)]
    assert [layer.kernel_size for layer in poolings] == [2, 2, 2]


def test_an_image_is_read_row_by_row() -> None:
    """Fifty rows, pooled twice, are twelve steps; what is below changes no step above it."""
    model = ConvLstm((1, 50, 50), 2).eval()
    assert parameter_count(model) == 478_850
    steps: list[torch.Tensor] = []
    model.lstm.register_forward_hook(lambda _, __, output: steps.append(output[0]))
    image = torch.randn(1, 1, 50, 50)
    darker = image.clone()
    darker[:, :, 40:] = 0
    model(image), model(darker)
    assert steps[0].shape == (1, 12, 128)
    assert torch.equal(steps[0][:, :9], steps[1][:, :9])
    assert not torch.equal(steps[0][:, -1], steps[1][:, -1])


def test_channels_may_be_any_number_of_convolutions() -> None:
    """Each pools once more; none at all leaves the image's own rows."""
    assert ConvLstm((3, 16, 16), 5, channels=[4, 5, 6])(torch.zeros(2, 3, 16, 16)).shape == (2, 5)
    model = ConvLstm((1, 4, 7), 2, channels=[], hidden=3)
    assert model.get_parameter("lstm.weight_ih_l0").shape == (12, 7)
