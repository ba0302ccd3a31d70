"""Options, data and losses that do not fit a network."""

import random
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from downpour.base.errors import SpecError
from downpour.core.spec import Spec
from downpour.learning.models import build, check_fit, outputs_needed
from tests.conftest import Allow

from .conftest import facts_of


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
    with pytest.raises(SpecError, match="needs images of at least"):
        build(Spec.make({"model": model}), facts_of(shape))


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
