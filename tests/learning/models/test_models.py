"""The built-in networks, and those that a user's factory makes."""

import random
import secrets
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.models import (
    NETWORKS,
    ConvLstm,
    Dropout,
    build,
    check_fit,
    check_model,
    digits_cnn,
    mlp,
    mnist_cnn,
    outputs_needed,
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


@pytest.mark.parametrize(
    ("model", "options", "field"),
    [
        ("mnist-cnn", {"dropuot": 0.1}, "model_options.dropuot"),
        ("mnist-cnn", {"dropout": 1.5}, "model_options.dropout"),
        ("mlp", {"hidden": [0]}, "model_options.hidden"),
        ("digits-cnn", {"width": 3}, "model_options.width"),
        ("xray-cnn", {"hidden": 0}, "model_options.hidden"),
        ("xray-cnn", {"dropout": -0.1}, "model_options.dropout"),
        ("conv-lstm", {"channels": [16, 0]}, "model_options.channels"),
        ("conv-lstm", {"hidden": [8]}, "model_options.hidden"),
    ],
)
def test_options_that_do_not_fit_are_named(
    model: str, options: dict[str, object], field: str
) -> None:
    """The refusal names the option and what would be accepted."""
    with pytest.raises(SpecError) as refusal:
        build(Spec.make({"model": model, "model_options": options}), facts_of((1, 50, 50)))
    assert refusal.value.field == field


@pytest.mark.parametrize("shape", [(7,), (1, 2, 2)])
@pytest.mark.parametrize("model", ["mnist-cnn", "xray-cnn", "conv-lstm"])
def test_images_too_small_and_plain_numbers_are_refused(model: str, shape: tuple[int, ...]) -> None:
    """A convolutional network says what it needs."""
    with pytest.raises(SpecError, match=rf"^model = '{model}': needs images of at least") as told:
        build(Spec.make({"model": model}), facts_of(shape))
    assert str(shape) in str(told.value)


def test_trying_a_network_leaves_it_as_it_is() -> None:
    """Running statistics and the training mode are the same afterwards."""
    model = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(784, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    check_fit(model, Spec.make({}), facts_of())
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("loss", "classes", "targets", "outputs"),
    [
        ("cross_entropy", 10, 1, 10),
        ("binary_cross_entropy", 2, 1, 1),
        ("binary_cross_entropy", 0, 4, 4),
        ("cross_entropy", 0, 4, None),
        ("binary_cross_entropy", 3, 1, None),
    ],
)
def test_the_loss_decides_how_many_outputs(
    loss: str, classes: int, targets: int, outputs: int | None
) -> None:
    """One for each class or target, one for two classes; a refusal where they do not fit."""
    spec, facts = Spec.make({"loss": loss}), facts_of(classes=classes, targets_per_sample=targets)
    if outputs is None:
        with pytest.raises(SpecError, match="loss"):
            outputs_needed(spec, facts)
    else:
        assert outputs_needed(spec, facts) == outputs


def lab(tmp_path: Path, allowing: Allow, body: str) -> str:
    """Write a module of the user's, allow it, and return its factory's name."""
    name = f"lab{secrets.token_hex(4)}"
    (tmp_path / f"{name}.py").write_text(f"import torch\nfrom torch import nn\n{body}")
    allowing(tmp_path, name)
    return f"{name}:make"


@pytest.mark.parametrize(
    ("body", "options", "field", "told"),
    [
        (
            "def make():\n    raise RuntimeError('no file')",
            {},
            "model",
            r"no file \(lab\w+.py:4 in",
        ),
        ("def make():\n    return {}['missing']", {}, "model", r"KeyError: 'missing' \(lab"),
        (
            "import nowhere\ndef make(): ...",
            {},
            "model",
            r"ModuleNotFoundError: .* \(lab\w+.py:3 in",
        ),
        ("def make(:", {}, "model", "SyntaxError"),
        ("def make(width):\n    ...", {}, "model_options", "missing a required argument: 'width'"),
        (
            "def make(width):\n    int(width)",
            {"width": "x"},
            "model_options",
            r"\(lab\w+.py:4 in m",
        ),
        ("def make():\n    return 3", {}, "model", "must return a torch.nn.Module"),
    ],
)
def test_an_error_in_a_factory_is_told_with_its_line(
    tmp_path: Path, allowing: Allow, body: str, options: dict[str, object], field: str, told: str
) -> None:
    """Options are to blame only where there are some, or some are missing."""
    spec = Spec.make({"model": lab(tmp_path, allowing, body), "model_options": options})
    with pytest.raises(SpecError, match=told) as refusal:
        build(spec, facts_of())
    assert refusal.value.field == field
    assert "\n" not in str(refusal.value)


def test_the_draws_of_a_factory_follow_from_the_seed(tmp_path: Path, allowing: Allow) -> None:
    """Whether it asks torch, Python or numpy; and the process's generators go on undisturbed."""
    body = (
        "import random\nimport numpy\n"
        "def make():\n"
        "    made = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))\n"
        "    made[1].bias.data.fill_(random.random() * numpy.random.random())\n"
        "    return made\n"
    )
    spec = Spec.make({"model": lab(tmp_path, allowing, body)})
    biases = []
    for number in (0, 0, 1):
        random.seed()
        before = random.getstate()
        biases.append(build(spec.replace(seed=number), facts_of()).state_dict()["1.bias"][0].item())
        assert random.getstate() == before
    assert biases[0] == biases[1] != biases[2]


def test_lazy_layers_get_their_sizes(tmp_path: Path, allowing: Allow) -> None:
    """Wherever the network is built, and with the same parameters."""
    layers = "nn.LazyConv2d(3, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(10)"
    body = f"def make():\n    return nn.Sequential({layers})\n"
    spec = Spec.make({"model": lab(tmp_path, allowing, body)})
    one, other = build(spec, facts_of()), build(spec, facts_of())
    check_fit(one, spec, facts_of())
    assert one.state_dict()["3.weight"].shape == (10, 3 * 26 * 26)
    assert one.state_dict()["1.num_batches_tracked"] == 0
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class Net(nn.Module):
    """A network that fits, with further modules and buffers that it does not use."""

    def __init__(
        self, features: int = 784, classes: int = 10, **others: nn.Module | Tensor
    ) -> None:
        super().__init__()
        self.flatten, self.dense = nn.Flatten(), nn.Linear(features, classes)
        for name, value in others.items():
            if isinstance(value, nn.Module):
                self.add_module(name, value)
            else:
                self.register_buffer(name, value)

    def forward(self, x: Tensor) -> Tensor:
        shown: Tensor = self.dense(self.flatten(x))
        return shown


class Extra(nn.Module):
    """Keeps more than tensors."""

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 3}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Net(classes=9), r"\(examples, 10\)"),
        (lambda: Net(features=5), r"shape \(1, 28, 28\)"),
        (lambda: Net().to(torch.bfloat16), "float32"),  # which numpy lacks
        (lambda: Net().requires_grad_(requires_grad=False), "has nothing to train"),
        (lambda: Net(unused=nn.LazyLinear(3)), r"unused\.\w+ still has no size"),
        (
            lambda: Net(counter=Extra()),
            r"counter\._extra_state, a dict; Downpour only sends tensors",
        ),
    ],
)
def test_an_untrainable_network_is_refused(make: Callable[[], nn.Module], why: str) -> None:
    """In one line, before anything is trained."""
    with pytest.raises(SpecError, match=why) as refusal:
        check_fit(make(), Spec.make({"model": "mlp"}), facts_of())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32])
def test_buffers_of_every_stored_type_are_taken(dtype: torch.dtype) -> None:
    """A mask of booleans or a table of bytes is as good as one of integers."""
    check_fit(Net(table=torch.zeros(3, dtype=dtype)), Spec.make({}), facts_of())
